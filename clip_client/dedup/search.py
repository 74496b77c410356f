"""The search for duplicates, from paths to a report."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from anyio import to_thread

from clip_client.dedup.compare.cannot_link import CannotLink
from clip_client.dedup.compare.groups import Comparison, make_groups
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES, Candidate, KeepRules
from clip_client.dedup.compare.partitioned_join import join_vectors
from clip_client.dedup.compare.pixel_candidates import pixel_candidates
from clip_client.dedup.compare.similarity_join import join_hashes
from clip_client.dedup.compare.thresholds import thresholds_for
from clip_client.dedup.compare.union_find import UnionFind
from clip_client.dedup.features.collect import collect_features
from clip_client.dedup.features.image_features import BYTES_ONLY
from clip_client.dedup.features.pixel_hash import pixel_hashes
from clip_client.dedup.files.companions import companions
from clip_client.dedup.files.directories import DirectorySet
from clip_client.dedup.files.scanner import Scan, scan
from clip_client.dedup.store.store import Store
from clip_client.dedup.types import DuplicateReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from clip_client._embedder import Embedder
    from clip_client.dedup.features.collect import CollectedFeatures
    from clip_client.dedup.types import OnProgress, PhotoFile, RecallEstimate

    Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

DEFAULT_HASH_BITS: Final = 3
"""Bits of 64 in which two perceptual hashes may differ. In a collection of 23.5 million pictures hashes that differ in
3 bits at most belonged to the same picture "with high probability" (czkawka, issue 61)."""


async def find_duplicates(
    clip: Embedder,
    paths: Paths | Scan,
    *,
    threshold: float | None = None,
    near_identical: float | None = None,
    hash_bits: int = DEFAULT_HASH_BITS,
    references: Iterable[str | os.PathLike[str]] = (),
    keep: Sequence[str] = DEFAULT_RULES,
    store: Store | None = None,
    on_progress: OnProgress | None = None,
) -> DuplicateReport:
    """Find the photos below ``paths`` that show the same: files and folders, or what :func:`scan` returned for them.

    Two photos are alike if they have the same bytes or the same pixels, if at most ``hash_bits`` bits of their
    perceptual hashes differ (-1 turns this test off), or if the cosine of their vectors is at least ``threshold``
    (by default what :func:`thresholds_for` returns for the model; ``near_identical`` replaces that of the stricter
    tier). Pictures of nearly one colour are compared by bytes and pixels only, and RAW files without a preview by
    their bytes. Folders in ``references`` are searched too (a :class:`Scan` already includes them), and their photos
    are kept before all others. ``keep`` names the rules that choose the kept photo (``KeepRules``). With a ``store``
    nothing is read or embedded twice, and photos that a person declared different never share a group. The result does
    not depend on the order of ``paths``. The report lists the files that fail; they affect no other file.

    ``on_progress(what, done, total)`` is called on the event loop; the total is None while it is not known. Raises
    ValueError for a threshold outside 0 to 1 or an unknown rule, StoreError, and what ``ClipClient.embed_stream``
    raises if the server fails.
    """
    rules = KeepRules(keep)
    if not -1 <= hash_bits <= 16:
        raise ValueError(f"perceptual hashes may differ in at most 16 bits (-1: not used), got {hash_bits}")
    model = await clip.model()
    thresholds = thresholds_for(model.id, threshold, near_identical=near_identical)
    progress = on_progress or (lambda what, done, total: None)
    kept_folders = [os.fsdecode(path) for path in references]
    if isinstance(paths, Scan):
        found = paths
    else:
        named = [os.fsdecode(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
        found = await to_thread.run_sync(lambda: scan([*named, *kept_folders], raw=True))

    with nullcontext(store) if store is not None else Store() as opened:
        collected = await collect_features(clip, found.files, opened, progress)
        progress("comparing", 0, None)
        contents, undecodable = await to_thread.run_sync(collected.comparable)
        pixels, pixels_decoded = await to_thread.run_sync(_number_by_pixels, collected, contents, opened)
        cannot_link = await to_thread.run_sync(_cannot_link, contents, opened)

    def compare() -> tuple[Comparison, RecallEstimate]:
        has_hash = collected.are_pictures(contents) & ~collected.features.column("is_flat", contents)
        hashes = collected.features.column("perceptual_hash", contents)
        vectors = collected.vectors.in_order(contents)
        vectors[~has_hash] = np.nan
        alike = UnionFind(len(contents))
        estimate = join_vectors(alike, vectors, thresholds.similar)
        if hash_bits >= 0:
            join_hashes(alike, np.flatnonzero(has_hash), hashes, hash_bits)
        _, firsts, which = np.unique(pixels, return_index=True, return_inverse=True)
        alike.join(np.arange(len(contents)), firsts[which])
        components = alike.components()
        comparison = Comparison(
            candidates=_candidates(collected, contents, components, found, DirectorySet(kept_folders), rules),
            vectors=vectors,
            pixels=pixels,
            hashes=hashes,
            has_hash=has_hash,
            hash_bits=hash_bits,
            components=components,
            cannot_link=cannot_link,
            rules=rules,
        )
        return comparison, estimate

    comparison, estimate = await to_thread.run_sync(compare)
    groups = await to_thread.run_sync(make_groups, comparison, thresholds)
    progress("comparing", len(found.files), len(found.files))
    not_compared = [*collected.failed, *undecodable]
    return DuplicateReport(
        model=model.id,
        thresholds=thresholds,
        compared=len(found.files) - len(not_compared),
        groups=tuple(sorted(groups, key=lambda group: os.fsencode(group.keep))),
        failed=tuple(sorted([*not_compared, *found.failed], key=lambda failure: os.fsencode(failure.path))),
        work=replace(collected.stats, pixels_decoded=pixels_decoded),
        coverage=estimate,
        links=found.links,
        skipped=found.skipped,
        bytes_only=tuple(collected.paths_with_code(BYTES_ONLY)),
    )


def _number_by_pixels(
    collected: CollectedFeatures, contents: Sequence[str], store: Store
) -> tuple[NDArray[np.intp], int]:
    """Return (N,) numbers, equal for contents of equal pixels, and how many contents were decoded in full for it.

    Only contents that may have equal pixels are decoded, once per store.
    """
    numbers = np.arange(len(contents))
    rows = np.flatnonzero(collected.are_pictures(contents))
    pictures = [contents[row] for row in rows.tolist()]
    column = collected.features.column
    sizes = np.stack([column(side, pictures) for side in ("width", "height")], axis=1)
    facts = (column(name, pictures) for name in ("perceptual_hash", "is_scaled", "is_flat"))
    candidates = rows[pixel_candidates(sizes, *facts)].tolist()
    if not candidates:
        return numbers, 0
    paths = {contents[row]: collected.copies[contents[row]][0].path for row in candidates}
    hashes, decoded = pixel_hashes(paths, store)
    first_with: dict[str, int] = {}
    for row in candidates:
        if pixels := hashes[contents[row]]:
            numbers[row] = first_with.setdefault(pixels, row)
    return numbers, decoded


def _cannot_link(contents: Sequence[str], store: Store) -> CannotLink:
    """Return the rows that a person declared to be different."""
    decisions = store.decisions.all()
    decided = frozenset[str]().union(*(decision.contents for decision in decisions))
    rows = {sha256: row for row, sha256 in enumerate(contents) if sha256 in decided}
    present = (sorted(rows[sha256] for sha256 in decision.contents & rows.keys()) for decision in decisions)
    return CannotLink(np.array(some, dtype=np.intp) for some in present)


def _candidates(
    collected: CollectedFeatures,
    contents: Sequence[str],
    components: Iterable[NDArray[np.intp]],
    found: Scan,
    references: DirectorySet,
    rules: KeepRules,
) -> dict[int, list[Candidate]]:
    """Return row -> the files of that content, best first, for each content that is alike to another or has copies."""
    rows = {row for row, sha256 in enumerate(contents) if len(collected.copies[sha256]) > 1}
    rows.update(*(component.tolist() for component in components))
    files = {row: collected.copies[contents[row]] for row in sorted(rows)}
    in_libraries = found.in_libraries
    plain = (file.path for copies in files.values() for file in copies if file.path not in in_libraries)
    companions_of = companions(plain) | {path: photo.companions for path, photo in in_libraries.items()}

    def candidate(file: PhotoFile, sha256: str) -> Candidate:
        return Candidate(
            path=file.path,
            sha256=sha256,
            size_bytes=file.size_bytes,
            mtime_ns=file.mtime_ns,
            features=collected.features[sha256],
            is_reference=references.contains(file.path),
            is_by_link=file.path in found.links.only_by_link,
            companions=tuple(companion.kind for companion in companions_of.get(file.path, ())),
            in_library=in_libraries.get(file.path),
        )

    return {
        row: sorted((candidate(file, contents[row]) for file in copies), key=rules.rank)
        for row, copies in files.items()
    }
