"""From the features of contents to groups: the same steps for a whole search and for the part of one on a cluster."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.aligned import PairSource
from clip_client.dedup.compare.cannot_link import CannotLink
from clip_client.dedup.compare.groups import Compared, make_groups
from clip_client.dedup.compare.keep_rules import KeepRules, best_copies_first, converted_from_lossy
from clip_client.dedup.compare.partitioned_join import join_vectors
from clip_client.dedup.compare.pixel_candidates import pixel_candidates
from clip_client.dedup.compare.similarity_join import join_hashes
from clip_client.dedup.compare.union_find import UnionFind
from clip_client.dedup.features.pixel_hash import pixel_hashes
from clip_client.dedup.files.companions import companions
from clip_client.dedup.files.directories import DirectorySet
from clip_client.dedup.files.reading import PLAIN_READER
from clip_client.dedup.photo import Photo
from clip_client.dedup.proving import Verification, verified

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client.dedup.features.collect import CollectedFeatures
    from clip_client.dedup.files.reading import PhotoReader
    from clip_client.dedup.group import DuplicateGroup
    from clip_client.dedup.store.decisions import Decision
    from clip_client.dedup.store.store import Store
    from clip_client.dedup.types import (
        LibraryPhoto,
        OnProgress,
        PhotoFile,
        RecallEstimate,
        Thresholds,
    )

OFF, CANDIDATES = "off", "candidates"
VERIFY_MODES: Final = (OFF, CANDIDATES)
"""What is aligned: nothing, or the photos that may be copies."""


def check_group_rules(keep: Sequence[str], hash_bits: int, verify: str) -> None:
    """Raise ValueError for an unknown keep rule or ``verify``, and for more than 16 ``hash_bits``."""
    KeepRules(keep)
    if not -1 <= hash_bits <= 16:
        raise ValueError(f"perceptual hashes may differ in at most 16 bits (-1: not used), got {hash_bits}")
    if verify not in VERIFY_MODES:
        raise ValueError(f"verify is one of {', '.join(VERIFY_MODES)}, got {verify!r}")


@dataclass(frozen=True, kw_only=True)
class GroupRules:
    """What decides about groups besides the features of the photos. A cluster's workers get a copy."""

    thresholds: Thresholds
    hash_bits: int
    keep: tuple[str, ...]
    references: tuple[str, ...]
    decisions: tuple[Decision, ...]
    verify: str
    in_libraries: Mapping[str, LibraryPhoto] = field(default_factory=dict)
    """Path -> photo in a library of Apple Photos."""
    only_by_link: frozenset[str] = frozenset()
    """Paths of photos that only a link leads to."""


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """The groups, and what was done to find them."""

    groups: tuple[DuplicateGroup, ...]
    """Ordered by the path of the kept photo."""
    recall: RecallEstimate
    pair_sources: tuple[PairSource, ...] = ()
    note: str = ""
    """For people: why no copy could be verified; empty if nothing hindered it."""
    pixels_decoded: int = 0
    """Contents that were decoded at full size, to compare their pixels."""
    keypoints: int = 0
    """Contents that were prepared for their alignment."""
    aligned: int = 0
    """Pairs that were aligned."""

    @classmethod
    def combine(cls, parts: Sequence[Grouped], recall: RecallEstimate) -> Grouped:
        """Return what was found in all ``parts`` of a search; no photo is in two of them."""
        counts: dict[str, Counter[str]] = {}
        for source in (source for part in parts for source in part.pair_sources):
            numbers = {"pairs": source.pairs, "aligned": source.aligned, "proved": source.proved}
            counts.setdefault(source.name, Counter()).update(numbers)
        groups = (group for part in parts for group in part.groups)
        return cls(
            groups=tuple(sorted(groups, key=lambda group: os.fsencode(group.keep))),
            recall=recall,
            pair_sources=tuple(PairSource(name=name, **numbers) for name, numbers in counts.items()),
            note=next((part.note for part in parts if part.note), ""),
            pixels_decoded=sum(part.pixels_decoded for part in parts),
            keypoints=sum(part.keypoints for part in parts),
            aligned=sum(part.aligned for part in parts),
        )


GroupContents = Callable[["CollectedFeatures", Sequence[str], GroupRules, "Store", "OnProgress"], Grouped]
"""``group(collected, contents, rules, store, on_progress)`` divides ``contents`` into groups, as :func:`group_contents`
does."""


