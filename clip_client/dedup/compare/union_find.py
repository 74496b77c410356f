"""Connected components of rows, found from pairs of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client.dedup.types import Indices


class UnionFind:
    """Connected components of rows; rows with the same number in ``labels`` are in one."""

    def __init__(self, rows: int) -> None:
        self.labels: Indices = np.arange(rows)

    def join(self, left: Indices, right: Indices) -> None:
        """Join the pairs (``left``, ``right``), both (N,).

        Each round hooks every label to the smallest one that it is paired with and then follows the hooks to their
        ends, so the number of rounds grows with the logarithm of the component, without a Python loop over pairs.
        """
        while True:
            a, b = self.labels[left], self.labels[right]
            unequal = a != b
            if not unequal.any():
                return
            left, right, a, b = left[unequal], right[unequal], a[unequal], b[unequal]
            hooks = np.arange(len(self.labels))
            np.minimum.at(hooks, np.maximum(a, b), np.minimum(a, b))
            while not np.array_equal(hooks, followed := hooks[hooks]):
                hooks = followed
            self.labels = hooks[self.labels]

    def components(self) -> list[Indices]:
        """Return the rows of each component of two or more, in ascending order, sorted by their first rows."""
        return equal_runs(self.labels)


def equal_runs(values: NDArray[Any]) -> list[Indices]:
    """Return the positions, in ascending order, of each value that occurs more than once; sorted by value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(order) else order
    sizes = np.diff(starts, append=len(order))
    # Most values occur once and must not cost a step in Python.
    many = sizes > 1
    return [
        order[start : start + size] for start, size in zip(starts[many].tolist(), sizes[many].tolist(), strict=True)
    ]
