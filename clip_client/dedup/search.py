"""The search for duplicates, from paths to a report."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from anyio import from_thread, to_thread

from clip_client.dedup.actions.verdicts import judged
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES
from clip_client.dedup.compare.thresholds import thresholds_for
from clip_client.dedup.features.collect import collect_features
from clip_client.dedup.features.image_features import BYTES_ONLY
from clip_client.dedup.files.hashing import sha256_of
from clip_client.dedup.files.scanner import Scan, scan
from clip_client.dedup.grouping import CANDIDATES, OFF, GroupRules, check_group_rules, group_contents
from clip_client.dedup.proving import keep_pictures
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.store.store import Store
from clip_client.dedup.types import NO_MODEL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clip_client._results import Embedder
    from clip_client.dedup.actions.verdicts import MoveOptions
    from clip_client.dedup.grouping import GroupContents
    from clip_client.dedup.types import OnProgress

    Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

DEFAULT_HASH_BITS: Final = 3
"""Bits of 64 in which two perceptual hashes may differ. In a collection of 23.5 million pictures hashes that differ in
3 bits at most belonged to the same picture "with high probability" (czkawka, issue 61)."""


async def find_duplicates(
    clip: Embedder | None,
    paths: Paths | Scan,
    *,
    threshold: float | None = None,
    hash_bits: int = DEFAULT_HASH_BITS,
    references: Iterable[str | os.PathLike[str]] = (),
    keep: Sequence[str] = DEFAULT_RULES,
    store: Store | None = None,
    verify: str = CANDIDATES,
    options: MoveOptions | None = None,
    on_progress: OnProgress | None = None,
    group: GroupContents = group_contents,
) -> DuplicateReport:
    """Find the photos below ``paths`` that show the same: files and folders, or what :func:`scan` returned for them.

    Two photos are alike if they have the same bytes or the same pixels, if at most ``hash_bits`` bits of their
    perceptual hashes differ (-1 turns this test off), or if the cosine of their vectors is at least ``threshold``
    (by default what was tuned in the ``store``, else what :func:`thresholds_for` returns for the model). With
    ``verify="candidates"`` photos that may show the same are aligned, which proves copies and says what was done
    (:class:`~clip_client.dedup.aligned.Alignment`), whatever the thresholds say; ``"off"`` turns this off, and without
    OpenCV the report's ``note`` says so. Pictures of nearly one colour are compared by bytes and pixels only, and RAW
    files without a preview by their bytes. Folders in ``references`` are searched too (a :class:`Scan` already includes
    them), and their photos are kept before all others. ``keep`` names the rules that choose the kept photo
    (``KeepRules``). With a ``store`` nothing is read or embedded twice, and photos that a person declared different, or
    wants to keep all, never share a group. The result does not depend on the order of ``paths``. The report lists the
    files that fail; they affect no other file.

    Without ``clip`` no vectors are compared: strong crops and edits are then found only if a perceptual hash or the
    time of capture pairs the photos.

    Each photo of a group has a verdict: whether it may move with ``options``, for which photo, and if not, why.

    ``group`` may divide the contents into groups elsewhere than :func:`.group_contents` does, which is on this machine.
    ``on_progress(what, done, total)`` is called on the event loop; the total is None while it is not known. Raises
    ValueError for a threshold outside 0 to 1, an unknown rule or an unknown ``verify``, StoreError, and what
    ``ClipClient.embed_stream`` raises if the server fails.
    """
    check_group_rules(keep, hash_bits, verify)
    model = None if clip is None else await clip.model()
    model_id = NO_MODEL if model is None else model.id
    tuned = None if store is None or model is None else store.settings.tuned(model.vector_id)
    thresholds = thresholds_for(model_id, threshold, tuned=tuned)
    progress = on_progress or (lambda what, done, total: None)
    kept_folders = [os.fsdecode(path) for path in references]
    if isinstance(paths, Scan):
        found = paths
    else:
        named = [os.fsdecode(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
        found = await to_thread.run_sync(lambda: scan([*named, *kept_folders], raw=True))

    with nullcontext(store) if store is not None else Store() as opened, opened.spool() as pictures:
        keep_picture = None if verify == OFF else keep_pictures(pictures)
        collected = await collect_features(clip, found.files, opened, progress, keep_picture=keep_picture)
        collected.pictures = pictures
        progress("comparing", 0, None)
        contents, undecodable = await to_thread.run_sync(collected.comparable)
        if model is not None:
            opened.settings.note_search(model.vector_id, thresholds.similar)
        rules = GroupRules(
            thresholds=thresholds,
            hash_bits=hash_bits,
            keep=tuple(keep),
            references=tuple(kept_folders),
            decisions=tuple(opened.decisions.all()),
            verify=verify,
            in_libraries=found.in_libraries,
            only_by_link=found.links.only_by_link,
        )

        def tell(what: str, done: int, total: int | None) -> None:
            from_thread.run_sync(progress, what, done, total)

        grouped = await to_thread.run_sync(group, collected, contents, rules, opened, tell)
        not_compared = [*collected.failed, *undecodable]
        report = DuplicateReport(
            model=model_id,
            thresholds=thresholds,
            compared=len(found.files) - len(not_compared),
            groups=grouped.groups,
            failed=tuple(sorted([*not_compared, *found.failed], key=lambda failure: os.fsencode(failure.path))),
            work=replace(
                collected.stats,
                pixels_decoded=grouped.pixels_decoded,
                keypoints=grouped.keypoints,
                aligned=grouped.aligned,
            ),
            coverage=grouped.recall,
            links=found.links,
            skipped=found.skipped,
            bytes_only=tuple(collected.paths_with_code(BYTES_ONLY)),
            pair_sources=grouped.pair_sources,
            note=grouped.note,
        )

        def hash_of(path: str) -> str:
            return opened.files.sha256_of(path, sha256_of)

        report = await to_thread.run_sync(lambda: judged(report, found.roots, options, hash_of=hash_of))
        progress("comparing", len(found.files), len(found.files))
    return report
