"""From alike photos to groups. Pure numpy: no files, no server.

Connected components chain: A is like B, B is like C, and A and C share a group although they differ. So components
only divide the work. Inside one, groups are stars: the best photo is kept, and each other member passes a test against
the kept photo itself.

No pairs are stored, so 20,000 pictures of one scene cost time (each pair is one dot product) but not the 2e8 pairs'
memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.compare.cannot_link import CannotLink
from clip_client.dedup.compare.similarity_join import BLOCK_ROWS, bits_that_differ, block_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Indices = NDArray[np.intp]

_DECIMALS: Final = 6
"""Similarities are rounded to these, so that the last bits of a float sum, which depend on how many rows are
multiplied at once, neither move a photo over the threshold nor show in a report. Float32 vectors carry no more."""

_KEEPERS_AT_ONCE: Final = 64
"""Rows that are compared with all after them in one product."""


@dataclass(frozen=True, kw_only=True)
class Star:
    """One group, as row numbers."""

    keep: int
    members: tuple[int, ...]
    """Without ``keep``; by falling similarity, then by row number."""
    similarities: tuple[float, ...]
    """Of each member to ``keep``; NaN where the vectors say nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What is known about rows that may be alike; all arrays run in parallel."""

    vectors: Vectors
    """(N, D) unit rows; NaN where the vector says nothing."""
    pixels: Indices | None = None
    """(N,), equal for rows of equal pixels."""
    hashes: NDArray[np.uint64] | None = None
    """(N,) perceptual hashes."""
    has_hash: NDArray[np.bool_] | None = None
    """(N,), False where the hash says nothing."""

    def of(self, rows: Indices) -> Evidence:
        """Return the same for some rows."""
        return replace(
            self,
            vectors=self.vectors[rows],
            pixels=None if self.pixels is None else self.pixels[rows],
            hashes=None if self.hashes is None else self.hashes[rows],
            has_hash=None if self.has_hash is None else self.has_hash[rows],
        )


def star_groups(
    evidence: Evidence | Vectors,
    threshold: float,
    *,
    most_bits: int = -1,
    cannot_link: Mapping[int, Indices] | CannotLink | None = None,
) -> list[Star]:
    """Group rows that come best first; each member is alike to the kept row of its group.

    Alike are rows of cosine similarity >= ``threshold``, of equal pixels, or of hashes that differ in at most
    ``most_bits`` bits. Going down the rows, one that is alike to no kept row is kept itself; each other row then
    belongs to the kept row that it is most similar to, equal pixels before all else. So the kept row is always better
    than its members. ``cannot_link`` holds the rows that must not share a group: sets of them, or a mapping of each row
    to the others, in both directions. Returns the groups of two or more, by their kept row.
    """
    if not isinstance(evidence, Evidence):
        evidence = Evidence(vectors=evidence)
    if not isinstance(cannot_link, CannotLink):
        cannot_link = CannotLink.from_pairs(cannot_link or {})
    nearest, best = _choose(evidence, threshold, most_bits, cannot_link)
    kept, sizes = np.unique(nearest, return_counts=True)
    stars, rejected = [], []
    for keep in kept[sizes > 1].tolist():
        members = [row for row in np.flatnonzero(nearest == keep).tolist() if row != keep]
        if cannot_link:
            members, excluded = _split(members, cannot_link)
            rejected += excluded
        if members:
            stars.append(_star(keep, np.array(members), best))
    if rejected:
        # They can join none of the groups that they are alike to, but they may be alike to each other.
        rows = np.array(sorted(rejected))
        for star in star_groups(evidence.of(rows), threshold, most_bits=most_bits, cannot_link=cannot_link.among(rows)):
            there = tuple(rows[list(star.members)].tolist())
            stars.append(replace(star, keep=int(rows[star.keep]), members=there))
    return sorted(stars, key=lambda star: star.keep)


def minimum_similarity(vectors: Vectors, *, block_rows: int = BLOCK_ROWS) -> float:
    """Return the smallest cosine similarity of any two of the finite unit rows ``vectors`` (N, D); 1 for one row."""
    exact = vectors.astype(np.float64)
    blocks = block_pairs(len(exact), block_rows)
    return min((float(_similarities(exact[a], exact[b].T).min()) for a, b in blocks), default=1.0)


def _choose(
    evidence: Evidence, threshold: float, most_bits: int, cannot_link: CannotLink
) -> tuple[Indices, NDArray[np.float64]]:
    """Return the kept row that each row belongs to, itself for a kept one, and its similarity to that."""
    exact = evidence.vectors.astype(np.float64)
    count = len(exact)
    rank = np.full(count, -np.inf)  # how close the nearest kept row is: the similarity, 2 for equal pixels
    best = np.full(count, np.nan)
    nearest = np.arange(count)
    start = 0
    while start < count:
        # Rows that no kept row has claimed so far may turn out to be kept; the others need no products.
        open_rows = start + np.flatnonzero(np.isneginf(rank[start:]))[:_KEEPERS_AT_ONCE]
        if not len(open_rows):
            break
        similarities = _similarities(exact[open_rows], exact[start:].T)  # (open rows, count - start)
        for row, similarity in zip(open_rows.tolist(), similarities, strict=True):
            if not np.isneginf(rank[row]):
                continue
            after = similarity[row - start + 1 :]
            closeness = _closeness(evidence, row, after, threshold, most_bits)
            for others in cannot_link.after(row):
                closeness[others - row - 1] = -np.inf
            closer = np.flatnonzero(closeness > rank[row + 1 :])
            rank[row + 1 + closer] = closeness[closer]
            best[row + 1 + closer] = after[closer]
            nearest[row + 1 + closer] = row
        start = int(open_rows[-1]) + 1
    return nearest, best


def _closeness(
    evidence: Evidence, row: int, similarity: NDArray[np.float64], threshold: float, most_bits: int
) -> NDArray[np.float64]:
    """Return how close the rows after ``row`` are to it; -inf where they are not alike."""
    alike = similarity >= threshold  # False for NaN
    closeness = np.where(alike, similarity, -np.inf)
    if evidence.hashes is not None and evidence.has_hash is not None and evidence.has_hash[row]:
        near = bits_that_differ(evidence.hashes[row + 1 :], evidence.hashes[row]) <= most_bits
        near &= evidence.has_hash[row + 1 :]
        closeness[near] = np.nan_to_num(similarity[near], nan=0.0)
    if evidence.pixels is not None:
        closeness[evidence.pixels[row + 1 :] == evidence.pixels[row]] = 2.0
    return closeness


def _split(members: list[int], cannot_link: CannotLink) -> tuple[list[int], list[int]]:
    """Take the members best first; reject those that must not be with one that was taken."""
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


def _star(keep: int, members: Indices, best: NDArray[np.float64]) -> Star:
    members = members[np.argsort(-best[members], kind="stable")]
    return Star(keep=keep, members=tuple(members.tolist()), similarities=tuple(best[members].tolist()))


def _similarities(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    similarities: NDArray[np.float64] = np.clip(np.round(left @ right, _DECIMALS), -1.0, 1.0)
    return similarities
