"""Components of similar rows: found exactly, by hashes, and in cells, whose recall a sample gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from clip_client.dedup.compare.cells import LEAST_RECALL, Cells, RecallSample, fit_cells, join_vectors
from clip_client.dedup.compare.neighbours import join_hashes
from clip_client.dedup.compare.similarity_join import Projection, UnionFind, alike_links, fit_projection, usable_rows
from tests.fixtures.vectors import at_degrees, clusters, unit
from tests.unit.dedup.compare.comparisons import with_peak_bytes


def families(rows: int, copies: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Return vectors, (N, 64), the last ``copies`` of them near one of the others, in no order, and those pairs."""
    random = np.random.default_rng(0)
    base = unit(random.standard_normal((rows - copies, 64)))
    of = random.integers(0, len(base), copies)
    near = unit(base[of] + 0.02 * random.standard_normal((copies, 64)).astype(np.float32))
    order = random.permutation(rows)
    place = np.argsort(order)
    return np.concatenate([base, near])[order], np.stack([place[of], place[len(base) :]])


def as_sets(found: list[NDArray[np.intp]]) -> set[frozenset[int]]:
    return {frozenset(rows.tolist()) for rows in found}


def all_pairs(vectors: NDArray[np.float32], threshold: float) -> set[frozenset[int]]:
    """Return the components by definition."""
    union_find = UnionFind(len(vectors))
    union_find.join(*np.nonzero(vectors @ vectors.T >= threshold))
    return as_sets(union_find.components())


def components(vectors: NDArray[np.float32], threshold: float, **options: Any) -> set[frozenset[int]]:
    joined = UnionFind(len(vectors))
    joined.join(*alike_links(usable_rows(vectors), vectors, threshold, **options))
    return as_sets(joined.components())


def test_dense_clusters_change_no_component() -> None:
    """A scene taken all night, among other photos, and enough rows for the search of dense clusters."""
    others, _ = families(4000, 600)
    vectors = np.concatenate([clusters(seed=0, count=1, size=400, spread=0.02), unit(others[:, :32])])
    vectors = vectors[np.random.default_rng(0).permutation(4400)]
    found = components(vectors, 0.98)
    assert found == all_pairs(vectors, 0.98)
    assert max(map(len, found)) >= 400


def test_cells_find_what_an_exact_search_finds_and_say_how_sure_that_is() -> None:
    vectors, pairs = families(3000, 300)
    without = np.setdiff1d(np.arange(3000), pairs)[:5]
    vectors[without] = np.nan
    exact, in_cells = UnionFind(3000), UnionFind(3000)
    assert join_vectors(exact, vectors, 0.95).method == "exact"
    estimate = join_vectors(in_cells, vectors, 0.95, exact_rows=100)
    assert estimate.method == "cells"
    assert estimate.pairs > 0
    low, high = estimate.recall_95
    assert 0.97 < low <= estimate.recall <= high <= 1
    assert estimate.recall >= LEAST_RECALL
    assert (exact.labels[pairs[0]] == exact.labels[pairs[1]]).all()
    assert in_cells.labels[without].tolist() == exact.labels[without].tolist() == without.tolist()
    missed = (in_cells.labels[pairs[0]] != in_cells.labels[pairs[1]]).mean()
    assert missed <= 0.01
    # Nothing is joined that is not alike.
    for rows in in_cells.components():
        assert len(np.unique(exact.labels[rows])) == 1
    alone = unit(np.random.default_rng(0).standard_normal((300, 64)))
    nothing = join_vectors(UnionFind(300), alone, 0.95, exact_rows=9)
    assert (nothing.pairs, nothing.recall_95) == (0, (0.0, 1.0))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seeds=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6),
    flips=st.lists(st.tuples(st.integers(0, 5), st.sets(st.integers(0, 63), max_size=8)), max_size=20),
    most_bits=st.integers(0, 8),
)
def test_hashes_are_joined_exactly(seeds: list[int], flips: list[tuple[int, set[int]]], most_bits: int) -> None:
    numbers = [*seeds, *(seeds[base % len(seeds)] ^ sum(1 << bit for bit in bits) for base, bits in flips)]
    hashes = np.array(numbers, dtype=np.uint64)
    found, expected = UnionFind(len(hashes)), UnionFind(len(hashes))
    join_hashes(found, np.arange(len(hashes)), hashes, most_bits)
    left, right = np.nonzero([[(a ^ b).bit_count() <= most_bits for b in numbers] for a in numbers])
    expected.join(left, right)
    assert as_sets(found.components()) == as_sets(expected.components())


