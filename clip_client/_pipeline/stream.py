"""One call that embeds images or texts: it takes items, encodes and submits them, and delivers the results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Coroutine, Iterable, Iterator
from typing import Any, Self

import anyio
import anyio.to_thread

from clip_client._deadline import Deadline
from clip_client._errors import MORE_TIME, ClipError, DeadlineExceeded, ItemError, Unavailable
from clip_client._model import ModelInfo
from clip_client._pipeline.chunk import Chunk
from clip_client._pipeline.encoder import Encoder
from clip_client._pipeline.sender import Sender
from clip_client._pipeline.source import open_source
from clip_client._results import EmbeddedItem


class Stream:
    """One call, as a context manager: leaving it cancels the items in flight. Iterate for chunks with their results.

    A task feeds the sender. The pipeline therefore keeps moving while the consumer is busy, as far as ``max_ahead``
    allows (default: twice ``max_in_flight``). Without ``deadline``, each item has ``timeout_s`` of the configuration.
    """

    _submitted = _delivered = 0  # items
    _woken: asyncio.Future[None] | None = None
    _source_error: BaseException | None = None
    _has_ended = False  # the consumer has left, the time is over, or the client was closed

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
        """Raises ModelNotReady if the model lacks the tower."""
        model.check_tower(encoder.tower)
        self.model, self.tower, self.deadline = model, encoder.tower, deadline
        self._encoder, self._sender, self._threads, self._ordered = encoder, sender, threads, ordered
        self._loop = asyncio.get_running_loop()

        # An item is in _items, then in _arrived, then in a chunk of pending, until its delivery.
        self._items = items
        self._max_ahead = max_ahead or 2 * sender.config.max_in_flight
        self._arrived: list[Any] = []
        self.pending: dict[Chunk, None] = {}
        self._finished: dict[int, Chunk] = {}  # by the first index, in the order in which the results came
        self._tasks: set[asyncio.Task[None]] = set()

    async def at_once(self) -> Chunk | None:
        """Send a list that fits into one request. Returns None if a result is missing or an error; then iterate."""
        items = self._items if isinstance(self._items, list) else []
        payloads = self._encoder.payloads(items, self.model.max_batch_size, self._sender.free_bytes)
        if not payloads or len(payloads) < len(items):
            return None
        chunk, self._items = self._new_chunk([*items]), []
        try:
            await self._sender.send_alone(chunk, payloads)
        except asyncio.CancelledError:
            self._end()
            self._clear()
            raise
        if chunk.vectors is None or chunk.errors:
            return None
        self._clear()
        return chunk

    async def __aenter__(self) -> Self:
        self._source = open_source(self._items, max_ahead=self._max_ahead)
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
        self._clear()
        if not self._feeding.cancelled() and (error := self._feeding.exception()):
            context = {"message": "The source of a stream failed to close.", "exception": error}
            self._loop.call_exception_handler(context)

    def _clear(self) -> None:
        """Leave no cycle of references, because it would keep the client's connections until a garbage collection."""
        self.pending.clear()
        self._finished.clear()

    def _end(self) -> None:
        self._has_ended = True
        for task in self._tasks:
            task.cancel()
        if self.pending:
            self._sender.give_up(self.pending)

    def _close(self) -> None:
        """End at once because the client is closed, even if the source waits for something."""
        self._source_error = Unavailable("The client was closed before the stream ended.")
        self._end()
        self._finished.clear()
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
        arrived, most = self._arrived, self.model.max_batch_size
        while arrived and (free_bytes := self._sender.free_bytes) > 0:
            if payloads := self._encoder.payloads(arrived, most, free_bytes):
                self._sender.submit(self._chunk_of(arrived[: len(payloads)]), payloads)
            else:
                encoding = self._encode_and_submit(self._new_chunk(arrived[:1]))
                self._start(encoding, f"clip_client {self.tower.value}")
            del arrived[: len(payloads) or 1]

    def _chunk_of(self, sources: list[Any]) -> Chunk:
        last = self._sender.latest
        if last is None or last.call is not self or not last.is_open or last.first + len(last) != self._submitted:
            return self._new_chunk(sources)
        last.sources += sources
        self._submitted += len(sources)
        return last

    def _new_chunk(self, sources: list[Any]) -> Chunk:
        chunk = Chunk(self, self._submitted, sources, self.deadline)
        self._submitted += len(sources)
        self.pending[chunk] = None
        return chunk

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _encode_and_submit(self, chunk: Chunk) -> None:
        encoded = await self._encode(chunk.sources[0], chunk.first)
        if isinstance(encoded, ClipError):
            self._sender.fail([chunk], encoded)
        else:
            self._sender.submit(chunk, [encoded])

    async def _encode(self, source: Any, index: int) -> bytes | ClipError:
        tower, deadline = self.tower, self.deadline
        try:
            # The time begins once a thread is free, so that items that waited long for a thread have as much time.
            async with self._threads:
                await self._sender.has_room()
                remaining = self._sender.config.timeout_s if deadline is None else deadline.of_request
                limiter = anyio.CapacityLimiter(1)
                with anyio.fail_after(remaining):
                    return await anyio.to_thread.run_sync(
                        self._encoder.encode, source, self.model, limiter=limiter, abandon_on_cancel=True
                    )
        except ClipError as error:
            return error
        except TimeoutError:
            if deadline is not None and deadline.extended_by_s is None:  # the time of the call is over
                return DeadlineExceeded(f"Reading {tower.value} {index} took longer than timeout_s.")
            # Only this file is at fault, such as a file on a share that hangs.
            return tower.error(f"reading it took longer than timeout_s ({remaining:g} s).", code="TIMEOUT")
        except (Exception, asyncio.CancelledError) as error:
            if self._has_ended:
                raise
            # The machine lacks memory or threads, or a caller's file object raises CancelledError.
            message = f"Reading {tower.value} {index} failed: internal error ({type(error).__name__})."
            if isinstance(error, Exception):
                self._loop.call_exception_handler({"message": message, "exception": error})
            return ClipError(message)

    def on_result(self, chunk: Chunk) -> None:
        self._finished[chunk.first] = chunk
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        """After all chunks, raise the source's error; DeadlineExceeded if time is over and the source may have more."""
        deadline, finished = self.deadline, self._finished
        while (first := self._delivered if self._ordered else next(iter(finished), -1)) not in finished:
            if self._has_ended or (self._feeding.done() and not self.pending):
                raise self._source_error or StopAsyncIteration
            if deadline is not None and deadline.expired:
                self._give_up()
            else:
                self._woken = self._loop.create_future()
                await (self._woken if deadline is None else asyncio.wait([self._woken], timeout=deadline.remaining))
        chunk = finished.pop(first)
        del self.pending[chunk]
        self._delivered += len(chunk)
        if deadline is not None and not self._has_ended:  # an expired deadline tells the sender why its requests end
            deadline.on_progress()
        return chunk

    def paths(self, chunk: Chunk) -> list[str | None]:
        """Take all items of a chunk; return the path of each that was given as a path, else None."""
        self._source.delivered(len(chunk))
        return [*map(self._encoder.path_of, chunk.sources)]

    def items(self, chunk: Chunk) -> Iterator[EmbeddedItem]:
        """Take one item of a chunk after the other, until the client is closed. Raises errors of the service."""
        sender, delivered, errors, truncated = self._sender, self._source.delivered, chunk.errors, chunk.truncated
        vectors: Any = chunk.vectors  # an array, unless every item has an error
        for row, (index, source) in enumerate(enumerate(chunk.sources, chunk.first)):
            if sender.closed:
                return
            delivered(1)
            if row not in errors:
                # A copy, because a view would keep the whole answer in memory.
                yield EmbeddedItem(index, source, vectors[row].copy(), None, truncated[row])
            elif isinstance(error := errors[row], ItemError):
                error.index, error.source = index, self._encoder.path_of(source)
                yield EmbeddedItem(index, source, None, error)
            elif error.ran_out_of_time and self.deadline is not None:
                raise DeadlineExceeded(f"timeout_s is too short for all {self.tower.value}s of this stream: {error}")
            else:
                raise error

    def _give_up(self) -> None:
        """End all items that have no result, because the time is over. Raises DeadlineExceeded if more may follow."""
        down = self._sender.why_down()
        untaken = [] if self._feeding.done() else self._source.untaken_items()
        if self._arrived:
            self._new_chunk([*self._arrived])
        late = [chunk for chunk in self.pending if chunk.is_open]
        message = (
            f"timeout_s ran out with {sum(map(len, late))} {self.tower.value}s in flight, the first of them number "
            f"{min((chunk.first for chunk in late), default=self._submitted)}"
        )
        if untaken is None:
            raise DeadlineExceeded(f"{message}, and the iterator has not ended; embed a list, or omit timeout_s.{down}")
        error = DeadlineExceeded(f"{message}; {MORE_TIME}.{down}")
        if untaken:
            late.append(self._new_chunk(untaken))
        self._end()
        for chunk in late:
            chunk.errors = dict.fromkeys(range(len(chunk)), error)
            self.on_result(chunk)
