"""Threads that work through one list together."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ("WorkerPool", "usable_cores")

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerPool:
    """So many threads, of which the one that calls :meth:`map` is one.

    ``ThreadPoolExecutor.map`` hands over each item by itself, which wakes three threads that all want Python's lock to
    say so: with two threads on two cores that cost a quarter of the rate of images that take 1.6 ms each. Here a thread
    is woken once a list, takes the next item when it is done with one, and a list of one item wakes nobody.
    """

    def __init__(self, threads: int, name: str = "") -> None:
        self._threads = threads
        self._others = ThreadPoolExecutor(threads - 1, thread_name_prefix=name) if threads > 1 else None

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Call ``function`` with every item and return the results in order; an exception of any call is raised."""
        results: list[Result | None] = [None] * len(items)
        places = iter(range(len(items)))  # `next` is one step under Python's lock, so no two threads get one place

        def work() -> None:
            for place in places:
                results[place] = function(items[place])

        helpers = min(self._threads, len(items)) - 1 if self._others is not None else 0
        others = [self._others.submit(work) for _ in range(helpers)] if self._others is not None else []
        try:
            work()
        finally:
            wait(others)
        for other in others:
            other.result()
        return cast("list[Result]", results)

    def close(self, *, wait: bool = True) -> None:
        """Stop the threads, and by default wait until they have."""
        if self._others is not None:
            self._others.shutdown(wait=wait)


def usable_cores() -> int:
    """How many cores this process may use: one pinned to some must not start a thread for each core of its host."""
    if not hasattr(os, "sched_getaffinity"):  # as on macOS and Windows
        return os.cpu_count() or 1
    return len(os.sched_getaffinity(0))
