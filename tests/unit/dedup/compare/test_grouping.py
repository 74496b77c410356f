from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clip_client.dedup import components, minimum_similarity, star_groups

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]


def at_degrees(*angles: float) -> Vectors:
    """Unit vectors (N, 2) in a plane: their similarities are the cosines of the angles between them."""
    radians = np.radians(angles)
    vectors: Vectors = np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)
    return vectors


def families(seed: int, count: int, size: int, spread: float, dimension: int = 32) -> Vectors:
    """``count`` random directions, ``size`` vectors near each, (count * size, dimension)."""
    generator = np.random.default_rng(seed)
    centres = np.repeat(generator.normal(size=(count, dimension)), size, axis=0)
    vectors = centres + spread * generator.normal(size=centres.shape)
    unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def components_by_search(vectors: Vectors, threshold: float) -> list[list[int]]:
    """The slow way: all pairs, then a walk from each row."""
    near = vectors.astype(np.float64) @ vectors.astype(np.float64).T >= threshold
    left, found = set(range(len(vectors))), []
    while left:
        reached, frontier = set[int](), {min(left)}
        while frontier:
            reached |= frontier
            frontier = {int(to) for row in frontier for to in np.flatnonzero(near[row])} - reached
        left -= reached
        found.append(sorted(reached))
    return [rows for rows in found if len(rows) > 1]


@pytest.mark.parametrize("block_rows", [1, 3, 7, 1000])
@pytest.mark.parametrize("spread", [0.02, 0.15, 0.4])
def test_components_equal_an_exhaustive_search(spread: float, block_rows: int) -> None:
    vectors = families(seed=1, count=12, size=5, spread=spread)
    found = [rows.tolist() for rows in components(vectors, 0.9, block_rows=block_rows)]
    assert found == components_by_search(vectors, 0.9)


def test_a_chain_is_one_component_however_its_rows_are_ordered() -> None:
    chain = at_degrees(*range(0, 90, 3))
    shuffled = chain[np.random.default_rng(5).permutation(len(chain))]
    for block_rows in (2, 5, 100):
        assert [len(rows) for rows in components(shuffled, np.cos(np.radians(3.5)), block_rows=block_rows)] == [30]


def test_rows_that_failed_hang_together_with_nothing() -> None:
    vectors = at_degrees(0, 0, 0, 0)
    vectors[1] = np.nan
    vectors[2, 0] = np.nan
    assert [rows.tolist() for rows in components(vectors, 0.5)] == [[0, 3]]
    assert components(np.full((3, 2), np.nan, dtype=np.float32), 0.0) == []
    assert components(np.empty((0, 2), dtype=np.float32), 0.5) == []


def test_a_hot_cell_is_one_component() -> None:
    vectors = np.concatenate([families(seed=2, count=1, size=4000, spread=0.01), families(3, 50, 2, 0.01)])
    found = components(vectors, 0.95)
    assert len(found[0]) == 4000
    assert len(found) == 51


def test_a_chain_is_not_one_group() -> None:
    # Ten steps of 6 degrees, 7 allowed: the ends are 54 degrees apart and share no group.
    stars = star_groups(at_degrees(*range(0, 60, 6)), float(np.cos(np.radians(7))))
    assert [(star.keep, star.members) for star in stars] == [(0, (1,)), (2, (3,)), (4, (5,)), (6, (7,)), (8, (9,))]


def test_a_member_belongs_to_the_kept_row_that_is_nearest() -> None:
    # Row 2 is near both 0 and 1, which are not near each other.
    (star,) = star_groups(at_degrees(0, 12, 8), float(np.cos(np.radians(10))))
    assert (star.keep, star.members) == (1, (2,))
    assert star.similarities[0] == pytest.approx(np.cos(np.radians(4)), abs=1e-6)


def test_members_come_by_falling_similarity() -> None:
    (star,) = star_groups(at_degrees(0, 5, 1, 3, -1), 0.9)
    assert star.keep == 0
    assert star.members == (2, 4, 3, 1)
    assert list(star.similarities) == sorted(star.similarities, reverse=True)


def test_the_threshold_itself_is_near_enough() -> None:
    vectors = np.array([[1, 0], [0.6, 0.8]], dtype=np.float32)
    assert len(star_groups(vectors, 0.6)) == 1
    assert star_groups(vectors, 0.600002) == []


def test_equal_vectors_meet_a_threshold_of_one() -> None:
    vectors = np.repeat(families(seed=4, count=1, size=1, spread=0), 3, axis=0)
    (star,) = star_groups(vectors, 1.0)
    assert star.similarities == (1.0, 1.0)
    assert [rows.tolist() for rows in components(vectors, 1.0)] == [[0, 1, 2]]


def test_minimum_is_over_all_pairs_not_only_those_with_the_kept_row() -> None:
    vectors = at_degrees(0, 6, -6)
    (star,) = star_groups(vectors, 0.99)
    assert min(star.similarities) == pytest.approx(np.cos(np.radians(6)), abs=1e-6)
    assert minimum_similarity(vectors) == pytest.approx(np.cos(np.radians(12)), abs=1e-6)
    assert minimum_similarity(vectors, block_rows=1) == minimum_similarity(vectors)
    assert minimum_similarity(vectors[:1]) == 1.0


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    angles=st.lists(st.integers(0, 120), min_size=2, max_size=25),
    allowed=st.integers(1, 40),
    seed=st.integers(0, 2**16),
)
def test_groups_hold_what_they_promise_in_any_order(angles: list[int], allowed: int, seed: int) -> None:
    vectors, threshold = at_degrees(*angles), float(np.cos(np.radians(allowed + 0.5)))
    stars = star_groups(vectors, threshold)
    rows = list(itertools.chain.from_iterable((star.keep, *star.members) for star in stars))
    assert len(rows) == len(set(rows))
    for star in stars:
        assert star.members
        assert all(star.keep < member for member in star.members)
        assert min(star.similarities) >= threshold
    # What stands alone, and what is kept, is near no other of its like: nobody was overlooked.
    members = {member for star in stars for member in star.members}
    alone = [row for row in range(len(angles)) if row not in members]
    apart = vectors[alone].astype(np.float64) @ vectors[alone].astype(np.float64).T
    assert (apart[~np.eye(len(alone), dtype=bool)] < threshold + 1e-6).all()
    # Components come in another order and of other blocks, and the rows inside are ranked again by the caller.
    order = np.random.default_rng(seed).permutation(len(angles))
    regrouped = set()
    for component in components(vectors[order], threshold, block_rows=4):
        ranked = np.sort(order[component])
        for star in star_groups(vectors[ranked], threshold):
            regrouped.add((int(ranked[star.keep]), *(int(ranked[member]) for member in star.members)))
    assert regrouped == {(star.keep, *star.members) for star in stars}
