"""Turns a comparison into the groups of a report, each around a photo to keep.

Photos of the same pixels, and photos that an alignment proved to be copies, follow the best photo of their picture. The
pictures themselves are grouped by their vectors and perceptual hashes.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from clip_client.dedup.aligned import Match
from clip_client.dedup.alignment.proofs import THRESHOLDS, Proofs
from clip_client.dedup.compare.similarity_join import bits_that_differ
from clip_client.dedup.compare.star_groups import Evidence, minimum_similarity, similarities_to, star_groups
from clip_client.dedup.features.capture_time import classify_burst
from clip_client.dedup.group import DuplicateGroup, Member
from clip_client.dedup.types import EXACT, SAME_PIXELS, SIMILAR, TIERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from clip_client.dedup.aligned import Alignment
    from clip_client.dedup.compare.cannot_link import CannotLink
    from clip_client.dedup.compare.keep_rules import KeepRules
    from clip_client.dedup.photo import Photo
    from clip_client.dedup.types import Thresholds


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """What a search knows about its contents; element i of each array is about row i."""

    candidates: Mapping[int, Sequence[Photo]]
    """Row -> the files of that content, best first; a row with one file that nothing else is like may be missing."""
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
    proofs: Proofs = field(default_factory=Proofs)
    """Which rows an alignment proved to be copies."""
    doubts: Mapping[str, str] = field(default_factory=dict)
    """Content (SHA-256) -> why it is probably made from another one."""
    cannot_verify: Mapping[str, str] = field(default_factory=dict)
    """Content (SHA-256) -> why it could not be aligned with any other."""

    def may_share(self, first: int, second: int) -> bool:
        """Tell whether two rows may be in one group: False if a person declared them to be different."""
        return set(self.cannot_link.sets_of(first)).isdisjoint(self.cannot_link.sets_of(second))

    def best_first(self, rows: Iterable[int]) -> list[int]:
        """Sort rows by their best files, whatever the order of the input."""
        return sorted(rows, key=lambda row: self.rules.rank(self.candidates[row][0]))

    def same_pixels(self) -> dict[int, int]:
        """Return row -> the best row with its pixels, for each row that is not the best itself."""
        best_of: dict[int, int] = {}
        better = {}
        for row in self.best_first(self.candidates):
            best = best_of.setdefault(int(self.pixels[row]), row)
            if best != row and self.may_share(best, row):
                better[row] = best
        return better

    def with_doubts(self, doubts: Mapping[int, str]) -> Compared:
        """Return the comparison with these rows, and those of the same pixels, in doubt, too: row -> why."""
        by_pixels = {int(self.pixels[row]): why for row, why in doubts.items()}
        doubted = dict(self.doubts) | {
            files[0].sha256: why
            for row, files in self.candidates.items()
            if (why := by_pixels.get(int(self.pixels[row])))
        }
        return replace(self, doubts=doubted, rules=self.rules.with_doubts(doubted))

    def other_shot(self, kept: Photo, other: Photo) -> str:
        """Return ``BURST`` or ``SAME_SCENE`` if times of capture or exposures show that two photos are two pictures."""
        theirs, ours = kept.features, other.features
        same_form = (ours.width, ours.height, ours.format) == (theirs.width, theirs.height, theirs.format)
        return classify_burst(
            theirs.capture_time, ours.capture_time, same_form=same_form, names=(kept.name, other.name)
        )


def make_groups(comparison: Compared, thresholds: Thresholds) -> list[DuplicateGroup]:
    """Divide the rows into groups around a kept photo. A row of several files that is in no group is a group itself."""
    better = _same_picture(comparison)
    alike = _alike(comparison, thresholds, [row for row in comparison.candidates if row not in better])
    better |= {row: proof.kept for row in alike if (proof := comparison.proofs.best(row)) is not None}
    groups = [
        _group(comparison, rows, better, thresholds)
        for rows in _followers(comparison, alike | better)
        if len(rows) > 1 or len(comparison.candidates[rows[0]]) > 1
    ]
    return sorted(groups, key=lambda group: os.fsencode(group.keep))


def _same_picture(comparison: Compared) -> dict[int, int]:
    """Return row -> a better row of the same pixels, or one that an alignment proved it to be a copy of."""
    proofs = ((row, comparison.proofs.best(row)) for row in comparison.candidates)
    return {row: proof.kept for row, proof in proofs if proof is not None} | comparison.same_pixels()


def _alike(comparison: Compared, thresholds: Thresholds, rows: Iterable[int]) -> dict[int, int]:
    """Return those of ``rows`` that are alike to a better one by vector or hash -> that one. Align both."""
    evidence = Evidence(
        vectors=comparison.vectors, pixels=comparison.pixels, hashes=comparison.hashes, has_hash=comparison.has_hash
    )
    chosen, alike = set(rows), {}
    for component in comparison.components:
        best_first = np.array(comparison.best_first(chosen.intersection(component.tolist())), dtype=np.intp)
        stars = star_groups(
            evidence.of(best_first),
            thresholds.similar,
            most_bits=comparison.hash_bits,
            cannot_link=comparison.cannot_link.among(best_first),
        )
        for star in stars:
            keep, *members = best_first[[star.keep, *star.members]].tolist()
            alike.update(dict.fromkeys(members, keep))
            # The thresholds only say what is worth a look.
            comparison.proofs.align(keep, dict.fromkeys(members, THRESHOLDS))
    return alike


def _followers(comparison: Compared, better: Mapping[int, int]) -> list[list[int]]:
    """Return the rows of each group, the best first: each row follows its better one to the best of all.

    A row that follows a worse one comes after it. Rows that a person declared to be different share no group: the
    better one stays.
    """
    best_of: dict[int, int] = {}
    groups: dict[int, list[int]] = {}
    declared: defaultdict[int, set[int]] = defaultdict(set)
    waiting: defaultdict[int, list[int]] = defaultdict(list)
    for first in comparison.best_first(comparison.candidates):
        if first in better and better[first] not in best_of:
            waiting[better[first]].append(first)
            continue
        ready = [first]
        while ready:
            row = ready.pop()
            best = best_of[better[row]] if row in better else row
            sets = comparison.cannot_link.sets_of(row)
            if not declared[best].isdisjoint(sets):
                best = row
            best_of[row] = best
            groups.setdefault(best, []).append(row)
            declared[best].update(sets)
            ready += reversed(waiting.pop(row, ()))
    return list(groups.values())


def _group(
    comparison: Compared, rows: Sequence[int], better: Mapping[int, int], thresholds: Thresholds
) -> DuplicateGroup:
    """Make the group of the contents ``rows``, the kept one first."""
    keep, others, inside = rows[0], np.array(rows[1:], dtype=np.intp), set(rows)
    within = {row: better[row] for row in rows if better.get(row) in inside}
    similarities = similarities_to(comparison.vectors, keep, others)
    order = np.argsort(-similarities, kind="stable")
    in_order = [keep, *others[order].tolist()]
    members = [
        _member(comparison, keep, row, photo, similarity, thresholds, within.get(row))
        for row, similarity in zip(in_order, [1.0, *similarities[order].tolist()], strict=True)
        for photo in comparison.candidates[row]
    ]
    kept = comparison.candidates[keep][0]
    not_kept = (photo for row in rows for photo in comparison.candidates[row] if photo is not kept)
    return DuplicateGroup(
        tier=max((member.tier for member in members), key=TIERS.index),
        min_similarity=_smallest(comparison, rows),
        members=tuple(members),
        reason=comparison.rules.reason(kept, *not_kept),
    )


def _smallest(comparison: Compared, rows: Sequence[int]) -> float:
    """Return the smallest cosine of any two of the rows that have a vector."""
    vectors = comparison.vectors[list(rows)]
    return minimum_similarity(vectors[np.isfinite(vectors).all(axis=1)])


def _member(
    comparison: Compared,
    keep: int,
    row: int,
    photo: Photo,
    similarity: float,
    thresholds: Thresholds,
    better: int | None,
) -> Member:
    kept, best_file = comparison.candidates[keep][0], comparison.candidates[row][0]
    same_pixels = comparison.pixels[row] == comparison.pixels[keep]
    alignment = None if same_pixels else _alignment(comparison, row, keep, better)
    if row == keep:
        tier = EXACT
        matches: list[Match] = [] if photo is kept else [Match(test="bytes", value=1, threshold=1)]
    else:
        matches = [Match(test="pixels", value=1, threshold=1)] if same_pixels else []
        if alignment is not None:
            matches.append(Match(test="alignment", value=1, threshold=1, alignment=alignment))
        if comparison.has_hash[row] and comparison.has_hash[keep]:
            bits = int(bits_that_differ(comparison.hashes[[row]], comparison.hashes[[keep]])[0])
            if bits <= comparison.hash_bits:
                matches.append(Match(test="perceptual hash", value=bits, threshold=comparison.hash_bits))
        if similarity >= thresholds.similar:
            matches.append(Match(test="embedding", value=similarity, threshold=thresholds.similar))
        tier = SAME_PIXELS if same_pixels else SIMILAR if alignment is None else alignment.tier
    copy_of, copy_tier, copy_alignment = "", "", None
    if not same_pixels and better is not None and comparison.pixels[better] == comparison.pixels[row]:
        copy_of, copy_tier = comparison.candidates[better][0].path, SAME_PIXELS
    elif not same_pixels and photo is not best_file:
        # The backup of a frame of a burst is no copy of the kept frame, but it is a copy of its own frame.
        copy_of, copy_tier = best_file.path, EXACT
    elif better is not None and better != keep and (copy_alignment := comparison.proofs.between(row, better)):
        copy_of, copy_tier = comparison.candidates[better][0].path, copy_alignment.tier
    return Member(
        photo=photo,
        # Only the pixels of two pictures of one colour were compared.
        similarity=1.0 if np.isnan(similarity) else similarity,
        tier=tier,
        matches=tuple(matches),
        other_shot="" if same_pixels else comparison.other_shot(kept, photo),
        copy_of=copy_of,
        copy_tier=copy_tier,
        copy_alignment=copy_alignment,
        cannot_verify=comparison.cannot_verify.get(photo.sha256, ""),
        doubt=comparison.doubts.get(photo.sha256, ""),
    )


def _alignment(comparison: Compared, row: int, keep: int, better: int | None) -> Alignment | None:
    """Return the alignment of a row, or of a better one with its pixels, with the kept row."""
    own = comparison.proofs.between(row, keep)
    if own is None and better is not None and comparison.pixels[better] == comparison.pixels[row]:
        return comparison.proofs.between(better, keep)
    return own
