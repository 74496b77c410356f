"""Photos that people decided to be different share no group, however many they are."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np

from clip_client.dedup import Evidence, star_groups
from clip_client.dedup.compare.star_groups import CannotLink

_ALL = 2000


def members_of(cannot_link: CannotLink, row: int) -> set[int]:
    return {int(other) for others in cannot_link.after(row) for other in others}


def test_sets_are_looked_up_by_row() -> None:
    cannot_link = CannotLink([np.array([1, 4, 7]), np.array([2, 4]), np.array([5])])
    assert members_of(cannot_link, 1) == {4, 7}
    assert members_of(cannot_link, 4) == {7}  # nothing but what comes after it
    assert members_of(cannot_link, 2) == {4}
    assert members_of(cannot_link, 5) == set()  # of one photo alone nothing was said
    assert cannot_link.may_share(1, 2)
    assert not cannot_link.may_share(7, 4)


def test_sets_of_some_rows_have_their_positions() -> None:
    among = CannotLink([np.array([1, 4, 7]), np.array([2, 4])]).among(np.array([7, 2, 1]))
    assert [members_of(among, position) for position in range(3)] == [{2}, set(), set()]
    assert CannotLink([np.array([1, 4])]).among(np.array([1, 2])).sets_of(0) == []


def test_pairs_say_the_same_as_sets() -> None:
    pairs = CannotLink.from_pairs({0: np.array([0, 2]), 2: np.array([0]), 1: np.array([3])})
    assert [members_of(pairs, row) for row in range(4)] == [{2}, {3}, set(), set()]


def test_photos_that_are_all_kept_take_no_memory_for_their_pairs() -> None:
    """Two decisions about 2,000 photos of one scene: as pairs, 32 MB."""
    vectors = np.tile(np.array([1, 0], dtype=np.float32), (_ALL, 1))
    tracemalloc.start()
    try:
        everything = np.arange(_ALL)
        cannot_link = CannotLink([everything, everything]).among(everything[::-1])
        stars = star_groups(Evidence(vectors), 0.9, cannot_link=cannot_link)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert stars == []
    assert peak_bytes < 10e6


def test_many_decisions_leave_only_undecided_photos() -> None:
    vectors = np.tile(np.array([1, 0], dtype=np.float32), (6, 1))
    decisions = [np.array(rows) for rows in itertools.combinations(range(4), 3)]
    (star,) = star_groups(vectors, 0.9, cannot_link=CannotLink(decisions))
    assert (star.keep, star.members) == (0, (4, 5))
