"""Requests that wait while the model runs share its next run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Generic, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


class Batcher(Generic[In, Out]):
    """Runs ``work`` on one thread, one batch after another.

    A batch is what waits when the thread is free, up to ``max_items``; no request waits for others. With ``max_items``
    1 every request runs alone, even if it has several items.
    """

    def __init__(self, work: Callable[[list[In]], list[Out]], *, max_items: int) -> None:
        self._work = work
        self._max_items = max_items
        self._waiting: deque[tuple[Sequence[In], Future[list[Out]]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def submit(self, items: Sequence[In]) -> list[Out]:
        """Return ``work``'s outputs for ``items``, in order. Raises what ``work`` raises."""
        future: Future[list[Out]] = Future()
        self._waiting.append((items, future))
        self._thread.submit(self._run_waiting)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Let the thread end after the current batch."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run_waiting(self) -> None:
        """On the thread, once for each request: run the next batch, if an earlier one did not include them all."""
        batch: list[tuple[Sequence[In], Future[list[Out]]]] = []
        count = 0
        while self._waiting and (not batch or count + len(self._waiting[0][0]) <= self._max_items):
            items, future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():  # False if the caller is gone
                batch.append((items, future))
                count += len(items)
        try:
            outputs = iter(self._work([item for items, _ in batch for item in items]) if batch else ())
        except Exception as error:  # it belongs to the callers
            for _, future in batch:
                future.set_exception(error)
        else:
            for items, future in batch:
                future.set_result(list(islice(outputs, len(items))))
