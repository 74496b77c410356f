"""One call that embeds images or texts: it takes items, encodes and submits them, and delivers the results."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from clip_client._errors import ClipError, DeadlineExceeded, ItemError, Unavailable
from clip_client._pipeline.sender import PendingItem
from clip_client._pipeline.source import open_source

if TYPE_CHECKING:
    from typing import Self

    from clip_client._deadline import Deadline
    from clip_client._model import ModelInfo
    from clip_client._pipeline.encoder import Encoder
    from clip_client._pipeline.sender import Sender


class Stream:
    """One call, as a context manager: leaving it cancels the items in flight.

    A task feeds the sender. The pipeline therefore keeps moving while the consumer is busy, as far as ``max_ahead``
    allows (default: twice ``max_in_flight``). Without ``deadline``, each item has ``timeout_s`` of the configuration.

    Iterate over a stream for chunks: each step waits for results and gives an iterator over all items that can be
    delivered. Each item that is taken from a chunk allows the source to give another item.
    """

    def __init__(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        model: ModelInfo,
        encoder: Encoder,
        sender: Sender,
        threads: anyio.CapacityLimiter,
        *,
        deadline: Deadline | None,
        ordered: bool = False,
        max_ahead: int | None = None,
    ) -> None:
        self._model = model
        self._encoder = encoder
        self._tower = encoder.tower
        self._sender = sender
        self._threads = threads
        self._deadline = deadline
        self._ordered = ordered
        self._loop = asyncio.get_running_loop()

        # An item is in _arrived, then in _pending until its delivery. _queue is in the order of delivery: the order of
        # the source, or, without ``ordered``, the order in which items got their results.
        self._arrived: deque[Any] = deque()
        self._pending: dict[PendingItem, None] = {}
        self._queue: deque[PendingItem] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._submitted = 0
        self._woken: asyncio.Future[None] | None = None
        self._source = open_source(items, max_ahead=max_ahead or 2 * sender.config.max_in_flight)
        self._source_error: BaseException | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False
        """True once the consumer has left, the time is over, or the client was closed."""

    async def __aenter__(self) -> Self:
        self._arrived.extend(self._source.at_once())
        self._submit_arrived()
        if self._arrived or not self._source.exhausted:
            self._feeding = self._start(self._feed(), "clip_client source")
            self._feeding.add_done_callback(lambda _: self._wake())
        self._sender.open_streams.add(self._close)
        if self._sender.closed:
            self._close()
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._sender.open_streams.discard(self._close)
        self._end()
        # Shield the wait, because anyio cancels a task again at each of its awaits, and the source would keep running.
        if self._tasks:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(self._tasks)
        # Leave no cycle of references, because it would keep the client's connections until a garbage collection.
        self._pending.clear()
        self._queue.clear()
        if self._feeding is not None and not self._feeding.cancelled() and (error := self._feeding.exception()):
            context = {"message": "The source of a stream failed to close.", "exception": error}
            self._loop.call_exception_handler(context)

    def _end(self) -> None:
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._pending:
            self._sender.give_up(self._pending)

    def _close(self) -> None:
        """End at once because the client is closed, even if the source waits for something."""
        self._source_error = Unavailable("The client was closed before the stream ended.")
        self._end()
        self._wake()

    async def _feed(self) -> None:
        try:
            try:
                while True:
                    self._submit_arrived()
                    if self._arrived:
                        await self._sender.has_room()
                    else:
                        self._arrived.extend(await self._source.next())
            except StopAsyncIteration:
                pass
            finally:
                await self._source.aclose()
        except BaseException as error:
            if self._has_ended:
                raise
            # Pass on every error, even a CancelledError of something that the iterable itself awaited: otherwise the
            # consumer would never learn of the end.
            self._source_error = error

    def _submit_arrived(self) -> None:
        sender, unchanged = self._sender, self._encoder.unchanged
        while self._arrived and not sender.is_full:
            source = self._arrived.popleft()
            payload = unchanged(source)
            item = self._new_item(source)
            if self._ordered:
                self._queue.append(item)
            if payload is not None:
                sender.submit(item, payload)
            else:
                self._start(self._encode_and_submit(item), f"clip_client {self._tower.value}")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _new_item(self, source: Any) -> PendingItem:
        item = PendingItem(self._submitted, source, self._tower, self._model, self._deadline, self._on_result)
        self._submitted += 1
        self._pending[item] = None
        return item

    async def _encode_and_submit(self, item: PendingItem) -> None:
        encoded = await self._encode(item)
        if isinstance(encoded, ClipError):
            self._sender.finish(item, encoded)
        else:
            self._sender.submit(item, encoded)

    async def _encode(self, item: PendingItem) -> bytes | ClipError:
        try:
            # The time begins once a thread is free, so that items that waited long for a thread have as much time.
            async with self._threads:
                await self._sender.has_room()
                remaining = self._sender.config.timeout_s
                if self._deadline is not None:
                    remaining = self._deadline.of_request
                with anyio.fail_after(remaining):
                    return await anyio.to_thread.run_sync(
                        self._encoder.encode,
                        item.source,
                        self._model,
                        limiter=anyio.CapacityLimiter(1),
                        abandon_on_cancel=True,
                    )
        except ClipError as error:
            return error
        except TimeoutError:
            if self._deadline is not None and self._deadline.extended_by_s is None:  # the time of the call is over
                return DeadlineExceeded(f"Reading {self._tower.value} {item.index} took longer than timeout_s.")
            # Only this file is at fault, such as a file on a share that hangs.
            return self._tower.error(f"reading it took longer than timeout_s ({remaining:g} s).", code="TIMEOUT")
        except (Exception, asyncio.CancelledError) as error:
            if self._has_ended:
                raise
            # The machine lacks memory or threads, or a caller's file object raises CancelledError.
            message = f"Reading {self._tower.value} {item.index} failed: internal error ({type(error).__name__})."
            if isinstance(error, Exception):
                self._loop.call_exception_handler({"message": message, "exception": error})
            return ClipError(message)

    def _on_result(self, item: PendingItem) -> None:
        if not self._ordered:
            self._queue.append(item)
        if self._queue[0] is item:  # else the consumer waits for another item, or has been woken
            self._wake()

    def _on_timer(self) -> None:
        self._timer = None
        self._wake()

    def _wake(self) -> None:
        """Let the consumer look again: a result has come, the time is over, or nothing more will come."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Iterator[PendingItem]:
        """Return the next chunk; after all results, raise the source's error.

        Raises DeadlineExceeded if the time is over and the source may have further items. The chunks raise if the
        service failed. If the deadline is fixed, items that ran out of time are not such a failure: their results are
        the only ClipErrors that are not ItemErrors.
        """
        while not self._has_ended and not (self._queue and not self._queue[0].is_open):
            if self._is_fed and not self._pending:
                self._has_ended = True
            elif self._deadline is not None and self._deadline.expired:
                return self._give_up()
            else:
                # A deadline that is extended meanwhile needs another timer, which is set when this timer has rung.
                if self._deadline is not None and self._timer is None:
                    self._timer = self._loop.call_at(self._deadline.at, self._on_timer)
                self._woken = self._loop.create_future()
                await self._woken
        if self._has_ended:
            raise self._source_error or StopAsyncIteration
        if self._deadline is not None:
            self._deadline.on_progress()
        return self._deliver()

    @property
    def _is_fed(self) -> bool:
        return self._feeding is None or self._feeding.done()

    def _deliver(self) -> Iterator[PendingItem]:
        while not self._has_ended and self._queue and not self._queue[0].is_open:
            item = self._queue.popleft()
            del self._pending[item]
            self._source.delivered()
            if isinstance(item.result, ClipError):
                self._check(item, item.result)
            yield item

    def _check(self, item: PendingItem, error: ClipError) -> None:
        """Complete the error of an item; raise other errors, except if the time of a call with a fixed end is over."""
        if isinstance(error, ItemError):
            error.index = item.index
            error.source = self._encoder.path_of(item.source)
        elif self._deadline is None or self._deadline.extended_by_s is not None or not error.ran_out_of_time:
            raise error

    def _give_up(self) -> Iterator[PendingItem]:
        """End all items that have no result, because the time is over. Raises DeadlineExceeded if more may follow."""
        untaken = [] if self._is_fed else self._source.untaken_items()
        late = [item for item in self._pending if item.is_open]
        late += map(self._new_item, self._arrived)
        name, down = self._tower.value, self._sender.why_down()
        message = (
            f"timeout_s ran out with {len(late)} {name}s in flight, the first of them number "
            f"{late[0].index if late else self._submitted}"
        )
        if untaken is None:
            hint = f"embed a list, or use {self._tower.stream_method} without timeout_s"
            raise DeadlineExceeded(f"{message}, and the iterator has not ended; {hint}.{down}")
        hint = f"use a longer timeout_s, or {self._tower.stream_method} without timeout_s"
        error = DeadlineExceeded(f"{message}; {hint}.{down}")
        late += map(self._new_item, untaken)
        self._end()
        for item in late:
            item.result = error
        for item in self._pending:
            if isinstance(item.result, ClipError):
                self._check(item, item.result)
            yield item
