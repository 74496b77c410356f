"""Star groups against their definition, written down as slowly as it reads, and each rule of it by itself."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clip_client.dedup import Evidence, components, minimum_similarity, star_groups
from clip_client.dedup.compare.star_groups import CannotLink
from tests.fixtures.vectors import at_degrees, clusters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

NAN = float("nan")


def closeness(evidence: Evidence, row: int, other: int, threshold: float, most_bits: int) -> float | None:
    """How close two rows are: 2 for equal pixels, else their similarity; None if they are not alike."""
    assert evidence.pixels is not None
    assert evidence.hashes is not None
    assert evidence.has_hash is not None
    if evidence.pixels[row] == evidence.pixels[other]:
        return 2.0
    similarity = round(float(evidence.vectors[row].astype(float) @ evidence.vectors[other].astype(float)), 6)
    bits = int(evidence.hashes[row] ^ evidence.hashes[other]).bit_count()
    if evidence.has_hash[row] and evidence.has_hash[other] and bits <= most_bits:
        return 0.0 if np.isnan(similarity) else similarity
    return similarity if similarity >= threshold else None


def by_definition(
    evidence: Evidence, rows: Sequence[int], threshold: float, most_bits: int, forbidden: set[frozenset[int]]
) -> set[tuple[int, frozenset[int]]]:
    """Return the kept row and the members of each group."""
    kept: list[int] = []
    members: dict[int, list[int]] = {}
    for row in rows:
        near = []
        for keep in kept:
            close = closeness(evidence, keep, row, threshold, most_bits)
            if close is not None and frozenset((row, keep)) not in forbidden:
                near.append((close, keep))
        if near:
            closest = max(close for close, _ in near)
            members[next(keep for close, keep in near if close == closest)].append(row)
        else:
            kept.append(row)
            members[row] = []
    found: set[tuple[int, frozenset[int]]] = set()
    rejected: list[int] = []
    for keep, claimed in members.items():
        taken: list[int] = []
        for row in claimed:
            is_free = all(frozenset((row, other)) not in forbidden for other in taken)
            (taken if is_free else rejected).append(row)
        if taken:
            found.add((keep, frozenset(taken)))
    if rejected:
        found |= by_definition(evidence, sorted(rejected), threshold, most_bits, forbidden)
    return found


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    rows=st.lists(
        st.tuples(st.one_of(st.integers(0, 40), st.just(NAN)), st.integers(0, 8), st.integers(0, 15), st.booleans()),
        min_size=2,
        max_size=14,
    ),
    sets=st.lists(st.sets(st.integers(0, 13), max_size=5), max_size=4),
    most_bits=st.integers(-1, 2),
    block_rows=st.sampled_from([1, 2, 64]),
)
def test_groups_are_what_their_definition_says(
    rows: list[tuple[float, int, int, bool]], sets: list[set[int]], most_bits: int, block_rows: int
) -> None:
    count = len(rows)
    angles, pixels, hashes, has_hash = zip(*rows, strict=True)
    evidence = Evidence(
        at_degrees(*angles),
        # Equal pixels are rare.
        pixels=np.array([number if number < 3 else 100 + row for row, number in enumerate(pixels)]),
        hashes=np.array(hashes, dtype=np.uint64),
        has_hash=np.array(has_hash),
    )
    threshold = float(np.cos(np.radians(6.5)))
    inside = [sorted(row for row in one if row < count) for one in sets]
    forbidden = {frozenset(pair) for one in inside for pair in itertools.combinations(one, 2)}
    stars = star_groups(
        evidence,
        threshold,
        most_bits=most_bits,
        cannot_link=CannotLink(np.array(one, dtype=np.intp) for one in inside),
        block_rows=block_rows,
    )
    assert {(star.keep, frozenset(star.members)) for star in stars} == by_definition(
        evidence, range(count), threshold, most_bits, forbidden
    )
    assert [star.keep for star in stars] == sorted(star.keep for star in stars)
    for star in stars:
        expected = [
            round(float(evidence.vectors[star.keep].astype(float) @ evidence.vectors[row]), 5) for row in star.members
        ]
        assert np.round(star.similarities, 5) == pytest.approx(expected, abs=2e-5, nan_ok=True)
        numbers = [(-similarity, row) for similarity, row in zip(star.similarities, star.members, strict=True)]
        said = [number for number in numbers if not np.isnan(number[0])]
        assert said == sorted(said)
        assert numbers[: len(said)] == said  # those of which vectors say nothing come last


def test_a_similarity_on_the_threshold_is_alike() -> None:
    vectors = np.array([[1, 0], [0.6, 0.8]], dtype=np.float32)
    (star,) = star_groups(vectors, 0.6)
    assert star.similarities == (0.6,)
    assert star_groups(vectors, 0.600001) == []


def test_similarities_have_six_decimals_and_stay_between_their_bounds() -> None:
    vectors = np.array([[1, 0], [1.000001, 0], [0.9999984, 0.0017]], dtype=np.float32)
    (star,) = star_groups(vectors, 0.9)
    assert star.similarities == (1.0, 0.999998)
    assert minimum_similarity(np.array([[1.000001, 0], [-1.000001, 0]], dtype=np.float32)) == -1.0


def test_of_two_kept_rows_that_are_as_close_the_better_gets_the_member() -> None:
    (star,) = star_groups(at_degrees(0, 10, 5), float(np.cos(np.radians(6))))
    assert (star.keep, star.members) == (0, (2,))


def test_a_member_goes_to_the_closest_kept_row_and_to_equal_pixels_first() -> None:
    near = float(np.cos(np.radians(6)))
    vectors = at_degrees(0, 10, 6)
    (star,) = star_groups(vectors, near)
    assert (star.keep, star.members) == (1, (2,))
    (star,) = star_groups(Evidence(vectors, pixels=np.array([7, 8, 7])), near)
    assert (star.keep, star.members) == (0, (2,))


def test_a_row_that_must_not_be_with_the_closest_kept_row_goes_to_the_next() -> None:
    vectors = at_degrees(0, 10, 6)
    near = float(np.cos(np.radians(6.5)))
    (star,) = star_groups(vectors, near, cannot_link=CannotLink([np.array([1, 2])]))
    assert (star.keep, star.members) == (0, (2,))


def test_rejected_rows_are_grouped_with_each_other_under_the_same_constraints() -> None:
    """The kept row takes the best; the others, which must not be with that one, form a group, but not all of them."""
    vectors = at_degrees(*[0] * 5)
    among = [[1, 2], [1, 3], [1, 4]]
    first, second = star_groups(vectors, 0.9, cannot_link=CannotLink(map(np.array, among)))
    assert (first.keep, first.members) == (0, (1,))
    assert (second.keep, second.members) == (2, (3, 4))
    first, second = star_groups(vectors, 0.9, cannot_link=CannotLink(map(np.array, [*among, [2, 4]])))
    assert (second.keep, second.members) == (2, (3,))
    (only,) = star_groups(vectors, 0.9, cannot_link=CannotLink([np.array([1, 2, 3, 4])]))
    assert (only.keep, only.members) == (0, (1,))


def test_rejected_rows_are_compared_by_all_evidence() -> None:
    """Rows 2 and 3 are alike to the kept one, and must not be with row 1; their vectors are 12 degrees apart."""
    vectors, near = at_degrees(0, 0, 6, -6), float(np.cos(np.radians(6.5)))
    cannot_link = CannotLink([np.array([1, 2]), np.array([1, 3])])
    hashes = np.array([0, 0xFF00, 0b1111, 0b0111], dtype=np.uint64)

    def found(most_bits: int = -1, **evidence: Any) -> list[tuple[int, tuple[int, ...]]]:
        stars = star_groups(
            Evidence(vectors, **evidence), near, most_bits=most_bits, cannot_link=cannot_link, block_rows=1
        )
        return [(star.keep, star.members) for star in stars]

    assert found() == [(0, (1,))]
    assert found(pixels=np.array([0, 1, 2, 2])) == [(0, (1,)), (2, (3,))]
    assert found(1, hashes=hashes, has_hash=np.array([True] * 4)) == [(0, (1,)), (2, (3,))]
    assert found(0, hashes=hashes, has_hash=np.array([True] * 4)) == [(0, (1,))]
    assert found(1, hashes=hashes, has_hash=np.array([True, True, True, False])) == [(0, (1,))]


def test_groups_of_rejected_rows_stand_in_their_order_too() -> None:
    stars = star_groups(
        at_degrees(0, 0, 0, 0, 90, 90), 0.9, cannot_link=CannotLink([np.array([1, 2]), np.array([1, 3])])
    )
    assert [(star.keep, star.members) for star in stars] == [(0, (1,)), (2, (3,)), (4, (5,))]


def test_pixels_do_not_overrule_what_people_decided() -> None:
    evidence = Evidence(at_degrees(0, 0), pixels=np.array([1, 1]))
    assert star_groups(evidence, 0.9, cannot_link=CannotLink([np.array([0, 1])])) == []


def members(vectors: NDArray[np.float32], threshold: float, **options: Any) -> list[set[int]]:
    return [{star.keep, *star.members} for star in star_groups(vectors, threshold, **options)]


def test_rows_that_cannot_link_are_never_in_one_group() -> None:
    vectors = at_degrees(0, 1, 2, 3)
    near = float(np.cos(np.radians(5)))
    assert members(vectors, near) == [{0, 1, 2, 3}]
    assert members(vectors, near, cannot_link={0: np.array([2]), 2: np.array([0])}) == [{0, 1}, {2, 3}]
    # Two members that are alike to the kept one, but not to be with each other.
    assert members(vectors, near, cannot_link={1: np.array([2]), 2: np.array([1])}) == [{0, 1, 3}]
    everything = np.arange(4)
    assert members(vectors, near, cannot_link=dict.fromkeys(range(4), everything)) == []


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    angles=st.lists(st.integers(0, 40), min_size=2, max_size=12),
    pairs=st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=12),
)
def test_stars_hold_what_they_promise(angles: list[int], pairs: set[tuple[int, int]]) -> None:
    vectors, threshold = at_degrees(*angles), float(np.cos(np.radians(6)))
    forbidden = {frozenset(pair) for pair in pairs if len(set(pair)) == 2 and max(pair) < len(angles)}
    cannot_link = {
        row: np.array(sorted(other for pair in forbidden if row in pair for other in pair if other != row))
        for row in {row for pair in forbidden for row in pair}
    }
    stars = star_groups(vectors, threshold, cannot_link=cannot_link)
    rows = [row for star in stars for row in (star.keep, *star.members)]
    assert len(rows) == len(set(rows))
    for star in stars:
        assert all(star.keep < row for row in star.members)
        assert all(abs(angles[star.keep] - angles[row]) <= 6 for row in star.members)
        assert not any(frozenset(pair) in forbidden for pair in itertools.combinations((star.keep, *star.members), 2))


def test_equal_pixels_and_hashes_join_what_vectors_do_not() -> None:
    evidence = Evidence(
        np.concatenate([at_degrees(0, 60), np.full((2, 2), np.nan, np.float32), at_degrees(90)]),
        pixels=np.array([0, 1, 2, 2, 4]),
        hashes=np.array([0b111, 0b110, 0b111, 0b111, 0b111], dtype=np.uint64),
        has_hash=np.array([True, True, False, False, False]),
    )
    found = star_groups(evidence, 0.99, most_bits=1)
    assert [(star.keep, star.members) for star in found] == [(0, (1,)), (2, (3,))]
    assert found[0].similarities[0] == pytest.approx(0.5, abs=1e-6)
    assert np.isnan(found[1].similarities[0])
    assert [star.keep for star in star_groups(evidence, 0.99, most_bits=0)] == [2]


def test_the_groups_of_a_night_take_no_memory_for_pairs() -> None:
    """5,000 frames of which few are alike to the first: many are kept, in blocks, and none is lost or doubled."""
    random = np.random.default_rng(0)
    vectors = np.ones((5000, 16)) + 0.15 * random.standard_normal((5000, 16))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    stars = star_groups(vectors, 0.985)
    assert len(stars) > 10
    kept = [star.keep for star in stars]
    rows = [row for star in stars for row in (star.keep, *star.members)]
    assert len(rows) == len(set(rows)) > 4000
    for star in stars[:20]:
        to_kept = vectors[list(star.members)].astype(np.float64) @ vectors[kept].astype(np.float64).T
        to_kept[np.array(kept) > np.array(star.members)[:, None]] = -1  # a kept row is better than its members
        assert (to_kept.argmax(axis=1) == kept.index(star.keep)).mean() > 0.99  # but for ties of the sixth decimal


def test_a_chain_is_not_one_group() -> None:
    # Ten steps of 6 degrees, 7 allowed: 54 degrees lie between the ends, which share no group.
    stars = star_groups(at_degrees(*range(0, 60, 6)), float(np.cos(np.radians(7))))
    assert [(star.keep, star.members) for star in stars] == [(0, (1,)), (2, (3,)), (4, (5,)), (6, (7,)), (8, (9,))]


def test_a_member_belongs_to_the_kept_row_that_is_nearest() -> None:
    # Row 2 is near both 0 and 1, which are not near each other.
    (star,) = star_groups(at_degrees(0, 12, 8), float(np.cos(np.radians(10))))
    assert (star.keep, star.members) == (1, (2,))
    assert star.similarities[0] == pytest.approx(np.cos(np.radians(4)), abs=1e-6)


def test_members_come_by_descending_similarity() -> None:
    (star,) = star_groups(at_degrees(0, 5, 1, 3, -1), 0.9)
    assert star.keep == 0
    assert star.members == (2, 4, 3, 1)
    assert list(star.similarities) == sorted(star.similarities, reverse=True)
    (star,) = star_groups(at_degrees(0, *[2, 1] * 100), 0.9)
    assert star.members == (*range(2, 201, 2), *range(1, 201, 2)), "equally similar ones in the order of the rows"


def test_the_threshold_itself_is_near_enough() -> None:
    vectors = np.array([[1, 0], [0.6, 0.8]], dtype=np.float32)
    assert len(star_groups(vectors, 0.6)) == 1
    assert star_groups(vectors, 0.600002) == []


def test_equal_vectors_meet_a_threshold_of_one() -> None:
    vectors = np.repeat(clusters(seed=4, count=1, size=1, spread=0), 3, axis=0)
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
    # No two rows without a group, and no two kept rows, are near each other.
    members = {member for star in stars for member in star.members}
    alone = [row for row in range(len(angles)) if row not in members]
    similarities = vectors[alone].astype(np.float64) @ vectors[alone].astype(np.float64).T
    assert (similarities[~np.eye(len(alone), dtype=bool)] < threshold + 1e-6).all()
    # Components come in another order and of other blocks, and the rows inside are ranked again by the caller.
    order = np.random.default_rng(seed).permutation(len(angles))
    regrouped = set()
    for component in components(vectors[order], threshold, block_rows=4):
        ranked = np.sort(order[component])
        for star in star_groups(vectors[ranked], threshold):
            regrouped.add((int(ranked[star.keep]), *(int(ranked[member]) for member in star.members)))
    assert regrouped == {(star.keep, *star.members) for star in stars}
