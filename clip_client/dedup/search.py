"""The search for duplicates, from paths to a report: scan, collect, pair, prove, group, judge."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
from anyio import from_thread, to_thread

from clip_client._files import printable
from clip_client._results import Embedder
from clip_client.dedup.compare.cells import join_vectors
from clip_client.dedup.compare.compared import Compared
from clip_client.dedup.compare.groups import make_groups, stars
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES, KeepRules, best_copies_first, converted_from_lossy
from clip_client.dedup.compare.neighbours import ALIGNED_FROM, HASH_BITS, Evidence, candidate_pairs, join_hashes
from clip_client.dedup.compare.proofs import Proofs, import_aligner, proved
from clip_client.dedup.compare.same_pixels import number_by_pixels
from clip_client.dedup.compare.similarity_join import UnionFind
from clip_client.dedup.compare.star_groups import CannotLink
from clip_client.dedup.compare.thresholds import thresholds_for
from clip_client.dedup.features.collect import CollectedFeatures, collect_features
from clip_client.dedup.files.companions import companions
from clip_client.dedup.files.directories import DirectorySet
from clip_client.dedup.files.places import why_not_kept
from clip_client.dedup.files.scanner import Scan, scan
from clip_client.dedup.judge.verdicts import with_verdicts
from clip_client.dedup.photo import Photo
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.store.cache import Spool
from clip_client.dedup.store.decisions import Decision
from clip_client.dedup.store.store import Store
from clip_client.dedup.types import NO_MODEL, LibraryPhoto, OnProgress, RecallEstimate, SearchStats, Thresholds

if TYPE_CHECKING:
    from clip_client.dedup.compare.aligner import Aligner

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_MOST_NAMED: Final = 8  # photos, 28 pairs


@dataclass(frozen=True, kw_only=True)
class GroupRules:
    """Everything besides the photos' features that decides about groups. A cluster's workers get a copy."""

    thresholds: Thresholds
    keep: tuple[str, ...]
    references: tuple[str, ...]
    decisions: tuple[Decision, ...]
    verify: bool
    model: str = NO_MODEL
    in_libraries: Mapping[str, LibraryPhoto] = field(default_factory=dict)
    only_by_link: frozenset[str] = frozenset()
    not_kept: Mapping[str, str] = field(default_factory=dict)
    named: frozenset[str] = frozenset()
    """Paths of photos that were named one by one, if they are few: any two of them are aligned."""


async def find_duplicates(
    clip: Embedder | None,
    paths: Paths | Scan,
    *,
    threshold: float | None = None,
    references: Iterable[str | os.PathLike[str]] = (),
    keep: Sequence[str] = DEFAULT_RULES,
    store: Store | None = None,
    verify: bool = True,
    merge_metadata: bool = False,
    on_progress: OnProgress | None = None,
) -> DuplicateReport:
    """Find the photos below ``paths`` that show the same picture.

    ``paths`` are files and folders, or the result of :func:`scan` for them; their order does not change the result.
    Two photos are alike under any of these conditions:

    - They have the same bytes or the same pixels.
    - At most 3 bits of their perceptual hashes differ.
    - The cosine of their vectors is at least ``threshold`` (default: :func:`thresholds_for` the model).

    With ``verify``, photos that may show the same picture are also aligned, whatever the thresholds. The alignment
    (:class:`~clip_client.dedup.aligned.Alignment`) proves copies and names the changes. Of up to 8 files in ``paths``,
    any two are aligned. If OpenCV is missing, the report's ``note`` says so. Pictures of nearly one colour are compared
    by bytes and pixels only, and RAW files without a preview by their bytes. Without ``clip`` vectors are not compared:
    crops and heavy edits are then found only if a perceptual hash or the time of capture pairs the photos.

    Folders in ``references`` are searched too (a :class:`Scan` already includes them), and their photos are kept before
    all others. ``keep`` names the rules that choose the kept photo (``KeepRules``). With a ``store`` each content is
    read and embedded only once. Photos that a person declared different, or wants to keep all, never share a group. The
    report lists the files that fail. ``merge_metadata`` is that of :func:`.with_verdicts`.

    ``on_progress(what, done, total)`` is called on the event loop; the total is None while it is not known. Raises
    ValueError for a threshold outside 0 to 1, an unknown rule, StoreError, and what ``ClipClient.embed_stream``
    raises if the server fails.
    """
    KeepRules(keep)  # raises ValueError
    progress = on_progress or (lambda what, done, total: None)
    kept_folders = [os.fsdecode(path) for path in references]
    if isinstance(paths, Scan):
        found = paths
    else:
        named = [os.fsdecode(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
        found = await to_thread.run_sync(partial(scan, [*named, *kept_folders], raw=True))
    with nullcontext(store) if store is not None else Store() as opened, Spool(opened.directory) as pictures:
        collected, rules = await collect(
            clip, found, opened, progress, threshold, kept_folders, keep, verify, pictures=pictures
        )
        report = await to_thread.run_sync(group_contents, collected, rules, opened, told_by_thread(progress), pictures)
        return await judge(report, collected, found, opened, progress, merge_metadata=merge_metadata)


async def collect(
    clip: Embedder | None,
    found: Scan,
    store: Store,
    progress: OnProgress,
    threshold: float | None = None,
    references: Sequence[str] = (),
    keep: Sequence[str] = DEFAULT_RULES,
    verify: bool = True,
    *,
    pictures: Spool | None = None,
) -> tuple[CollectedFeatures, GroupRules]:
    """Collect the features and vectors of a scan's files; ``pictures`` takes small pictures for the alignment."""
    model = NO_MODEL if clip is None else (await clip.model()).id
    thresholds = thresholds_for(model, threshold)
    aligner = import_aligner()[0] if verify and pictures is not None else None
    keep_picture = None if aligner is None else partial(aligner.keep_small_picture, pictures)
    collected = await collect_features(clip, found.files, store, progress, keep_picture=keep_picture)
    progress("comparing", 0, None)
    named = frozenset(found.roots).intersection(found.photos)
    outside_libraries = [path for path in found.photos if path not in found.in_libraries]
    return collected, GroupRules(
        thresholds=thresholds,
        keep=tuple(keep),
        references=tuple(references),
        decisions=tuple(store.decisions.all()),
        verify=verify,
        model=model,
        in_libraries=found.in_libraries,
        only_by_link=found.only_by_link,
        named=named if len(named) <= _MOST_NAMED else frozenset(),
        not_kept=await to_thread.run_sync(why_not_kept, outside_libraries, references),
    )


