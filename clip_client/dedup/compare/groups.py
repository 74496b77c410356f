"""Groups of a report, each around a photo to keep, from pairs and proofs."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from clip_client.dedup.aligned import Alignment, Match
from clip_client.dedup.compare.compared import Compared, other_shot
from clip_client.dedup.compare.neighbours import HASH_BITS
from clip_client.dedup.compare.proofs import Proofs
from clip_client.dedup.compare.star_groups import minimum_similarity, similarities_to, star_groups
from clip_client.dedup.group import DuplicateGroup, Member
from clip_client.dedup.photo import Photo
from clip_client.dedup.types import EXACT, SAME_PIXELS, SIMILAR, TIERS


def stars(compared: Compared, proofs: Proofs) -> dict[int, list[int]]:
    """Return kept row -> the rows alike to it by vector or hash, without copies, which follow another row."""
    followers, found = _copies(compared, proofs), {}
    for component in compared.components:
        rows = (row for row in component.tolist() if row in compared.candidates and row not in followers)
        best_first = np.array(compared.best_first(rows), dtype=np.intp)
        found_here = star_groups(
            compared.evidence.of(best_first),
            compared.thresholds.similar,
            most_bits=HASH_BITS,
            cannot_link=compared.cannot_link.among(best_first),
        )
        for keep, members in found_here.items():
            found[int(best_first[keep])] = best_first[members].tolist()
    return found


def make_groups(compared: Compared, proofs: Proofs, alike: Mapping[int, Sequence[int]]) -> tuple[DuplicateGroup, ...]:
    copies = _copies(compared, proofs)
    followers = {row: keep for keep, rows in alike.items() for row in rows} | copies
    groups = [
        _group(compared, proofs, rows, copies)
        for rows in _followers(compared, followers)
        if len(rows) > 1 or len(compared.candidates[rows[0]]) > 1
    ]
    return tuple(sorted(groups, key=lambda group: os.fsencode(group.keep)))


def _copies(compared: Compared, proofs: Proofs) -> dict[int, int]:
    best = ((row, proofs.best(row)) for row in compared.candidates)
    return {row: kept for row, kept in best if kept is not None} | compared.same_pixels()


def _followers(compared: Compared, better: Mapping[int, int]) -> list[list[int]]:
    """Return the rows of each group, the best first: each row follows its better one to the best of all."""
    best_of: dict[int, int] = {}
    groups: dict[int, list[int]] = {}
    declared: defaultdict[int, set[int]] = defaultdict(set)
    waiting: defaultdict[int, list[int]] = defaultdict(list)
    for first in compared.best_first(compared.candidates):
        if first in better and better[first] not in best_of:
            waiting[better[first]].append(first)
            continue
        ready = [first]
        while ready:
            row = ready.pop()
            best = best_of[better[row]] if row in better else row
            sets = compared.cannot_link.sets_of(row)
            if not declared[best].isdisjoint(sets):
                best = row
            best_of[row] = best
            groups.setdefault(best, []).append(row)
            declared[best].update(sets)
            ready += reversed(waiting.pop(row, ()))
    return list(groups.values())


def _group(compared: Compared, proofs: Proofs, rows: Sequence[int], copies: Mapping[int, int]) -> DuplicateGroup:
    keep, others = rows[0], np.array(rows[1:], dtype=np.intp)
    vectors, inside = compared.evidence.vectors, compared.evidence.vectors[list(rows)]
    similarities = similarities_to(vectors, keep, others)
    order = np.argsort(-similarities, kind="stable")
    similarity_of = dict(zip([keep, *others[order].tolist()], [1.0, *similarities[order].tolist()], strict=True))
    members = members_around(compared, proofs, similarity_of, copies)
    kept = compared.candidates[keep][0]
    not_kept = (photo for row in rows for photo in compared.candidates[row] if photo is not kept)
    content = {row: compared.candidates[row][0].sha256 for row in rows}
    return DuplicateGroup(
        tier=max((member.tier for member in members), key=TIERS.index),
        min_similarity=minimum_similarity(inside[np.isfinite(inside).all(axis=1)]),
        members=members,
        reason=compared.rules.reason(kept, *not_kept),
        proofs={(content[row], content[other]): one for (row, other), one in proofs.among(set(rows)).items()},
    )


def members_around(
    compared: Compared, proofs: Proofs, similarities: Mapping[int, float], copies: Mapping[int, int]
) -> tuple[Member, ...]:
    """Return the members of a group. ``similarities``: row -> cosine with the kept row, which comes first."""
    keep = next(iter(similarities))
    return tuple(
        _member(compared, proofs, keep, row, photo, similarity, better if better in similarities else None)
        for row, similarity in similarities.items()
        for better in [copies.get(row)]
        for photo in compared.candidates[row]
    )


def _member(
    compared: Compared, proofs: Proofs, keep: int, row: int, photo: Photo, similarity: float, better: int | None
) -> Member:
    files, evidence = compared.candidates, compared.evidence
    kept, best_file = files[keep][0], files[row][0]
    same_pixels = evidence.pixels[row] == evidence.pixels[keep]
    is_twin = better is not None and not same_pixels and evidence.pixels[better] == evidence.pixels[row]
    alignment = None if same_pixels else proofs.between(row, keep)
    if alignment is None and better is not None and is_twin:
        alignment = proofs.between(better, keep)
    if row != keep:
        tier = SAME_PIXELS if same_pixels else SIMILAR if alignment is None else alignment.tier
        matches = tuple(_matches(compared, keep, row, similarity, alignment))
    else:
        tier, matches = EXACT, () if photo is kept else (Match(test="bytes", value=1, threshold=1),)
    copy_of, copy_tier, copy_alignment = "", "", None
    if better is not None and is_twin:
        copy_of, copy_tier = files[better][0].path, SAME_PIXELS
    elif not same_pixels and photo is not best_file:
        # The backup of a frame of a burst is not a copy of the kept frame, but of its own frame.
        copy_of, copy_tier = best_file.path, EXACT
    elif better is not None and better != keep and (copy_alignment := proofs.between(row, better)):
        copy_of, copy_tier = files[better][0].path, copy_alignment.tier
    return Member(
        photo=photo,
        # Only the pixels of two pictures of one colour were compared.
        similarity=1.0 if np.isnan(similarity) else similarity,
        tier=tier,
        matches=matches,
        other_shot="" if same_pixels else other_shot(kept, photo, is_proved=bool(alignment and alignment.is_proved)),
        copy_of=copy_of,
        copy_tier=copy_tier,
        copy_alignment=copy_alignment,
        cannot_verify=proofs.cannot_verify.get(photo.sha256, ""),
        doubt=compared.rules.doubts.get(photo.sha256, ""),
    )


def _matches(
    compared: Compared, keep: int, row: int, similarity: float, alignment: Alignment | None
) -> Iterator[Match]:
    evidence, similar = compared.evidence, compared.thresholds.similar
    if evidence.pixels[row] == evidence.pixels[keep]:
        yield Match(test="pixels", value=1, threshold=1)
    if alignment is not None:
        yield Match(test="alignment", value=1, threshold=1, alignment=alignment)
    bits = (int(evidence.hashes[row]) ^ int(evidence.hashes[keep])).bit_count()
    if evidence.has_hash[row] and evidence.has_hash[keep] and bits <= HASH_BITS:
        yield Match(test="perceptual hash", value=bits, threshold=HASH_BITS)
    if similarity >= similar:
        yield Match(test="embedding", value=similarity, threshold=similar)
