"""Short stand-ins for vectors whose products are never smaller than the vectors' own.

Most of comparing all with all is multiplying vectors that have nothing in common. Turned so that the first directions
hold as much as possible, a vector ``x`` is ``(x1, x2)``, and by Cauchy and Schwarz ``x @ y <= x1 @ y1 + |x2| |y2|``. So
rows ``(x1, |x2|)`` of 64 numbers instead of 512 tell for an eighth of the work which pairs cannot be alike, and none is
lost; what they leave is multiplied in full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Indices = NDArray[np.intp]

LEAST_ROWS: Final = 4096
"""With fewer rows it costs more to find the directions than they save."""

_WIDTHS: Final = (32, 64, 128)
"""Numbers per row, tried in turn; with more of them little is saved."""
_SAMPLE: Final = 2048
"""Rows that the directions are found from; as many are compared to try a width."""
_MOST_LEFT: Final = 1e-4
"""Share of the unlike pairs that may be left: to fetch the rows of one takes as long as a thousand short products."""
_ORDINARY: Final = 0.75
"""Share of the rows that this is asked of; the others may be one night's frames."""
_BLOCK_ROWS: Final = 65_536


def project(vectors: Vectors, rows: Indices, threshold: float, *, seed: int = 0) -> Vectors | None:
    """Return (N, width), of which only ``rows`` mean anything; None where it would save nothing.

    The product of two rows is at least that of the same rows of ``vectors``, (N, D), but for rounding (1e-6).
    """
    dimension = vectors.shape[1]
    if len(rows) < LEAST_ROWS or dimension < 2 * _WIDTHS[0]:
        return None
    chosen = np.random.default_rng(seed).choice(rows, _SAMPLE, replace=False)
    sample = vectors[np.sort(chosen)]
    # The directions in which the rows are longest on average, longest first.
    _, directions = np.linalg.eigh(sample.T.astype(np.float64) @ sample)
    turn = np.ascontiguousarray(directions[:, ::-1], dtype=np.float32)
    unlike = sample @ sample.T < threshold
    for width in _WIDTHS:
        if 2 * width > dimension:
            return None
        short = _shorten(sample, turn, width)
        left = np.sort(((short @ short.T >= threshold) & unlike).sum(axis=1))
        if left[: round(_ORDINARY * len(left))].mean() <= _MOST_LEFT * len(left):
            break
    else:
        return None
    projected = np.empty((len(vectors), width), dtype=np.float32)
    for start in range(0, len(vectors), _BLOCK_ROWS):
        some = slice(start, start + _BLOCK_ROWS)
        projected[some] = _shorten(vectors[some], turn, width)
    return projected


def _shorten(vectors: Vectors, turn: Vectors, width: int) -> Vectors:
    turned = vectors @ turn
    # The length of the rest is taken from the rest itself: what is left of 1 would be mostly rounding.
    rest = np.linalg.norm(turned[:, width - 1 :], axis=1, keepdims=True)
    short: Vectors = np.concatenate([turned[:, : width - 1], rest], axis=1)
    return short
