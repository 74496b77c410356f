"""Takes images from a list, a generator or an async iterator, no faster than results are delivered."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, KeysView, ValuesView
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import anyio.to_thread
import numpy as np

from clip_client._pipeline.images import is_single

if TYPE_CHECKING:
    from clip_client._image_source import ImageSources

_END: Final = object()

_BLOCKED_S: Final = 0.1
"""Seconds to wait for an iterable that is making an item when the stream is left. One that takes longer is closed by
its thread, later."""

_CONTAINERS: Final = (list, tuple, set, frozenset, deque, np.ndarray, KeysView, ValuesView)
"""Iterating over these never blocks; any other iterable might, so it runs in a thread."""


class Source(Protocol):
    """Items from one iterable. At most ``max_ahead`` of them, buffered ones included, are not delivered yet."""

    @property
    def exhausted(self) -> bool:
        """True if the iterable has ended and everything buffered has been taken."""

    error: BaseException | None
    """What the caller's iterable raised, which also ends the source."""

    def take(self) -> list[Any]:
        """Return the items that have arrived, in order; never blocks."""

    def delivered(self) -> None:
        """Report that one item has reached the consumer, so the iterable may give one more."""

    def rest(self) -> list[Any] | None:
        """Return all items that were not taken yet, and end; None if the iterable has not ended."""

    async def aclose(self) -> None:
        """Stop iterating, and close an iterator that has ``close`` or ``aclose``, as a generator has.

        If the iterable is blocking, its thread does that when it returns.
        """


def open_source(images: ImageSources, *, max_ahead: int, on_arrival: Callable[[], None]) -> Source:
    """Start iterating; ``on_arrival`` is called in the event loop whenever there may be items to take."""
    if is_single(images):
        return _ContainerSource([images], max_ahead)
    if isinstance(images, _CONTAINERS):
        return _ContainerSource(images, max_ahead)
    if isinstance(images, AsyncIterable):
        return _AsyncSource(images, max_ahead, on_arrival)
    if isinstance(images, Iterable):
        return _ThreadSource(images, max_ahead, on_arrival)
    raise TypeError(f"expected an image or an iterable of images, got {type(images).__name__}")


class _ContainerSource:
    def __init__(self, images: Iterable[Any], max_ahead: int) -> None:
        self.exhausted = False
        self.error: BaseException | None = None
        self._iterator = iter(images)
        self._slots = max_ahead

    def take(self) -> list[Any]:
        if self.exhausted:
            return []
        items = list(islice(self._iterator, self._slots))
        self.exhausted = len(items) < self._slots
        self._slots -= len(items)
        return items

    def delivered(self) -> None:
        self._slots += 1

    def rest(self) -> list[Any]:
        self.exhausted = True
        return list(self._iterator)

    async def aclose(self) -> None:
        self.exhausted = True


class _BufferedSource:
    """The common part of the two sources that run concurrently with the consumer."""

    def __init__(self, on_arrival: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self._buffer: deque[Any] = deque()
        self._ended = False
        self._on_arrival = on_arrival

    @property
    def exhausted(self) -> bool:
        return self._ended and not self._buffer

    def take(self) -> list[Any]:
        # The length is read first: the other side may append meanwhile.
        return [self._buffer.popleft() for _ in range(len(self._buffer))]

    def rest(self) -> list[Any] | None:
        return self.take() if self._ended else None

    async def _cancel(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait({task})
        self._buffer.clear()
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "The source of a stream failed to close.", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)


class _AsyncSource(_BufferedSource):
    def __init__(self, images: AsyncIterable[Any], max_ahead: int, on_arrival: Callable[[], None]) -> None:
        super().__init__(on_arrival)
        self._slots = asyncio.Semaphore(max_ahead)
        self._closed = False
        self._task = asyncio.create_task(self._run(images), name="clip_client source")

    async def _run(self, images: AsyncIterable[Any]) -> None:
        try:
            iterator = aiter(images)
            try:
                await self._slots.acquire()
                async for item in iterator:
                    self._buffer.append(_own(item))
                    self._on_arrival()
                    await self._slots.acquire()
            finally:
                if (close := getattr(iterator, "aclose", None)) is not None:
                    await close()
        except BaseException as error:
            if self._closed:
                raise
            # Includes a CancelledError of something that the iterable itself awaited: without this, the consumer would
            # never learn of the end.
            self.error = error
        self._ended = True
        self._on_arrival()

    def delivered(self) -> None:
        self._slots.release()

    async def aclose(self) -> None:
        self._closed = True
        await self._cancel(self._task)


class _ThreadSource(_BufferedSource):
    def __init__(self, images: Iterable[Any], max_ahead: int, on_arrival: Callable[[], None]) -> None:
        super().__init__(on_arrival)
        self._loop = asyncio.get_running_loop()
        # Each number is how many more items the thread may take.
        self._permits: SimpleQueue[int] = SimpleQueue()
        self._permits.put(max_ahead)
        self._delivered = 0
        # The thread is woken for several items at a time: waking it for each would take longer than the item itself.
        self._permits_at_once = max(1, max_ahead // 8)
        self._closed = threading.Event()
        self._is_blocking = True
        """False while the thread waits for permits, or closes the iterator: it will soon end if it is told to."""
        self._announced = False
        self._task = asyncio.create_task(self._run(images), name="clip_client source")

    async def _run(self, images: Iterable[Any]) -> None:
        # A limiter of its own: a generator that sleeps for hours must not occupy one of the shared threads.
        limiter = anyio.CapacityLimiter(1)
        try:
            await anyio.to_thread.run_sync(self._pump, images, limiter=limiter, abandon_on_cancel=True)
        except Exception as error:
            if self._closed.is_set():  # the iterator failed to close
                raise
            # Or no thread could be started: the consumer must not wait indefinitely.
            self.error = error
            self._ended = True
            self._on_arrival()

    def _pump(self, images: Iterable[Any]) -> None:
        """In the worker thread: item after item, while there are permits."""
        iterator: Iterator[Any] | None = None
        try:
            iterator = iter(images)
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
        except BaseException as error:  # else the consumer would wait indefinitely
            self.error = error
        self._is_blocking = False
        if (close := getattr(iterator, "close", None)) is not None:
            close()
        self._ended = True
        self._announce()

    def _announce(self) -> None:
        # One wake-up for a burst of items. The flag is cleared before the buffer is read, so that no item is missed.
        if not self._announced and not self._closed.is_set():
            self._announced = True
            with contextlib.suppress(RuntimeError):  # the loop has been closed under an abandoned thread
                self._loop.call_soon_threadsafe(self._arrived)

    def _arrived(self) -> None:
        self._announced = False
        if not self._closed.is_set():
            self._on_arrival()

    def delivered(self) -> None:
        self._delivered += 1
        if self._delivered == self._permits_at_once:
            self._permits.put(self._delivered)
            self._delivered = 0

    async def aclose(self) -> None:
        self._closed.set()
        self._permits.put(0)
        await asyncio.wait({self._task}, timeout=_BLOCKED_S if self._is_blocking else None)
        await self._cancel(self._task)


def _own(item: Any) -> Any:
    """Return a copy of a buffer, because the iterable may use it again or release it when it makes the next item."""
    try:
        return bytes(item) if isinstance(item, bytearray | memoryview) else item
    except ValueError:  # it was released before: an error of this image
        return item
