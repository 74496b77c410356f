"""Take images from a list, a generator or an async iterator, no faster than results are delivered."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, KeysView, ValuesView
from contextvars import copy_context
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, Final

import numpy as np

_END: Final = object()
_BUFFERS: Final = (bytearray, memoryview)
_BLOCKED_S: Final = 0.1  # for an iterable that is making an item when the stream is left; later, its thread closes it
_CONTAINERS: Final = (list, tuple, set, frozenset, deque, np.ndarray, KeysView, ValuesView)
"""Types whose iteration never blocks. Any other iterable might block, so it runs in a thread."""


def open_source(items: Iterable[Any] | AsyncIterable[Any], *, max_ahead: int) -> Source:
    if isinstance(items, _CONTAINERS):
        return _ContainerSource(items, max_ahead)
    if isinstance(items, AsyncIterable):
        return _AsyncSource(items, max_ahead)
    return _ThreadSource(items, max_ahead)


class Source(ABC):
    """The items of one iterable. At most ``max_ahead`` items, including buffered ones, are taken and not delivered."""

    def __init__(self, max_ahead: int) -> None:
        self._slots = max_ahead
        self._slot_freed = asyncio.Event()

    @abstractmethod
    async def next(self) -> list[Any]:
        """Wait for items; return all that have come, in order. Raises StopAsyncIteration and the iterable's errors."""

    async def _wait_for_slot(self) -> None:
        while not self._slots:
            self._slot_freed.clear()
            await self._slot_freed.wait()

    def delivered(self, count: int) -> None:
        """Let the iterable give ``count`` more items, because as many have reached the consumer."""
        if not self._slots:
            self._slot_freed.set()
        self._slots += count

    def untaken_items(self) -> list[Any] | None:
        """Return all items that were not taken yet; None if only the iterable knows them."""
        return None

    async def aclose(self) -> None:  # noqa: B027  a container has nothing to close
        """Stop, close a generator or the like, and raise its error. If it blocks, its thread closes it later."""


class _ContainerSource(Source):
    def __init__(self, items: Iterable[Any], max_ahead: int) -> None:
        super().__init__(max_ahead)
        self._iterator = iter(items)

    async def next(self) -> list[Any]:
        await self._wait_for_slot()
        if not (items := list(islice(self._iterator, self._slots))):
            raise StopAsyncIteration
        self._slots -= len(items)
        return items

    def untaken_items(self) -> list[Any]:
        return list(self._iterator)


class _AsyncSource(Source):
    def __init__(self, items: AsyncIterable[Any], max_ahead: int) -> None:
        super().__init__(max_ahead)
        self._iterator = aiter(items)

    async def next(self) -> list[Any]:
        await self._wait_for_slot()
        item = await anext(self._iterator)
        self._slots -= 1
        return [_copied(item) if isinstance(item, _BUFFERS) else item]

    async def aclose(self) -> None:
        if (close := getattr(self._iterator, "aclose", None)) is not None:
            await close()


class _ThreadSource(Source):
    """Runs the iterable in its own thread: a generator that sleeps for hours must not occupy a shared thread."""

    def __init__(self, items: Iterable[Any], max_ahead: int) -> None:
        super().__init__(0)  # the permits are for all slots
        self._loop = asyncio.get_running_loop()
        self._buffer: deque[Any] = deque()
        self._arrival = asyncio.Event()
        self._announced = False
        # Each number lets the thread take so many more items: to wake it for each would take longer than the item.
        # By halves, a stream takes 4 % less processor time than by quarters (measured); by wholes, the thread waits.
        self._permits: SimpleQueue[int] = SimpleQueue()
        self._permits_at_once = max(1, max_ahead // 2)
        self._closed = False
        # False while the thread waits for permits or closes the iterator; then it ends soon if it is told to.
        self._is_blocking = True
        self._error: BaseException | None = None
        self._close_error: BaseException | None = None
        self._ended = asyncio.Event()
        self._permits.put(max_ahead)
        # Use a daemon thread, because the program may end while the iterable blocks.
        work = (self._pump, items)
        threading.Thread(target=copy_context().run, args=work, name="clip_client source", daemon=True).start()

    async def next(self) -> list[Any]:
        while not self._buffer:
            if self._ended.is_set():
                raise self._error or self._close_error or StopAsyncIteration
            await self._arrival.wait()
            self._arrival.clear()
        # Read the length first, because the thread may append meanwhile.
        return [self._buffer.popleft() for _ in range(len(self._buffer))]

    def delivered(self, count: int) -> None:
        self._slots += count
        if self._slots >= self._permits_at_once:
            self._permits.put(self._slots)
            self._slots = 0

    def untaken_items(self) -> list[Any] | None:
        return list(self._buffer) if self._ended.is_set() else None

    async def aclose(self) -> None:
        self._closed = True
        self._permits.put(0)
        if self._is_blocking:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _BLOCKED_S)
        if not self._is_blocking:
            await self._ended.wait()
            if self._close_error is not None:
                raise self._close_error

    def _pump(self, items: Iterable[Any]) -> None:
        iterator: Iterator[Any] | None = None
        item: Any = None
        try:
            iterator = iter(items)
            marked = chain(iterator, (_END,))
            while True:
                self._is_blocking = False
                permits = self._permits.get()
                self._is_blocking = True  # before _closed is read again, so that aclose() sees one of the two
                for item in islice(marked, 0 if self._closed else permits):
                    if item is _END:
                        break
                    self._buffer.append(_copied(item) if isinstance(item, _BUFFERS) else item)
                    # Wake the loop once for a burst. The loop clears the flag before it reads, so it misses none.
                    if not self._announced:
                        self._announced = True
                        self._tell(self._arrived)
                    if self._closed:
                        break
                if item is _END or self._closed:
                    break
        except BaseException as error:
            self._error = error
        self._is_blocking = False
        try:
            if (close := getattr(iterator, "close", None)) is not None:
                close()
        except BaseException as error:
            self._close_error = error
        self._tell(self._has_ended)

    def _tell(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed before this abandoned thread ended
            self._loop.call_soon_threadsafe(call)

    def _arrived(self) -> None:
        self._announced = False
        self._arrival.set()

    def _has_ended(self) -> None:
        self._ended.set()
        self._arrival.set()


def _copied(buffer: bytearray | memoryview) -> bytes | memoryview | bytearray:
    try:  # the iterable may change or release a buffer when it makes the next item
        return bytes(buffer)
    except ValueError:  # the buffer was released; the encoder turns it into the error of this image
        return buffer
