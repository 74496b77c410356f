"""The threads that share a list."""

from __future__ import annotations

import threading

import pytest

from preprocess_ensemble.imaging.worker_pool import Team


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_keep_the_order_of_the_items(threads: int) -> None:
    team = Team(threads)
    for count in (0, 1, 2, 100):
        assert team.map(lambda item: item * item, range(count)) == [item * item for item in range(count)]
    team.close()


def test_all_threads_work_and_the_caller_is_one_of_them() -> None:
    team = Team(3)
    together = threading.Barrier(3, timeout=30)

    def meet(_: int) -> int:
        together.wait()
        return threading.get_ident()

    assert threading.get_ident() in (found := set(team.map(meet, range(3))))
    assert len(found) == 3
    team.close()


def test_a_single_item_stays_in_the_callers_thread() -> None:
    team = Team(4)
    assert team.map(lambda _: threading.get_ident(), [0]) == [threading.get_ident()]
    team.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_an_exception_is_raised_once_the_others_are_done(threads: int) -> None:
    team = Team(threads)
    with pytest.raises(ZeroDivisionError):
        team.map(lambda item: 1 // item, [2, 1, 0, 1, 2])
    assert team.map(abs, [-1, 1]) == [1, 1]
    team.close()
