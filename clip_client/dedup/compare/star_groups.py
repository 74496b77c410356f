"""Divides similar photos into groups around a kept one.

Components chain: A is like B, B is like C, and A and C share a component although they differ. So each group inside a
component is a star: the best photo is kept, and each other member is like the kept photo itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from clip_client.dedup.compare.neighbours import Evidence, bits_that_differ
from clip_client.dedup.compare.similarity_join import block_pairs
from clip_client.dedup.store.decisions import Decision
from clip_client.dedup.types import Indices, Vectors

_DECIMALS: Final = 6
"""Similarities are rounded to this. The last bits of a float sum depend on how many rows are multiplied at once; they
must neither move a photo over the threshold nor show in a report. Float32 vectors carry no more."""

_BLOCK_ROWS: Final = 64


class CannotLink:
    """Sets of rows, each in ascending order; no two rows of one set may share a group."""

    def __init__(self, sets: Iterable[Indices] = ()) -> None:
        self._sets = [rows for rows in sets if len(rows) > 1]
        self._sets_of: defaultdict[int, list[int]] = defaultdict(list)
        for number, rows in enumerate(self._sets):
            for row in rows.tolist():
                self._sets_of[row].append(number)

    @classmethod
    def from_decisions(cls, contents: Sequence[str], decisions: Sequence[Decision]) -> CannotLink:
        decided = frozenset[str]().union(*(decision.contents for decision in decisions))
        rows = {sha256: row for row, sha256 in enumerate(contents) if sha256 in decided}
        present = (sorted(rows[sha256] for sha256 in decision.contents & rows.keys()) for decision in decisions)
        return cls(np.array(some, dtype=np.intp) for some in present)

    def sets_of(self, row: int) -> list[int]:
        return self._sets_of.get(row, [])

    def may_share(self, first: int, second: int) -> bool:
        return set(self.sets_of(first)).isdisjoint(self.sets_of(second))

    def after(self, row: int) -> Iterable[Indices]:
        """Yield, set by set, the rows after ``row`` that must not share a group with it."""
        for number in self.sets_of(row):
            rows = self._sets[number]
            yield rows[np.searchsorted(rows, row, side="right") :]

    def among(self, rows: Indices) -> CannotLink:
        if not self._sets:
            return self
        sets: defaultdict[int, list[int]] = defaultdict(list)
        for position, row in enumerate(rows.tolist()):
            for number in self.sets_of(row):
                sets[number].append(position)
        return CannotLink(np.array(positions) for positions in sets.values())


def star_groups(
    evidence: Evidence, threshold: float, *, most_bits: int, cannot_link: CannotLink
) -> dict[int, list[int]]:
    """Group rows that come best first: return kept row -> the other rows of its group, in order.

    Each member is alike to the kept row: their cosine is at least ``threshold``, their pixels are equal, or their
    hashes differ in at most ``most_bits`` bits. A row that is alike to no kept row is kept. Each other row joins the
    kept row that it is most similar to; equal pixels count as most similar.
    """
    nearest = _nearest_kept(evidence, threshold, most_bits, cannot_link)
    kept, sizes = np.unique(nearest, return_counts=True)
    stars: dict[int, list[int]] = {}
    rejected: list[int] = []
    for keep in kept[sizes > 1].tolist():
        claimed = (row for row in np.flatnonzero(nearest == keep).tolist() if row != keep)
        members, excluded = _split(claimed, cannot_link)
        rejected += excluded
        if members:
            stars[keep] = members
    if rejected:
        # They may join no group that they are alike to, but they may be alike to each other.
        rows = np.array(sorted(rejected))
        again = star_groups(evidence.of(rows), threshold, most_bits=most_bits, cannot_link=cannot_link.among(rows))
        stars |= {int(rows[keep]): rows[members].tolist() for keep, members in again.items()}
    return stars


def minimum_similarity(vectors: Vectors) -> float:
    """Return the smallest cosine similarity of any two of the finite unit rows ``vectors`` (N, D); 1 for one row."""
    exact = vectors.astype(np.float64)
    return min((float(_similarities(exact[a], exact[b].T).min()) for a, b in block_pairs(len(exact))), default=1.0)


def similarities_to(vectors: Vectors, row: int, others: Indices) -> NDArray[np.float64]:
    """Return the cosine similarity of ``others`` to one row, (len(others),); NaN if either has no vector."""
    return _similarities(vectors[others].astype(np.float64), vectors[row].astype(np.float64))


def _nearest_kept(evidence: Evidence, threshold: float, most_bits: int, cannot_link: CannotLink) -> Indices:
    exact = evidence.vectors.astype(np.float64)
    count = len(exact)
    rank = np.full(count, -np.inf)  # how close the nearest kept row is: the similarity, 2 for equal pixels
    nearest = np.arange(count)
    start = 0
    # Only rows that are alike to no kept row so far may be kept themselves; the others need no products.
    while len(open_rows := start + np.flatnonzero(np.isneginf(rank[start:]))[:_BLOCK_ROWS]):
        similarities = _similarities(exact[open_rows], exact[start:].T)  # (open rows, count - start)
        for row, similarity in zip(open_rows.tolist(), similarities, strict=True):
            if not np.isneginf(rank[row]):
                continue
            closeness = _closeness(evidence, row, similarity[row - start + 1 :], threshold, most_bits)
            for others in cannot_link.after(row):
                closeness[others - row - 1] = -np.inf
            closer = np.flatnonzero(closeness > rank[row + 1 :])
            rank[row + 1 + closer] = closeness[closer]
            nearest[row + 1 + closer] = row
        start = int(open_rows[-1]) + 1
    return nearest


def _closeness(
    evidence: Evidence, row: int, similarity: NDArray[np.float64], threshold: float, most_bits: int
) -> NDArray[np.float64]:
    alike = similarity >= threshold  # False for NaN
    closeness = np.where(alike, similarity, -np.inf)
    if evidence.has_hash[row]:
        near = bits_that_differ(evidence.hashes[row + 1 :], evidence.hashes[row]) <= most_bits
        near &= evidence.has_hash[row + 1 :]
        closeness[near] = np.nan_to_num(similarity[near], nan=0.0)
    closeness[evidence.pixels[row + 1 :] == evidence.pixels[row]] = 2.0
    return closeness


def _split(members: Iterable[int], cannot_link: CannotLink) -> tuple[list[int], list[int]]:
    taken: list[int] = []
    rejected: list[int] = []
    sets_taken: set[int] = set()
    for row in members:
        sets = cannot_link.sets_of(row)
        if sets_taken.isdisjoint(sets):
            taken.append(row)
            sets_taken.update(sets)
        else:
            rejected.append(row)
    return taken, rejected


def _similarities(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    return cast("NDArray[np.float64]", np.clip(np.round(left @ right, _DECIMALS), -1.0, 1.0))