def group_contents(
    collected: CollectedFeatures,
    rules: GroupRules,
    store: Store,
    on_progress: OnProgress,
    pictures: Mapping[str, bytes] = MappingProxyType({}),
) -> DuplicateReport:
    """Divide the collected contents into groups without verdicts; a cluster calls this for each part of a search."""
    aligning, note = import_aligner() if rules.verify else (None, "")
    compared, recall, work = pair(collected, rules, store, is_wide=aligning is not None)
    if aligning is None:
        proofs = Proofs(compared)
        alike = stars(compared, proofs)
    else:
        files = {collected.contents[row]: photos[0] for row, photos in compared.candidates.items()}
        with aligning.Aligner(files, store, pictures, collected.read, collected.threads) as aligner:
            compared, proofs, alike = prove(compared, collected.contents, aligner, on_progress)
            work += aligner.work
    groups = make_groups(compared, proofs, alike)
    note = _why_apart(collected, rules, compared, proofs) if aligning and not groups else note
    return DuplicateReport(
        model=rules.model,
        thresholds=rules.thresholds,
        compared=sum(len(collected.copies[sha256]) for sha256 in collected.contents),
        groups=groups,
        failed=(),
        work=work,
        coverage=recall,
        note=note,
    )


def pair(
    collected: CollectedFeatures, rules: GroupRules, store: Store, *, is_wide: bool
) -> tuple[Compared, RecallEstimate, SearchStats]:
    """Join the contents that are alike by vectors, hashes or pixels; if ``is_wide``, also pair possible copies."""
    contents, column = collected.contents, collected.column
    pixels, decoded = number_by_pixels(collected, store)
    has_hash = collected.are_pictures & ~column("is_flat")
    hashes = column("perceptual_hash")
    vectors = collected.vectors_of(contents)
    vectors[~has_hash] = np.nan
    alike, look_alike = UnionFind(len(contents)), UnionFind(len(contents))
    recall = join_vectors(alike, vectors, rules.thresholds.similar)
    join_hashes(look_alike, np.flatnonzero(has_hash), hashes, HASH_BITS)
    alike.join(np.arange(len(contents)), look_alike.labels)
    _, firsts, which = np.unique(pixels, return_index=True, return_inverse=True)
    alike.join(np.arange(len(contents)), firsts[which])
    components = alike.components()
    rows = {row for row, sha256 in enumerate(contents) if len(collected.copies[sha256]) > 1}
    candidates = _photos(collected, rules, rows.union(*(component.tolist() for component in components)))
    pictures: dict[int, list[Photo]] = {}
    for row, files in candidates.items():
        pictures.setdefault(int(pixels[row]), []).append(files[0])
    compared = Compared(
        candidates=candidates,
        evidence=Evidence(vectors, pixels, hashes, has_hash),
        thresholds=rules.thresholds,
        components=components,
        look_alike=look_alike.components(),
        cannot_link=CannotLink.from_decisions(contents, rules.decisions),
        rules=KeepRules(rules.keep, converted=converted_from_lossy(pictures.values())),
    )
    if is_wide:
        representatives = np.arange(len(contents))
        for row, better in compared.same_pixels().items():
            representatives[row] = better
        pairs = candidate_pairs(
            compared.evidence,
            least_cosine=min(ALIGNED_FROM, rules.thresholds.similar),
            inner_hashes=column("inner_hash"),
            cameras=column("camera"),
            taken_ms=column("taken_ms").astype(np.float64),
            representatives=representatives,
            named=np.array([row for row in _named_rows(collected, rules) if has_hash[row]], dtype=np.intp),
        )
        further = _photos(collected, rules, set(np.unique(pairs).tolist()) - candidates.keys())
        compared = replace(compared, candidates=candidates | further)
        compared = compared.with_pairs(pairs.tolist())
    return compared, recall, SearchStats(pixels_decoded=decoded)


