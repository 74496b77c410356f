"""From unit vectors to groups. Pure numpy: no files, no server.

Connected components are only the unit of work: they chain, A like B like C, until strangers share a group. Inside one,
star groups: the best photo is kept, and each other member is within the threshold of the kept one itself.

Both steps look at the vectors in blocks and store no pairs, so 20,000 pictures of one scene cost time (each pair is
one dot product) but not the 2e8 pairs' memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Indices = NDArray[np.intp]

_BLOCK_ROWS: Final = 1024
"""Rows per block: the products of two blocks take 4 MB, their pairs at most 40 MB."""

_DECIMALS: Final = 6
"""Similarities are rounded to these, so that the last bits of a float sum, which depend on how many rows are
multiplied at once, neither move a photo over the threshold nor show in a report. Float32 vectors carry no more."""

_SLACK: Final = 1e-5
"""What float32 block products may be off. Components are found with that much less: a too large one costs work only,
since the stars inside it are decided in float64."""


@dataclass(frozen=True, kw_only=True)
class Star:
    """One group, as row numbers."""

    keep: int
    members: tuple[int, ...]
    """Without ``keep``; by falling similarity, then by row number."""
    similarities: tuple[float, ...]
    """Of each member to ``keep``."""


def components(vectors: Vectors, threshold: float, *, block_rows: int = _BLOCK_ROWS) -> list[Indices]:
    """Find which rows hang together through pairs with cosine similarity >= ``threshold``.

    ``vectors`` is (N, D) of unit rows; a row that holds NaN hangs together with nothing. Returns the row numbers of
    each component of two or more, ascending, the components by their first row. A component may be too large by pairs
    that are below the threshold by less than float32 can tell.
    """
    usable = np.flatnonzero(np.isfinite(vectors).all(axis=1))
    labels = np.arange(len(usable))
    for first, second in _block_pairs(len(usable), block_rows):
        products = vectors[usable[first]] @ vectors[usable[second]].T  # (rows of first, rows of second)
        left, right = np.nonzero(products >= threshold - _SLACK)
        _join(labels, left + first.start, right + second.start)
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    return [usable[rows] for rows in np.split(order, starts[1:]) if len(rows) > 1]


def star_groups(vectors: Vectors, threshold: float) -> list[Star]:
    """Group rows that come best first; each member has similarity >= ``threshold`` to the kept row of its group.

    ``vectors`` is (N, D) of finite unit rows. Going down the rows, one that is near no kept row is kept itself; each
    other row then belongs to the kept row that it is most similar to. So the kept row is always better than its
    members. Returns the groups of two or more, by their kept row.
    """
    exact = vectors.astype(np.float64)
    best = np.full(len(exact), -np.inf)  # similarity to the nearest kept row so far
    nearest = np.arange(len(exact))
    for row in range(len(exact)):
        if best[row] >= threshold:
            continue
        similarity = _similarities(exact[row + 1 :], exact[row])  # (N - row - 1,)
        closer = np.flatnonzero((similarity >= threshold) & (similarity > best[row + 1 :]))
        best[row + 1 + closer] = similarity[closer]
        nearest[row + 1 + closer] = row
    kept, sizes = np.unique(nearest, return_counts=True)
    return [_star(int(keep), nearest, best) for keep in kept[sizes > 1]]


def minimum_similarity(vectors: Vectors, *, block_rows: int = _BLOCK_ROWS) -> float:
    """Return the smallest cosine similarity of any two of the finite unit rows ``vectors`` (N, D); 1 for one row."""
    exact = vectors.astype(np.float64)
    blocks = _block_pairs(len(exact), block_rows)
    return min((float(_similarities(exact[a], exact[b].T).min()) for a, b in blocks), default=1.0)


def _star(keep: int, nearest: Indices, best: NDArray[np.float64]) -> Star:
    members = np.flatnonzero(nearest == keep)
    members = members[members != keep]
    members = members[np.argsort(-best[members], kind="stable")]
    return Star(keep=keep, members=tuple(members.tolist()), similarities=tuple(best[members].tolist()))


def _similarities(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    similarities: NDArray[np.float64] = np.clip(np.round(left @ right, _DECIMALS), -1.0, 1.0)
    return similarities


def _block_pairs(rows: int, block_rows: int) -> Iterator[tuple[slice, slice]]:
    """Yield each two blocks of rows once, a block with itself too."""
    starts = range(0, rows, block_rows)
    for first in starts:
        for second in starts[first // block_rows :]:
            yield slice(first, min(first + block_rows, rows)), slice(second, min(second + block_rows, rows))


def _join(labels: Indices, left: Indices, right: Indices) -> None:
    """Give rows that a pair (``left``, ``right``) joins the same label, the smallest row number of their component.

    In place. Each round hooks every larger label to the smallest one that it meets and then follows the hooks to their
    ends, so the number of rounds grows with the logarithm of the component, and no pair is looked at in Python.
    """
    while True:
        a, b = labels[left], labels[right]
        apart = a != b
        if not apart.any():
            return
        left, right, a, b = left[apart], right[apart], a[apart], b[apart]
        hooks = np.arange(len(labels))
        np.minimum.at(hooks, np.maximum(a, b), np.minimum(a, b))
        while not np.array_equal(hooks, followed := hooks[hooks]):
            hooks = followed
        labels[:] = hooks[labels]