def group_contents(
    collected: CollectedFeatures,
    contents: Sequence[str],
    rules: GroupRules,
    store: Store,
    on_progress: OnProgress,
    *,
    reader: PhotoReader = PLAIN_READER,
) -> Grouped:
    """Divide ``contents``, SHA-256 in hexadecimal, into groups; this empties the vectors of ``collected``.

    ``reader`` reads photos again, for their pixels and keypoints, which ``store`` keeps. Raises StoreError.
    """
    keep = KeepRules(rules.keep)
    candidates_of = _CandidatesOf(collected, contents, rules, keep)
    pixels, decoded = _number_by_pixels(collected, contents, store, reader)
    comparison, recall = _compare(collected, contents, rules, keep, pixels, candidates_of)
    if rules.verify == OFF:
        groups, verification = make_groups(comparison, rules.thresholds), Verification(comparison)
    else:
        with verified(
            comparison, contents, collected, candidates_of, rules.thresholds, store, on_progress, reader
        ) as verification:
            groups = make_groups(verification.comparison, rules.thresholds)
    return Grouped(
        groups=tuple(groups),
        recall=recall,
        pair_sources=verification.pair_sources,
        note=verification.note,
        pixels_decoded=decoded,
        keypoints=verification.keypoints,
        aligned=verification.aligned,
    )


def _compare(
    collected: CollectedFeatures,
    contents: Sequence[str],
    rules: GroupRules,
    keep: KeepRules,
    pixels: NDArray[np.intp],
    candidates_of: _CandidatesOf,
) -> tuple[Compared, RecallEstimate]:
    """Join what is alike by vectors, hashes and pixels."""
    has_hash = collected.are_pictures(contents) & ~collected.features.column("is_flat", contents)
    hashes = collected.features.column("perceptual_hash", contents)
    vectors = collected.vectors.in_order(contents)
    vectors[~has_hash] = np.nan
    alike = UnionFind(len(contents))
    recall = join_vectors(alike, vectors, rules.thresholds.similar)
    if rules.hash_bits >= 0:
        join_hashes(alike, np.flatnonzero(has_hash), hashes, rules.hash_bits)
    _, firsts, which = np.unique(pixels, return_index=True, return_inverse=True)
    alike.join(np.arange(len(contents)), firsts[which])
    components = alike.components()
    rows = {row for row, sha256 in enumerate(contents) if len(collected.copies[sha256]) > 1}
    candidates = candidates_of(rows.union(*(component.tolist() for component in components)))
    pictures: dict[int, list[Photo]] = {}
    for row, files in candidates.items():
        pictures.setdefault(int(pixels[row]), []).append(files[0])
    comparison = Compared(
        candidates=candidates,
        vectors=vectors,
        pixels=pixels,
        hashes=hashes,
        has_hash=has_hash,
        hash_bits=rules.hash_bits,
        components=components,
        cannot_link=CannotLink.from_decisions(contents, rules.decisions),
        rules=KeepRules(keep.names, converted=converted_from_lossy(pictures.values())),
    )
    return comparison, recall


def _number_by_pixels(
    collected: CollectedFeatures, contents: Sequence[str], store: Store, reader: PhotoReader
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
    hashes, decoded = pixel_hashes(paths, store, reader)
    first_with: dict[str, int] = {}
    for row in candidates:
        if pixels := hashes[contents[row]]:
            numbers[row] = first_with.setdefault(pixels, row)
    return numbers, decoded


class _CandidatesOf:
    """Returns row -> the files of that content that are compared, best first, for each of some rows."""

    def __init__(
        self, collected: CollectedFeatures, contents: Sequence[str], rules: GroupRules, keep: KeepRules
    ) -> None:
        self._collected = collected
        self._contents = contents
        self._rules = rules
        self._keep = keep
        self._references = DirectorySet(rules.references)

    def __call__(self, rows: Collection[int]) -> dict[int, list[Photo]]:
        in_libraries = self._rules.in_libraries
        files = {row: self._collected.copies[self._contents[row]] for row in sorted(rows)}
        plain = (file.path for copies in files.values() for file in copies if file.path not in in_libraries)
        companions_of = companions(plain) | {path: photo.companions for path, photo in in_libraries.items()}

        def photo(file: PhotoFile, sha256: str, files: int) -> Photo:
            return Photo(
                path=file.path,
                sha256=sha256,
                size_bytes=file.size_bytes,
                mtime_ns=file.mtime_ns,
                features=self._collected.features[sha256],
                files=files,
                is_reference=self._references.contains(file.path),
                is_by_link=file.path in self._rules.only_by_link,
                companions=companions_of.get(file.path, ()),
                in_library=in_libraries.get(file.path),
            )

        copies = {row: [photo(file, self._contents[row], len(own)) for file in own] for row, own in files.items()}
        return best_copies_first(copies, self._keep, self._rules.decisions)
