"""Star groups against their definition, written down as slowly as it reads, and what people forbid."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clip_client.dedup.compare.star_groups import CannotLink, Evidence, minimum_similarity, star_groups
from tests.fixtures.vectors import at_degrees, clusters, unit
from tests.unit.dedup.compare.comparisons import evidence_of, with_peak_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

NAN = float("nan")


def closeness(evidence: Evidence, row: int, other: int, threshold: float, most_bits: int) -> float | None:
    """How close two rows are: 2 for equal pixels, else their similarity; None if they are not alike."""
    if evidence.pixels[row] == evidence.pixels[other]:
        return 2.0
    similarity = round(float(evidence.vectors[row].astype(float) @ evidence.vectors[other].astype(float)), 6)
    bits = int(evidence.hashes[row] ^ evidence.hashes[other]).bit_count()
    if evidence.has_hash[row] and evidence.has_hash[other] and bits <= most_bits:
        return 0.0 if np.isnan(similarity) else similarity
    return similarity if similarity >= threshold else None


def by_definition(
    evidence: Evidence, rows: Sequence[int], threshold: float, most_bits: int, forbidden: set[frozenset[int]]
) -> dict[int, list[int]]:
    """Return the kept row and the members of each group."""
    members: dict[int, list[int]] = {}
    for row in rows:
        near = []
        for keep in members:
            close = closeness(evidence, keep, row, threshold, most_bits)
            if close is not None and frozenset((row, keep)) not in forbidden:
                near.append((close, keep))
        if near:
            closest = max(close for close, _ in near)
            members[next(keep for close, keep in near if close == closest)].append(row)
        else:
            members[row] = []
    found: dict[int, list[int]] = {}
    rejected: list[int] = []
    for keep, claimed in members.items():
        taken: list[int] = []
        for row in claimed:
            is_free = all(frozenset((row, other)) not in forbidden for other in taken)
            (taken if is_free else rejected).append(row)
        if taken:
            found[keep] = taken
    if rejected:
        found |= by_definition(evidence, sorted(rejected), threshold, most_bits, forbidden)
    return found


def stars(
    compared_by: Evidence | NDArray[np.float32],
    threshold: float,
    *,
    most_bits: int = -1,
    cannot_link: Iterable[Sequence[int]] = (),
) -> dict[int, list[int]]:
    evidence = compared_by if isinstance(compared_by, Evidence) else evidence_of(compared_by)
    sets = CannotLink(np.array(rows, dtype=np.intp) for rows in cannot_link)
    return star_groups(evidence, threshold, most_bits=most_bits, cannot_link=sets)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    rows=st.lists(
        st.tuples(st.one_of(st.integers(0, 40), st.just(NAN)), st.integers(0, 8), st.integers(0, 15), st.booleans()),
        min_size=2,
        max_size=14,
    ),
    sets=st.lists(st.sets(st.integers(0, 13), max_size=5), max_size=4),
    most_bits=st.integers(-1, 2),
)
def test_groups_are_what_their_definition_says(
    rows: list[tuple[float, int, int, bool]], sets: list[set[int]], most_bits: int
) -> None:
    count = len(rows)
    angles, pixels, hashes, has_hash = zip(*rows, strict=True)
    evidence = Evidence(
        at_degrees(*angles),
        # Equal pixels are rare.
        np.array([number if number < 3 else 100 + row for row, number in enumerate(pixels)]),
        np.array(hashes, dtype=np.uint64),
        np.array(has_hash),
    )
    threshold = float(np.cos(np.radians(6.5)))
    inside = [sorted(row for row in one if row < count) for one in sets]
    forbidden = {frozenset(pair) for one in inside for pair in itertools.combinations(one, 2)}
    found = stars(evidence, threshold, most_bits=most_bits, cannot_link=inside)
    assert found == by_definition(evidence, range(count), threshold, most_bits, forbidden)


def test_rows_of_many_blocks_are_grouped_by_the_definition() -> None:
    """300 frames of a night, of which few are alike to the first: many are kept."""
    random = np.random.default_rng(0)
    vectors = np.ones((300, 16)) + 0.15 * random.standard_normal((300, 16))
    evidence = evidence_of(unit(vectors))
    found = stars(evidence, 0.985)
    assert len(found) > 10
    assert found == by_definition(evidence, range(300), 0.985, -1, set())


def test_similarities_have_six_decimals_and_the_least_is_over_all_pairs_of_all_blocks() -> None:
    vectors = np.array([[1, 0], [0.6, 0.8]], dtype=np.float32)
    assert stars(vectors, 0.6) == {0: [1]}
    assert stars(vectors, 0.600001) == {}
    assert stars(np.repeat(clusters(seed=4, count=1, size=1, spread=0), 3, axis=0), 1.0) == {0: [1, 2]}
    assert minimum_similarity(np.array([[1.000001, 0], [-1.000001, 0]], dtype=np.float32)) == -1.0
    assert minimum_similarity(np.array([[1, 0], [0.9999984, 0.0017]], dtype=np.float32)) == 0.999998
    assert minimum_similarity(at_degrees(0, 6, -6)) == pytest.approx(np.cos(np.radians(12)), abs=1e-6)
    assert minimum_similarity(at_degrees(*[0] * 1100, 40, *[5] * 1000, -30)) == pytest.approx(np.cos(np.radians(70)))
    assert minimum_similarity(at_degrees(0)) == 1.0


def test_a_member_goes_to_the_row_of_equal_pixels_before_the_closest_vector() -> None:
    assert stars(evidence_of(at_degrees(10, 0, 10), pixels=[7, 8, 8]), float(np.cos(np.radians(6)))) == {1: [2]}


def test_rejected_rows_are_grouped_with_each_other_under_the_same_constraints() -> None:
    among = [[1, 2], [1, 3], [1, 4]]
    assert stars(at_degrees(*[0] * 5), 0.9, cannot_link=among) == {0: [1], 2: [3, 4]}
    assert stars(at_degrees(*[0] * 5), 0.9, cannot_link=[*among, [2, 4]]) == {0: [1], 2: [3]}


def test_rejected_rows_are_grouped_with_each_other_by_all_evidence() -> None:
    """Rows 2 and 3 are alike to the kept one, and must not be with row 1; their vectors are 12 degrees apart."""
    vectors, near = at_degrees(0, 0, 6, -6), float(np.cos(np.radians(6.5)))
    hashes = [0, 0xFF00, 0b1111, 0b0111]

    def found(most_bits: int = -1, **evidence: Any) -> dict[int, list[int]]:
        return stars(evidence_of(vectors, **evidence), near, most_bits=most_bits, cannot_link=[[1, 2], [1, 3]])

    assert found() == {0: [1]}
    assert found(pixels=[0, 1, 2, 2]) == {0: [1], 2: [3]}
    assert found(1, hashes=hashes) == {0: [1], 2: [3]}
    assert found(0, hashes=hashes) == found(1, hashes=[*hashes[:3], None]) == {0: [1]}


def test_sets_are_looked_up_by_row_and_reduced_to_positions() -> None:
    def after(cannot_link: CannotLink, row: int) -> set[int]:
        return {int(other) for others in cannot_link.after(row) for other in others}

    sets = CannotLink([np.array([1, 4, 7]), np.array([2, 4]), np.array([5])])
    assert {row: after(sets, row) for row in (1, 2, 4, 5)} == {1: {4, 7}, 2: {4}, 4: {7}, 5: set()}
    assert [sets.may_share(1, other) for other in (2, 4, 7)] == [True, False, False]
    among = sets.among(np.array([7, 2, 1]))
    assert [after(among, position) for position in range(3)] == [{2}, set(), set()]
    assert CannotLink().among(np.array([1, 2])).sets_of(0) == []


def test_photos_that_are_all_kept_take_no_memory_for_their_pairs() -> None:
    """Two decisions about 2,000 photos of one scene: as pairs, 32 MB."""
    evidence, everything = evidence_of(np.tile(np.array([1, 0], dtype=np.float32), (2000, 1))), range(2000)
    found, peak_bytes = with_peak_bytes(lambda: stars(evidence, 0.9, cannot_link=[everything, everything]))
    assert found == {}
    assert peak_bytes < 10e6
