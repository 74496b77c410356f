"""Star groups against their definition, written down as slowly as it reads, and each rule of it by itself."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clip_client.dedup import Evidence, star_groups
from clip_client.dedup.compare.cannot_link import CannotLink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

NAN = float("nan")


def at_degrees(*angles: float) -> NDArray[np.float32]:
    """Unit vectors (N, 2); NaN for an angle of NaN."""
    radians = np.radians(angles)
    vectors: NDArray[np.float32] = np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)
    return vectors


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
        vectors=at_degrees(*angles),
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


def test_of_two_kept_rows_that_are_as_close_the_better_gets_the_member() -> None:
    (star,) = star_groups(at_degrees(0, 10, 5), float(np.cos(np.radians(6))))
    assert (star.keep, star.members) == (0, (2,))


def test_a_member_goes_to_the_closest_kept_row_and_to_equal_pixels_first() -> None:
    near = float(np.cos(np.radians(6)))
    vectors = at_degrees(0, 10, 6)
    (star,) = star_groups(vectors, near)
    assert (star.keep, star.members) == (1, (2,))
    (star,) = star_groups(Evidence(vectors=vectors, pixels=np.array([7, 8, 7])), near)
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


def test_groups_of_rejected_rows_stand_in_their_order_too() -> None:
    stars = star_groups(
        at_degrees(0, 0, 0, 0, 90, 90), 0.9, cannot_link=CannotLink([np.array([1, 2]), np.array([1, 3])])
    )
    assert [(star.keep, star.members) for star in stars] == [(0, (1,)), (2, (3,)), (4, (5,))]


def test_pixels_do_not_overrule_what_people_decided() -> None:
    evidence = Evidence(vectors=at_degrees(0, 0), pixels=np.array([1, 1]))
    assert star_groups(evidence, 0.9, cannot_link=CannotLink([np.array([0, 1])])) == []
