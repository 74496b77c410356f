"""Makes the groups of a report from components: which photo is kept, how sure each copy is, and why."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from clip_client.dedup.compare.similarity_join import bits_that_differ
from clip_client.dedup.compare.star_groups import Evidence, minimum_similarity, star_groups
from clip_client.dedup.features.capture_time import classify_burst
from clip_client.dedup.types import EXACT, NEAR_IDENTICAL, SAME_PIXELS, SIMILAR, TIERS, DuplicateGroup, Match, Member

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from clip_client.dedup.compare.cannot_link import CannotLink
    from clip_client.dedup.compare.keep_rules import Candidate, KeepRules
    from clip_client.dedup.types import Thresholds


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """What a search knows about its contents; element i of each array is about row i."""

    candidates: Mapping[int, Sequence[Candidate]]
    """Row -> the files of that content, best first; a row with one file and in no component may be missing."""
    vectors: NDArray[np.float32]
    """(N, D) unit rows; NaN for pictures of nearly one colour."""
    pixels: NDArray[np.intp]
    """(N,), equal for equal pixels."""
    hashes: NDArray[np.uint64]
    has_hash: NDArray[np.bool_]
    hash_bits: int
    components: Sequence[NDArray[np.intp]]
    """Rows of each connected component of two or more."""
    cannot_link: CannotLink
    """What people declared to be different."""
    rules: KeepRules


def make_groups(comparison: Comparison, thresholds: Thresholds) -> list[DuplicateGroup]:
    """Divide each component into groups around a kept photo, and group files of the same bytes that are in none."""
    evidence = Evidence(
        vectors=comparison.vectors, pixels=comparison.pixels, hashes=comparison.hashes, has_hash=comparison.has_hash
    )
    groups = []
    grouped: set[int] = set()
    for component in comparison.components:
        # Best photo first, whatever the order of the input.
        best_first = sorted(component.tolist(), key=lambda row: comparison.rules.rank(comparison.candidates[row][0]))
        rows = np.array(best_first)
        stars = star_groups(
            evidence.of(rows),
            thresholds.similar,
            most_bits=comparison.hash_bits,
            cannot_link=comparison.cannot_link.among(rows),
        )
        for star in stars:
            within = rows[[star.keep, *star.members]].tolist()
            grouped.update(within)
            groups.append(_group(comparison, within, (1.0, *star.similarities), thresholds))
    return groups + [
        _group(comparison, [row], (1.0,), thresholds)
        for row, files in sorted(comparison.candidates.items())
        if len(files) > 1 and row not in grouped
    ]


def _group(
    comparison: Comparison, rows: Sequence[int], similarities: Sequence[float], thresholds: Thresholds
) -> DuplicateGroup:
    """Make the group of the contents ``rows``, the kept one first; ``similarities`` are to the kept one."""
    kept = comparison.candidates[rows[0]][0]
    originals = _originals(comparison, rows)
    members = [
        _member(comparison, rows[0], row, candidate, similarity, thresholds, *originals.get(candidate.path, ("", "")))
        for row, similarity in zip(rows, similarities, strict=True)
        for candidate in comparison.candidates[row]
    ]
    vectors = comparison.vectors[list(rows)]
    smallest = minimum_similarity(vectors[np.isfinite(vectors).all(axis=1)])
    tier = max((member.tier for member in members), key=TIERS.index)
    if tier == NEAR_IDENTICAL and smallest < thresholds.near_identical:
        tier = SIMILAR
    others = [candidate for row in rows for candidate in comparison.candidates[row] if candidate is not kept]
    best_of_others = min(others, key=comparison.rules.rank)
    return DuplicateGroup(
        tier=tier, min_similarity=smallest, members=tuple(members), reason=comparison.rules.reason(kept, best_of_others)
    )


def _originals(comparison: Comparison, rows: Sequence[int]) -> dict[str, tuple[str, str]]:
    """Return the copies of pictures other than the kept one: path -> (path of the best file of that picture, tier).

    The backup of a frame of a burst is no copy of the kept frame, but it is a copy of its own frame.
    """
    same_picture: defaultdict[int, list[tuple[Candidate, int]]] = defaultdict(list)
    for row in rows:
        if comparison.pixels[row] != comparison.pixels[rows[0]]:
            same_picture[int(comparison.pixels[row])].extend((file, row) for file in comparison.candidates[row])
    originals = {}
    for files in same_picture.values():
        if len(files) > 1:
            best, of_best = min(files, key=lambda file: comparison.rules.rank(file[0]))
            for file, row in files:
                if file is not best:
                    originals[file.path] = (best.path, EXACT if row == of_best else SAME_PIXELS)
    return originals


def _member(
    comparison: Comparison,
    keep: int,
    row: int,
    candidate: Candidate,
    similarity: float,
    thresholds: Thresholds,
    copy_of: str,
    copy_tier: str,
) -> Member:
    kept = comparison.candidates[keep][0]
    same_pixels = comparison.pixels[row] == comparison.pixels[keep]
    if row == keep:
        tier = EXACT
        matches: list[Match] = [] if candidate is kept else [Match(test="bytes", value=1, threshold=1)]
    else:
        matches = [Match(test="pixels", value=1, threshold=1)] if same_pixels else []
        if comparison.has_hash[row] and comparison.has_hash[keep]:
            bits = int(bits_that_differ(comparison.hashes[[row]], comparison.hashes[[keep]])[0])
            if bits <= comparison.hash_bits:
                matches.append(Match(test="perceptual hash", value=bits, threshold=comparison.hash_bits))
        if similarity >= thresholds.similar:
            matches.append(Match(test="embedding", value=similarity, threshold=thresholds.similar))
        near = NEAR_IDENTICAL if similarity >= thresholds.near_identical else SIMILAR
        tier = SAME_PIXELS if same_pixels else near
    ours, theirs = candidate.features, kept.features
    same_form = (ours.width, ours.height, ours.format) == (theirs.width, theirs.height, theirs.format)
    moment = "" if same_pixels else classify_burst(theirs.capture_time, ours.capture_time, same_form=same_form)
    return Member(
        path=candidate.path,
        # Only the pixels of two pictures of one colour were compared.
        similarity=1.0 if np.isnan(similarity) else similarity,
        width=ours.width,
        height=ours.height,
        size_bytes=candidate.size_bytes,
        sha256=candidate.sha256,
        tier=tier,
        matches=tuple(matches),
        moment=moment,
        copy_of=copy_of,
        copy_tier=copy_tier,
        embedded=ours.embedded,
        embedded_digest=ours.embedded_digest,
        is_reference=candidate.is_reference,
        camera=ours.capture_time.camera,
        metadata=ours.metadata,
        in_library=candidate.in_library,
    )
