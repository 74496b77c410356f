"""Which rows are aligned with which, and what follows from the tiers: on made-up alignments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clip_client.dedup.aligned import Alignment
from clip_client.dedup.compare.keep_rules import KeepRules
from clip_client.dedup.compare.proofs import Proofs
from clip_client.dedup.types import ALTERED, EDITED, RE_ENCODED
from tests.fixtures.members import alignment, photo
from tests.unit.dedup.compare.comparisons import FakeAligner, compared_of, evidence_of, proofs_of

Pair = tuple[int, int]
DOUBTFUL = "doubtful "
"""Before a tier: the kept row may have been made from the other."""


def aligned(tier: str) -> Alignment:
    return alignment(tier.removeprefix(DOUBTFUL), doubts=("it is enlarged",) if tier.startswith(DOUBTFUL) else ())


def proved(
    tiers: Mapping[Pair, str], pairs: Iterable[Pair], count: int, order: Sequence[int] = (), **more: Any
) -> tuple[Proofs, FakeAligner]:
    """Prove what ``pairs`` of ``count`` rows, by default the best first, are by a table of what is true."""
    paired: defaultdict[int, set[int]] = defaultdict(set)
    for one, other in pairs:
        paired[one].add(other)
        paired[other].add(one)
    files = [[photo(f"{row}.jpg")] for row in range(count)]
    compared = compared_of(files, evidence_of(np.zeros((count, 1))), KeepRules(), paired=paired, **more)
    found = proofs_of(compared, lambda kept, row: aligned(tiers[kept, row]) if (kept, row) in tiers else None)
    found[0].prove(order or range(count), lambda *told: None)
    return found


def steps(count: int, *steps: int) -> list[tuple[int, int]]:
    """Return the pairs of each row with the rows that many places after it."""
    return [(row, row + step) for row in range(count) for step in steps if row + step < count]


def test_a_large_cluster_of_copies_is_aligned_with_the_best_photo_only() -> None:
    count = 2000
    copies = {(0, row): RE_ENCODED for row in range(1, count)}
    proofs, pictures = proved(copies, steps(count, 1, 2, 3, 4), count)  # 8 neighbours each
    assert len(pictures.asked) == count - 1
    assert {proofs.best(row) for row in range(1, count)} == {0}


def test_photos_that_are_no_copies_are_aligned_once_with_each_neighbour() -> None:
    _, pictures = proved({}, steps(100, 1, 2), 100)
    assert sorted(pictures.asked) == steps(100, 1, 2)


def test_rows_that_can_move_for_none_are_aligned_a_limited_number_of_times() -> None:
    count = 200
    _, pictures = proved(dict.fromkeys(steps(count, *range(1, count)), DOUBTFUL + EDITED), steps(count, 1), count)
    assert len(pictures.asked) < 20 * count


def test_a_copy_of_a_copy_is_found_through_it_and_a_stranger_is_not() -> None:
    tiers = {(0, 1): EDITED, (0, 2): EDITED, (1, 2): RE_ENCODED, (2, 3): EDITED}
    proofs, pictures = proved(tiers, [(0, 1), (1, 2), (2, 3)], 4)
    closer = proofs.between(2, 1)
    assert closer is not None
    assert (proofs.best(2), closer.tier) == (1, RE_ENCODED)
    assert proofs.between(2, 0) is not None
    # Row 2 is in all respects what row 1 is, so only row 1 was left to try.
    assert proofs.best(3) is None
    assert (2, 3) not in pictures.asked


def test_an_altered_picture_has_copies_of_its_own() -> None:
    proofs, _ = proved({(0, 1): ALTERED, (0, 2): ALTERED, (1, 2): RE_ENCODED}, [(0, 1), (1, 2)], 3)
    assert proofs.best(2) == 1


def test_a_better_row_without_a_doubt_comes_first() -> None:
    for tier in (RE_ENCODED, EDITED):
        tiers = {(0, 1): DOUBTFUL + tier, (0, 2): DOUBTFUL + EDITED, (1, 2): EDITED}
        proofs, _ = proved(tiers, tiers, 3)
        assert [proofs.best(row) for row in (1, 2)] == [0, 1]


def test_the_row_that_others_are_made_from_is_aligned_with_all_and_replaces_the_doubted_one() -> None:
    count = 30
    tiers = {
        **{(0, row): DOUBTFUL + EDITED for row in range(1, count)},
        **{(1, row): RE_ENCODED for row in range(2, count)},
        (1, 0): EDITED,
    }
    proofs, pictures = proved(tiers, steps(count, 1), count)
    assert set(map(proofs.best, range(2, count))) == {1}
    assert proofs.doubted() == {0: "it is enlarged"}
    asked = list(pictures.asked)
    proofs.prove([*range(1, count), 0], lambda *told: None)
    assert (pictures.asked, proofs.doubted()) == (asked, {})
    assert [proofs.best(row) for row in range(3)] == [1, None, 1]


@pytest.mark.parametrize(
    "tiers",
    [
        {(0, 1): DOUBTFUL + RE_ENCODED, (1, 0): DOUBTFUL + RE_ENCODED},  # which is the source cannot be told
        {(0, 1): EDITED, (1, 2): DOUBTFUL + EDITED, (2, 1): EDITED},  # the doubted row moves itself
    ],
)
def test_a_row_is_doubted_only_if_it_could_move_for_another(tiers: dict[tuple[int, int], str]) -> None:
    proofs, _ = proved(tiers, [(0, 1), (1, 2)], 3)
    assert proofs.doubted() == {}


def test_rows_that_may_not_be_copies_are_never_aligned() -> None:
    proofs, pictures = proved({(0, 1): RE_ENCODED}, [(0, 1)], 2, cannot_link=[[0, 1]])
    assert proofs.align(0, [1]) == []
    assert (pictures.asked, proofs.best(1)) == ([], None)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    tiers=st.dictionaries(
        st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] < pair[1]),
        st.sampled_from([RE_ENCODED, EDITED, ALTERED]),
    ),
    pairs=st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] != pair[1]), max_size=20
    ),
    order=st.permutations(range(8)),
)
def test_proofs_do_not_depend_on_the_order_of_pairs_and_never_point_to_a_worse_photo(
    tiers: dict[tuple[int, int], str], pairs: list[tuple[int, int]], order: list[int]
) -> None:
    found = []
    for some in (pairs, [(other, one) for one, other in reversed(pairs)]):
        table = {(order[one], order[other]): tier for (one, other), tier in tiers.items()}
        proofs, _ = proved(table, some, 8, order)
        found.append([proofs.best(row) for row in range(8)])
    assert found[0] == found[1]
    for row, kept in enumerate(found[0]):
        assert kept is None or order.index(kept) < order.index(row)
