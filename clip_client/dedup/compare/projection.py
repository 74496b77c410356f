"""Shorter vectors whose products are upper bounds of the products of the vectors.

Most products in an all-pairs comparison are of vectors that have nothing in common. Rotate the vectors so that the
first directions carry as much of their length as possible, and split each into ``(x1, x2)``. By the Cauchy-Schwarz
inequality ``x @ y <= x1 @ y1 + |x2| |y2|``. So rows ``(x1, |x2|)`` of 64 numbers instead of 512 exclude most pairs for
an eighth of the work, and never an alike one. The remaining pairs are multiplied in full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Indices = NDArray[np.intp]

LEAST_ROWS: Final = 4096
"""With fewer rows, finding the directions takes longer than they save."""

_WIDTHS: Final = (32, 64, 128)
"""Numbers per row, tried in this order; more save little."""
_SAMPLE: Final = 2048
"""Rows to find the directions from, and others to try each width with."""
_MOST_LEFT: Final = 1e-4
"""Share of the unlike pairs that may remain: fetching the rows of one takes as long as a thousand short products."""
_ORDINARY: Final = 0.75
"""Share of the rows that have to meet this; the others may be frames of one scene."""
_BLOCK_ROWS: Final = 65_536


@dataclass(frozen=True, kw_only=True, eq=False)
class Projection:
    """How to make vectors shorter; arrays only, so that other processes can use it."""

    rotation: Vectors
    """(D, D), orthogonal."""
    width: int

    def __call__(self, vectors: Vectors) -> Vectors:
        """Return (N, width) float32 for ``vectors``, (N, D).

        The product of two rows is at least that of the same rows of ``vectors``, but for rounding (1e-6).
        """
        projected = np.empty((len(vectors), self.width), dtype=np.float32)
        for start in range(0, len(vectors), _BLOCK_ROWS):
            some = slice(start, start + _BLOCK_ROWS)
            projected[some] = shorten(vectors[some], self.rotation, self.width)
        return projected


def project(vectors: Vectors, rows: Indices, threshold: float, *, seed: int = 0) -> Vectors | None:
    """Return the projection of ``vectors``, (N, width), valid for ``rows`` only; None if it would save no time."""
    projection = fit_projection(vectors, rows, threshold, seed=seed)
    return None if projection is None else projection(vectors)


def fit_projection(vectors: Vectors, rows: Indices, threshold: float, *, seed: int = 0) -> Projection | None:
    """Find a projection for vectors such as ``rows`` of ``vectors``, (N, D); None if it would save no time."""
    dimension = vectors.shape[1]
    if len(rows) < LEAST_ROWS or dimension < 2 * _WIDTHS[0]:
        return None
    chosen = np.random.default_rng(seed).choice(rows, 2 * _SAMPLE, replace=False)
    sample, others = vectors[chosen[:_SAMPLE]], vectors[chosen[_SAMPLE:]]
    # The directions in which the rows are longest on average, longest first.
    _, directions = np.linalg.eigh(sample.T.astype(np.float64) @ sample)
    rotation = np.ascontiguousarray(directions[:, ::-1], dtype=np.float32)
    unlike = others @ others.T < threshold
    for width in _WIDTHS:
        if 2 * width > dimension:
            return None
        short = shorten(others, rotation, width)
        left = np.sort(((short @ short.T >= threshold) & unlike).sum(axis=1))
        if left[: round(_ORDINARY * len(left))].mean() <= _MOST_LEFT * len(left):
            return Projection(rotation=rotation, width=width)
    return None


def shorten(vectors: Vectors, rotation: Vectors, width: int) -> Vectors:
    """Rotate ``vectors``, (N, D), by the orthogonal ``rotation``, (D, D), and cut them to (N, ``width``).

    The last column is the length of what was cut off.
    """
    rotated = vectors @ rotation
    # Computed from the cut part itself: one minus the rest would be mostly rounding.
    rest = np.linalg.norm(rotated[:, width - 1 :], axis=1, keepdims=True)
    short: Vectors = np.concatenate([rotated[:, : width - 1], rest], axis=1)
    return short