def test_pairs_of_hashes_are_not_stored() -> None:
    """4,000 hashes of one scene: their 8 million pairs would be 128 MB, and as much again while they are joined."""
    random = np.random.default_rng(0)
    flipped = np.uint64(1) << random.integers(0, 64, (4000, 3)).astype(np.uint64)
    hashes = flipped[:, 0] | flipped[:, 1] | flipped[:, 2]
    joined = UnionFind(4000)
    _, peak_bytes = with_peak_bytes(lambda: join_hashes(joined, np.arange(4000), hashes, 8))
    assert [len(rows) for rows in joined.components()] == [4000]
    assert peak_bytes < 100e6


@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), spread=st.sampled_from([0.01, 0.1, 0.5]), width=st.sampled_from([2, 32, 64]))
def test_products_of_projections_are_upper_bounds(seed: int, spread: float, width: int) -> None:
    """Whatever the vectors: alike in most directions, in a few, or in none."""
    random = np.random.default_rng(seed)
    scale = random.random(64) ** 4
    vectors = unit(
        random.standard_normal((5, 64))[random.integers(0, 5, 60)] + spread * scale * random.standard_normal((60, 64))
    )
    rotation = np.linalg.qr(random.standard_normal((64, 64)))[0].astype(np.float32)
    short = Projection(rotation=rotation, width=width)(vectors)
    assert short.shape == (60, width)
    assert (short @ short.T >= vectors @ vectors.T - 1e-5).all()


@pytest.mark.parametrize("family_size", [2, 35])
def test_a_projection_changes_no_component(family_size: int) -> None:
    """Few similar pairs, which are multiplied one by one, and enough of them that whole blocks are multiplied."""
    vectors = clusters(seed=0, count=4200 // family_size, size=family_size, spread=0.08, dimension=64)
    vectors = vectors[np.random.default_rng(0).permutation(4200)]
    projection = fit_projection(vectors, np.arange(4200), 0.95)
    assert projection is not None
    assert components(vectors, 0.95, projected=projection(vectors)) == all_pairs(vectors, 0.95)


def test_what_a_projection_leaves_is_multiplied_in_full() -> None:
    vectors = clusters(seed=2, count=250, size=2, spread=0.1, dimension=64)
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((64, 64)))[0].astype(np.float32)
    projected = Projection(rotation=rotation, width=24)(vectors)
    assert len(np.argwhere(projected @ projected.T >= 0.9)) > len(np.argwhere(vectors @ vectors.T >= 0.9))
    assert components(vectors, 0.9, projected=projected) == all_pairs(vectors, 0.9)


def test_no_projection_if_it_would_leave_most_pairs() -> None:
    vectors = clusters(seed=0, count=1, size=4096, spread=0.5, dimension=64)  # any two are alike by some 0.8
    assert fit_projection(vectors, np.arange(4096), 0.8) is None
    assert fit_projection(vectors[:100], np.arange(100), 0.95) is None


def test_the_width_of_a_projection_suits_rows_that_it_was_not_learnt_from() -> None:
    """Half the width seems to do for the rows that the directions were learnt from."""
    vectors = clusters(seed=0, count=4200, size=1, spread=0, dimension=512)
    projection = fit_projection(vectors, np.arange(4200), 0.97)
    assert projection is not None
    assert projection.width == 64


def test_a_chain_is_one_component_however_its_rows_are_ordered() -> None:
    chain = at_degrees(*np.arange(0, 300, 0.2))
    shuffled = chain[np.random.default_rng(5).permutation(len(chain))]
    assert components(shuffled, np.cos(np.radians(0.25))) == {frozenset(range(1500))}


def test_equal_vectors_meet_a_threshold_of_one_and_failed_ones_none() -> None:
    vectors = np.repeat(clusters(seed=4, count=1, size=1, spread=0), 4, axis=0)
    vectors[1] = np.nan
    vectors[2, 0] = np.nan
    assert components(vectors, 1.0) == components(vectors, -1.0) == {frozenset({0, 3})}
    assert components(np.full((3, 2), np.nan, dtype=np.float32), 0.0) == set()
    assert components(np.empty((0, 2), dtype=np.float32), 0.5) == set()


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


def test_the_recall_of_a_sample_is_the_share_of_pairs_in_common_cells(dense: NDArray[np.float32], cells: Cells) -> None:
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
