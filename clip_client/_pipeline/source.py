"""Takes images from a list, a generator or an async iterator, no faster than results are delivered."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, KeysView, ValuesView
from itertools import islice
from queue import SimpleQueue
from typing import Any, Final

import anyio
import anyio.to_thread
import numpy as np

_END: Final = object()

_BLOCKED_S: Final = 0.1
"""Seconds to wait for an iterable that is making an item when the stream is left. One that takes longer is closed by
its thread, later."""

_CONTAINERS: Final = (list, tuple, set, frozenset, deque, np.ndarray, KeysView, ValuesView)
"""Iterating over these never blocks; any other iterable might, so it runs in a thread."""


class Source(ABC):
    """The items of one iterable. At most ``max_ahead`` of them, buffered ones included, are not delivered yet."""

    exhausted = False
    """True if the iterable is known to have ended."""

    def __init__(self, max_ahead: int) -> None:
        self._slots = max_ahead
        self._slot_freed = asyncio.Event()

    def at_once(self) -> list[Any]:
        """Return the first items that can be had without waiting."""
        return []

    @abstractmethod
    async def next(self) -> list[Any]:
        """Wait for at least one item, and return all that have arrived, in order.

        Raises StopAsyncIteration at the end, and what the iterable raises.
        """

    async def _wait_for_slot(self) -> None:
        while not self._slots:
            self._slot_freed.clear()
            await self._slot_freed.wait()

    def delivered(self) -> None:
        """Report that one item has reached the consumer, so the iterable may give one more."""
        self._slots += 1
        self._slot_freed.set()

    def rest(self) -> list[Any] | None:
        """Return all items that were not taken yet; None if only the iterable knows them."""
        return None

    @abstractmethod
    async def aclose(self) -> None:
        """Stop iterating, and close an iterator that has ``close`` or ``aclose``, as a generator has. Raises its error.

        If the iterable is blocking, its thread does that when it returns.
        """


def open_source(items: Iterable[Any] | AsyncIterable[Any], *, max_ahead: int) -> Source:
    if isinstance(items, _CONTAINERS):
        return _ContainerSource(items, max_ahead)
    if isinstance(items, AsyncIterable):
        return _AsyncSource(items, max_ahead)
    return _ThreadSource(items, max_ahead)


class _ContainerSource(Source):
    def __init__(self, items: Iterable[Any], max_ahead: int) -> None:
        super().__init__(max_ahead)
        self._iterator = iter(items)

    def at_once(self) -> list[Any]:
        items = list(islice(self._iterator, self._slots))
        self.exhausted = len(items) < self._slots
        self._slots -= len(items)
        return items

    async def next(self) -> list[Any]:
        await self._wait_for_slot()
        if not (items := self.at_once()):
            raise StopAsyncIteration
        return items

    def rest(self) -> list[Any]:
        return list(self._iterator)

    async def aclose(self) -> None:
        """Do nothing."""


class _AsyncSource(Source):
    def __init__(self, items: AsyncIterable[Any], max_ahead: int) -> None:
        super().__init__(max_ahead)
        self._items = items
        self._iterator: AsyncIterator[Any] | None = None

    async def next(self) -> list[Any]:
        await self._wait_for_slot()
        if self._iterator is None:
            self._iterator = aiter(self._items)
        item = _own(await anext(self._iterator))
        self._slots -= 1
        return [item]

    async def aclose(self) -> None:
        if (close := getattr(self._iterator, "aclose", None)) is not None:
            await close()


class _ThreadSource(Source):
    def __init__(self, items: Iterable[Any], max_ahead: int) -> None:
        super().__init__(0)
        self._loop = asyncio.get_running_loop()
        self._buffer: deque[Any] = deque()
        self._arrival = asyncio.Event()
        self._announced = False
        # Each number is how many more items the thread may take.
        self._permits: SimpleQueue[int] = SimpleQueue()
        self._permits.put(max_ahead)
        self._delivered = 0
        # The thread is woken for several items at a time: waking it for each would take longer than the item itself.
        self._permits_at_once = max(1, max_ahead // 8)
        self._closed = threading.Event()
        self._is_blocking = True
        """False while the thread waits for permits, or closes the iterator: it will soon end if it is told to."""
        self._error: BaseException | None = None
        # A limiter of its own: a generator that sleeps for hours must not occupy one of the shared threads.
        work = anyio.to_thread.run_sync(self._pump, items, limiter=anyio.CapacityLimiter(1), abandon_on_cancel=True)
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(lambda _: self._arrival.set())

    async def next(self) -> list[Any]:
        while not self._buffer:
            if self._task.done():
                self._task.result()  # raises if no thread could be started, or if the iterator failed to close
                raise self._error or StopAsyncIteration
            await self._arrival.wait()
            self._arrival.clear()
        # The length is read first: the thread may append meanwhile.
        return [self._buffer.popleft() for _ in range(len(self._buffer))]

    def delivered(self) -> None:
        self._delivered += 1
        if self._delivered == self._permits_at_once:
            self._permits.put(self._delivered)
            self._delivered = 0

    def rest(self) -> list[Any] | None:
        return list(self._buffer) if self._task.done() else None

    async def aclose(self) -> None:
        self._closed.set()
        self._permits.put(0)
        if self._is_blocking:
            await asyncio.wait({self._task}, timeout=_BLOCKED_S)
        if not self._is_blocking:
            await asyncio.wait({self._task})
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def _pump(self, items: Iterable[Any]) -> None:
        """In the worker thread: item after item, while there are permits."""
        iterator: Iterator[Any] | None = None
        try:
            iterator = iter(items)
            permits = 0
            while not self._closed.is_set():
                if not permits:
                    self._is_blocking = False
                    permits = self._permits.get()
                    self._is_blocking = True  # before the flag is read again, so that aclose() sees one of the two
                    continue
                permits -= 1
                item = next(iterator, _END)
                if item is _END:
                    break
                self._buffer.append(_own(item))
                self._announce()
        except BaseException as error:  # kept: a CancelledError would seem to be the task's own
            self._error = error
        self._is_blocking = False
        if (close := getattr(iterator, "close", None)) is not None:
            close()

    def _announce(self) -> None:
        # One wake-up for a burst of items. The flag is cleared before the buffer is read, so that no item is missed.
        if not self._announced:
            self._announced = True
            with contextlib.suppress(RuntimeError):  # the loop has been closed under an abandoned thread
                self._loop.call_soon_threadsafe(self._arrived)

    def _arrived(self) -> None:
        self._announced = False
        self._arrival.set()


def _own(item: Any) -> Any:
    """Return a copy of a buffer, because the iterable may use it again or release it when it makes the next item."""
    try:
        return bytes(item) if isinstance(item, bytearray | memoryview) else item
    except ValueError:  # it was released before: an error of this image
        return item
