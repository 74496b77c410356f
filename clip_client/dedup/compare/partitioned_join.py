"""Joins alike vectors when there are too many to compare each with each.

Each vector goes into a few cells, and the vectors inside a cell are compared with each other. Two alike vectors are
missed only if they have no cell in common. Each run measures how often that happens, by an exact search on a sample,
and tries more cells per vector until it is rare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.compare.cells import fit_cells, sample_size
from clip_client.dedup.compare.recall_sample import RecallSample
from clip_client.dedup.compare.similarity_join import alike_links, fit_projection, usable_rows
from clip_client.dedup.types import RecallEstimate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client.dedup.compare.cells import Cells
    from clip_client.dedup.compare.union_find import UnionFind

    Vectors = NDArray[np.float32]
    Indices = NDArray[np.intp]

EXACT_ROWS: Final = 50_000
"""Up to this many rows, each is compared with each, which takes about 4 seconds on two cores."""

_SAMPLE: Final = 5000
"""Rows whose alike rows are found exactly, to measure the recall: little of the work with a million rows. If a tenth of
them have an alike row, 2 missed are 0.4 %."""
_BLOCK_ROWS: Final = 16_384

ALL_COMPARED: Final = RecallEstimate(method="exact", recall=1.0, recall_95=(1.0, 1.0), pairs=0)


def join_vectors(
    union_find: UnionFind, vectors: Vectors, threshold: float, *, exact_rows: int = EXACT_ROWS, seed: int = 0
) -> RecallEstimate:
    """Join the rows of ``vectors`` whose cosine similarity is at least ``threshold``.

    ``vectors`` is (N, D) float32 of unit rows, or NaN for a row that is joined with none. Up to ``exact_rows`` rows
    each is compared with each.
    """
    rows = usable_rows(vectors)
    projection = fit_projection(vectors, rows, threshold, seed=seed)
    projected = None if projection is None else projection(vectors)
    if len(rows) <= exact_rows:
        union_find.join(*alike_links(rows, vectors, threshold, projected=projected))
        return ALL_COMPARED
    sample = np.sort(np.random.default_rng(seed).choice(rows, sample_size(len(rows)), replace=False))
    cells = fit_cells(vectors[sample], len(rows), threshold, seed=seed)
    sampled = np.random.default_rng(seed + 2).permutation(rows)[:_SAMPLE]
    recall = RecallSample.find(vectors, rows, sampled, threshold, projected=projected)
    estimate, count = recall.choose_count(cells)
    links = [
        alike_links(rows[members], vectors, threshold, projected=projected)
        for members in _members(vectors, rows, cells, count)
    ]
    # All at once, because each call of join passes over the labels of all rows.
    union_find.join(np.concatenate([left for left, _ in links]), np.concatenate([right for _, right in links]))
    return estimate


def _members(vectors: Vectors, rows: Indices, cells: Cells, count: int) -> list[Indices]:
    """Return the positions in ``rows`` of those in each cell."""
    found = []
    for start in range(0, len(rows), _BLOCK_ROWS):
        positions, numbers = cells.assign(vectors[rows[start : start + _BLOCK_ROWS]], count)
        found.append((positions + start, numbers))
    positions, numbers = (np.concatenate(side) for side in zip(*found, strict=True))
    order = np.argsort(numbers, kind="stable")
    return np.split(positions[order], np.flatnonzero(np.diff(numbers[order])) + 1)
