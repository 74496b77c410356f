"""Requests that wait while the model runs share its next run."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True)
class _Waiting(Generic[In, Out]):
    items: Sequence[In]
    future: asyncio.Future[list[Out]]


class Batcher(Generic[In, Out]):
    """Runs ``work`` on one thread, one batch after another.

    A batch is what waits when the thread is free, up to ``max_items``; nothing ever waits for company. With
    ``max_items`` 1 every request is run by itself, however many items it has.
    """

    def __init__(self, work: Callable[[list[In]], list[Out]], *, max_items: int) -> None:
        self._work = work
        self._max_items = max_items
        self._waiting: deque[_Waiting[In, Out]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._running = False

    async def submit(self, items: Sequence[In]) -> list[Out]:
        """Return ``work``'s outputs for ``items``, in order. Raises what ``work`` raises."""
        future: asyncio.Future[list[Out]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(items, future))
        self._start()
        return await future

    def close(self) -> None:
        """Let the thread end after the batch that is under way."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        if self._running or not self._waiting:
            return
        self._running = True
        batch = self._take()
        items = [item for waiting in batch for item in waiting.items]
        run = asyncio.get_running_loop().run_in_executor(self._thread, self._work, items)
        run.add_done_callback(lambda done: self._finish(batch, done))

    def _take(self) -> list[_Waiting[In, Out]]:
        batch = [self._waiting.popleft()]
        count = len(batch[0].items)
        while self._waiting and count + len(self._waiting[0].items) <= self._max_items:
            batch.append(self._waiting.popleft())
            count += len(batch[-1].items)
        return batch

    def _finish(self, batch: list[_Waiting[In, Out]], done: asyncio.Future[list[Out]]) -> None:
        self._running = False
        self._start()
        first = 0
        for waiting in batch:
            last = first + len(waiting.items)
            if not waiting.future.done():  # a caller that has left has cancelled it
                if done.cancelled():
                    waiting.future.cancel()
                elif (error := done.exception()) is not None:
                    waiting.future.set_exception(error)
                else:
                    waiting.future.set_result(done.result()[first:last])
            first = last