def _named_rows(collected: CollectedFeatures, rules: GroupRules) -> list[int]:
    if not rules.named:
        return []
    paths_of = ((file.path for file in collected.copies[sha256]) for sha256 in collected.contents)
    return [row for row, paths in enumerate(paths_of) if not rules.named.isdisjoint(paths)]


def _why_apart(collected: CollectedFeatures, rules: GroupRules, compared: Compared, proofs: Proofs) -> str:
    """Say why two photos are in no group, if these two were named and nothing else was searched."""
    rows = _named_rows(collected, rules)
    if len(rows) != 2 or len(collected.contents) != 2 or not collected.are_pictures.all():
        return ""
    if not compared.cannot_link.may_share(*rows):
        return "You declared the two different, or want both; clip-client decide list shows it, decide forget undoes it"
    names = {sha256: printable(collected.copies[sha256][0].path) for sha256 in collected.contents}
    for sha256, name in names.items():
        if collected.features[sha256].is_flat:
            return f"{name} is nearly one colour, so only its bytes and pixels were compared"
        if reason := proofs.cannot_verify.get(sha256):
            return f"{name} cannot be aligned: {reason.rstrip('.')}"
    if other_shot := compared.other_shot(*rows, is_proved=True):
        return f"By time of capture or exposure, one is {other_shot}"
    return "Their details were compared, and no part of one fits on the other"


def prove(
    compared: Compared, contents: Sequence[str], aligner: Aligner, on_progress: OnProgress
) -> tuple[Compared, Proofs, dict[int, list[int]]]:
    """Prove the pairs, add the doubts that this raises, and align each row with the one it would be grouped around."""
    compared, proofs = proved(compared, contents, aligner, on_progress)
    alike = stars(compared, proofs)
    for kept, rows in alike.items():
        proofs.align(kept, rows)
    return compared, proofs, alike


async def judge(
    report: DuplicateReport,
    collected: CollectedFeatures,
    found: Scan,
    store: Store,
    progress: OnProgress,
    *,
    merge_metadata: bool,
) -> DuplicateReport:
    """Add verdicts to the groups, and what the scan and the collection say; ``store`` remembers the copies."""
    not_compared = [*collected.failed, *collected.undecodable]
    report = replace(
        report,
        compared=len(found.files) - len(not_compared),
        failed=tuple(sorted([*not_compared, *found.failed], key=lambda failure: os.fsencode(failure.path))),
        work=collected.stats + report.work,
        links=found.links,
        skipped=found.skipped,
        failed_by_bytes=collected.undecodable_copies,
        bytes_only=tuple(collected.bytes_only),
    )
    verdicts = partial(with_verdicts, report, found.roots, merge_metadata=merge_metadata, files=store.files)
    report = await to_thread.run_sync(verdicts)
    await to_thread.run_sync(store.copies.record, report.groups)
    progress("comparing", len(found.files), len(found.files))
    return report


def _photos(collected: CollectedFeatures, rules: GroupRules, rows: Collection[int]) -> dict[int, list[Photo]]:
    contents, in_libraries, references = collected.contents, rules.in_libraries, DirectorySet(rules.references)
    files = {row: collected.copies[contents[row]] for row in sorted(rows)}
    plain = (file.path for copies in files.values() for file in copies if file.path not in in_libraries)
    companions_of = companions(plain) | {path: photo.companions for path, photo in in_libraries.items()}
    copies = {
        row: [
            Photo(
                path=file.path,
                sha256=contents[row],
                size_bytes=file.size_bytes,
                mtime_ns=file.mtime_ns,
                features=collected.features[contents[row]],
                files=len(own),
                is_reference=references.contains(file.path),
                is_by_link=file.path in rules.only_by_link,
                not_kept=rules.not_kept.get(file.path, ""),
                companions=companions_of.get(file.path, ()),
                in_library=in_libraries.get(file.path),
            )
            for file in own
        ]
        for row, own in files.items()
    }
    return best_copies_first(copies, KeepRules(rules.keep), rules.decisions)


def told_by_thread(progress: OnProgress) -> OnProgress:
    return lambda what, done, total: from_thread.run_sync(progress, what, done, total)
