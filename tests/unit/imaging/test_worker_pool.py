"""Threads that share the items of a list."""

from __future__ import annotations

import threading

import pytest

from preprocess_ensemble.imaging.worker_pool import WorkerPool


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_keep_the_order_of_the_items(threads: int) -> None:
    pool = WorkerPool(threads)
    for count in (0, 1, 2, 100):
        assert pool.map(lambda item: item * item, range(count)) == [item * item for item in range(count)]
    pool.close()


def test_all_threads_work_and_the_caller_is_one_of_them() -> None:
    pool = WorkerPool(3)
    together = threading.Barrier(3, timeout=60)

    def meet(_: int) -> int:
        together.wait()
        return threading.get_ident()

    assert threading.get_ident() in (found := set(pool.map(meet, range(3))))
    assert len(found) == 3
    pool.close()


def test_a_single_item_stays_in_the_callers_thread() -> None:
    pool = WorkerPool(4)
    assert pool.map(lambda _: threading.get_ident(), [0]) == [threading.get_ident()]
    pool.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_an_exception_is_raised_once_the_others_are_done(threads: int) -> None:
    pool = WorkerPool(threads)
    with pytest.raises(ZeroDivisionError):
        pool.map(lambda item: 1 // item, [2, 1, 0, 1, 2])
    assert pool.map(abs, [-1, 1]) == [1, 1]
    pool.close()
