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
from clip_client.dedup.alignment.proofs import Proofs
from clip_client.dedup.compare.star_groups import minimum_similarity, similarities_to, star_groups
from clip_client.dedup.features.capture_time import classify_burst
from clip_client.dedup.group import DuplicateGroup, Member
from clip_client.dedup.types import EXACT, SAME_PIXELS, SIMILAR, TIERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from clip_client.dedup.compare.cannot_link import CannotLink
    from clip_client.dedup.compare.keep_rules import KeepRules
    from clip_client.dedup.compare.star_groups import Evidence
    from clip_client.dedup.photo import Photo
    from clip_client.dedup.types import Thresholds


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """What a search knows about its contents; element i of each array is about row i."""

    candidates: Mapping[int, Sequence[Photo]]
    """Row -> the files of that content, best first; a row with one file that nothing else is like may be missing."""
    evidence: Evidence
    """Pictures of nearly one colour have neither a vector nor a hash."""
    thresholds: Thresholds
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
            best = best_of.setdefault(int(self.evidence.pixels[row]), row)
            if best != row and self.may_share(best, row):
                better[row] = best
        return better

    def with_doubts(self, doubts: Mapping[int, str]) -> Compared:
        """Return the comparison with these rows, and those of the same pixels, in doubt, too: row -> why."""
        by_pixels = {int(self.evidence.pixels[row]): why for row, why in doubts.items()}
        doubted = dict(self.doubts) | {
            files[0].sha256: why
            for row, files in self.candidates.items()
            if (why := by_pixels.get(int(self.evidence.pixels[row])))
        }
        return replace(self, doubts=doubted, rules=self.rules.with_doubts(doubted))


def other_shot(kept: Photo, other: Photo) -> str:
    """Return ``BURST`` or ``SAME_SCENE`` if times of capture or exposures show that two photos are two pictures."""
    theirs, ours = kept.features, other.features
    same_form = (ours.width, ours.height, ours.format) == (theirs.width, theirs.height, theirs.format)
    return classify_burst(theirs.capture_time, ours.capture_time, same_form=same_form, names=(kept.name, other.name))


def stars(comparison: Compared) -> dict[int, list[int]]:
    """Return kept row -> the rows that are alike to it by vector or hash.

    Rows of the same pixels, and rows that an alignment proved to be copies, are left out: they follow another row.
    """
    followers, found = _copies(comparison), {}
    for component in comparison.components:
        rows = (row for row in component.tolist() if row in comparison.candidates and row not in followers)
        best_first = np.array(comparison.best_first(rows), dtype=np.intp)
        for star in star_groups(
            comparison.evidence.of(best_first),
            comparison.thresholds.similar,
            most_bits=comparison.hash_bits,
            cannot_link=comparison.cannot_link.among(best_first),
        ):
            keep, *members = best_first[[star.keep, *star.members]].tolist()
            found[keep] = members
    return found


def make_groups(comparison: Compared, alike: Mapping[int, Sequence[int]]) -> tuple[DuplicateGroup, ...]:
    """Divide the rows into groups around a kept photo, ordered by its path.

    ``alike`` is what :func:`stars` returned. A row of several files that is in no group is a group itself.
    """
    copies = _copies(comparison)
    followers = {row: keep for keep, rows in alike.items() for row in rows} | copies
    groups = [
        _group(comparison, rows, copies)
        for rows in _followers(comparison, followers)
        if len(rows) > 1 or len(comparison.candidates[rows[0]]) > 1
    ]
    return tuple(sorted(groups, key=lambda group: os.fsencode(group.keep)))


def _copies(comparison: Compared) -> dict[int, int]:
    """Return row -> a better row of the same pixels, or one that an alignment proved it to be a copy of."""
    proofs = ((row, comparison.proofs.best(row)) for row in comparison.candidates)
    return {row: proof.kept for row, proof in proofs if proof is not None} | comparison.same_pixels()


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


