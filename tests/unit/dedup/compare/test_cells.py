"""Cells of vectors that lie close together, and the recall that a sample of them gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from clip_client.dedup.compare.cells import LEAST_RECALL, RecallSample, fit_cells
from tests.fixtures.vectors import clusters, unit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client.dedup.compare.cells import Cells

ROWS = 4000
COPIES = 400
THRESHOLD = 0.99


@pytest.fixture(scope="module")
def dense() -> NDArray[np.float32]:
    """Topics of very uneven size: two vectors have a cosine of 0.45, or of 0.7 in one topic. The last are copies."""
    random = np.random.default_rng(0)
    middles = 1.5**0.5 * random.standard_normal(128) + 0.8**0.5 * random.standard_normal((60, 128))
    shares = 1 / np.arange(1, 61)
    vectors = middles[random.choice(60, ROWS - COPIES, p=shares / shares.sum())]
    vectors = unit(vectors + random.standard_normal(vectors.shape))
    copies = vectors[:COPIES] + 0.135 * unit(random.standard_normal((COPIES, 128)))
    return np.concatenate([vectors, unit(copies)])


@pytest.fixture(scope="module")
def cells(dense: NDArray[np.float32]) -> Cells:
    return fit_cells(dense, ROWS, THRESHOLD)


def share_a_cell(cells: Cells, left: NDArray[np.float32], right: NDArray[np.float32], count: int) -> list[bool]:
    """Whether row i of both has a cell in common."""
    of_left, of_right = cells.assign(left, count), cells.assign(right, count)
    return [
        bool(np.intersect1d(of_left[1][of_left[0] == row], of_right[1][of_right[0] == row]).size)
        for row in range(len(left))
    ]


def test_a_topic_does_not_gather_in_a_few_cells(dense: NDArray[np.float32], cells: Cells) -> None:
    rows, numbers = cells.assign(dense, 4)
    np.testing.assert_array_equal(np.bincount(rows), 4)
    sizes = np.bincount(numbers)
    # Seen from elsewhere than the mean of all, the largest has 7 times the mean.
    assert sizes.max() <= 3 * sizes.mean()
    assert np.mean(share_a_cell(cells, dense[:COPIES], dense[-COPIES:], 4)) >= 0.99


def test_a_topic_is_no_scene(dense: NDArray[np.float32]) -> None:
    """The middles of its parts are alike, and its vectors are not."""
    cells = fit_cells(dense, ROWS, 0.9)
    assert len(np.unique(cells.numbers)) == len(cells.directions) == 63


def test_a_scene_stays_in_one_cell() -> None:
    """The photo in the middle is the only one that is alike to all others."""
    middle = clusters(seed=0, count=1, size=1, spread=0, dimension=64)
    away = np.random.default_rng(0).standard_normal((1000, 64)).astype(np.float32)
    scene = 0.955 * middle + (1 - 0.955**2) ** 0.5 * unit(away - (away @ middle.T) * middle)
    others = clusters(seed=1, count=1000, size=1, spread=0, dimension=64)
    vectors = np.concatenate([middle, scene, others])
    cells = fit_cells(vectors, len(vectors), 0.95)
    assert len(cells.directions) == 44
    assert all(share_a_cell(cells, np.repeat(middle, 1000, axis=0), vectors[1:1001], 4))


def test_the_recall_of_a_sample_is_the_share_of_its_pairs_in_a_common_cell(
    dense: NDArray[np.float32], cells: Cells
) -> None:
    threshold = 0.78
    sample = RecallSample.find(dense, np.arange(ROWS), np.arange(COPIES), threshold)
    left, right = np.nonzero(dense[:COPIES] @ dense.T >= threshold)
    left, right = left[left != right], right[left != right]
    found = share_a_cell(cells, dense[left], dense[right], 1)
    shares = np.bincount(left, weights=found, minlength=COPIES) / np.bincount(left, minlength=COPIES)
    assert sample.estimate(cells, 1).pairs == len(found)
    # A few rows have more pairs than the 16 that are looked up.
    assert sample.estimate(cells, 1).recall == pytest.approx(min(np.mean(found), np.mean(shares)), abs=0.005)


def test_more_cells_per_vector_are_used_if_too_few_pairs_are_found(dense: NDArray[np.float32], cells: Cells) -> None:
    sample = RecallSample.find(dense, np.arange(ROWS), np.arange(COPIES), 0.75)
    assert sample.estimate(cells, 4).recall < LEAST_RECALL
    estimate, count = sample.choose_count(cells)
    assert (estimate, count) == (sample.estimate(cells, 6), 6)
    assert estimate.recall >= LEAST_RECALL


def test_parts_of_the_vectors_give_the_sample_of_the_whole(dense: NDArray[np.float32]) -> None:
    threshold = 0.7
    sampled, everything = np.arange(30), np.arange(ROWS)
    whole = RecallSample.find(dense, everything, sampled, threshold)
    assert whole.counts.max() > 16, "more pairs than are kept, or nothing is shown"
    parts = [RecallSample.find(dense, some, sampled, threshold) for some in np.array_split(everything, 3)]
    combined = RecallSample.combine(parts)
    for name, array in vars(whole).items():
        np.testing.assert_array_equal(array, vars(combined)[name], err_msg=name)