def _group(comparison: Compared, rows: Sequence[int], copies: Mapping[int, int]) -> DuplicateGroup:
    """Make the group of the contents ``rows``, the kept one first; ``copies`` maps rows to better ones."""
    keep, others, inside = rows[0], np.array(rows[1:], dtype=np.intp), set(rows)
    within = {row: copies[row] for row in rows if copies.get(row) in inside}
    vectors = comparison.evidence.vectors
    similarities = similarities_to(vectors, keep, others)
    order = np.argsort(-similarities, kind="stable")
    in_order = [keep, *others[order].tolist()]
    members = [
        _member(comparison, keep, row, photo, similarity, within.get(row))
        for row, similarity in zip(in_order, [1.0, *similarities[order].tolist()], strict=True)
        for photo in comparison.candidates[row]
    ]
    kept = comparison.candidates[keep][0]
    not_kept = (photo for row in rows for photo in comparison.candidates[row] if photo is not kept)
    known = vectors[[row for row in rows if np.isfinite(vectors[row]).all()]]
    return DuplicateGroup(
        tier=max((member.tier for member in members), key=TIERS.index),
        min_similarity=minimum_similarity(known),
        members=tuple(members),
        reason=comparison.rules.reason(kept, *not_kept),
    )


def _member(comparison: Compared, keep: int, row: int, photo: Photo, similarity: float, better: int | None) -> Member:
    """Make the member for a file of ``row``; ``better`` is a row of its group that it is a copy of."""
    kept, best_file = comparison.candidates[keep][0], comparison.candidates[row][0]
    similar, most_bits = comparison.thresholds.similar, comparison.hash_bits
    evidence, proofs = comparison.evidence, comparison.proofs
    same_pixels = evidence.pixels[row] == evidence.pixels[keep]
    is_twin = better is not None and evidence.pixels[better] == evidence.pixels[row]
    alignment = None if same_pixels else proofs.between(row, keep)
    if alignment is None and not same_pixels and better is not None and is_twin:
        alignment = proofs.between(better, keep)
    if row == keep:
        tier = EXACT
        matches = [] if photo is kept else [Match(test="bytes", value=1, threshold=1)]
    else:
        tier = SAME_PIXELS if same_pixels else SIMILAR if alignment is None else alignment.tier
        matches = [Match(test="pixels", value=1, threshold=1)] if same_pixels else []
        if alignment is not None:
            matches.append(Match(test="alignment", value=1, threshold=1, alignment=alignment))
        bits = (int(evidence.hashes[row]) ^ int(evidence.hashes[keep])).bit_count()
        if evidence.has_hash[row] and evidence.has_hash[keep] and bits <= most_bits:
            matches.append(Match(test="perceptual hash", value=bits, threshold=most_bits))
        if similarity >= similar:
            matches.append(Match(test="embedding", value=similarity, threshold=similar))
    copy_of, copy_tier, copy_alignment = "", "", None
    if not same_pixels and better is not None and is_twin:
        copy_of, copy_tier = comparison.candidates[better][0].path, SAME_PIXELS
    elif not same_pixels and photo is not best_file:
        # The backup of a frame of a burst is no copy of the kept frame, but it is a copy of its own frame.
        copy_of, copy_tier = best_file.path, EXACT
    elif better is not None and better != keep and (copy_alignment := proofs.between(row, better)):
        copy_of, copy_tier = comparison.candidates[better][0].path, copy_alignment.tier
    return Member(
        photo=photo,
        # Only the pixels of two pictures of one colour were compared.
        similarity=1.0 if np.isnan(similarity) else similarity,
        tier=tier,
        matches=tuple(matches),
        other_shot="" if same_pixels else other_shot(kept, photo),
        copy_of=copy_of,
        copy_tier=copy_tier,
        copy_alignment=copy_alignment,
        cannot_verify=comparison.cannot_verify.get(photo.sha256, ""),
        doubt=comparison.doubts.get(photo.sha256, ""),
    )
