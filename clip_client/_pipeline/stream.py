"""The one pipeline: take images, load them, hand them to the sender, deliver the outcomes."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, cast

import anyio
import anyio.to_thread

from clip_client._errors import ClipError, DeadlineExceeded, ImageError
from clip_client._pipeline.images import path_of
from clip_client._pipeline.sender import Row, Sender
from clip_client._results import EmbeddedItem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    from clip_client._config import ClientConfig
    from clip_client._image_source import ImageSource
    from clip_client._model import ModelInfo
    from clip_client._pipeline.encoder import ImageEncoder
    from clip_client._pipeline.source import Source

_LOADED_REQUESTS = 8
"""Files are read ahead for so many full requests, and no further: what bounds memory when photos are large."""


class Stream:
    """One call of ``embed`` or ``embed_stream``, as a context: leaving it gives up what is still on its way.

    Everything is driven by callbacks in the event loop - an image arrives, a file is loaded, a row is settled - so the
    pipeline keeps moving while the consumer is busy, as far as the source's ``max_ahead`` allows.
    """

    def __init__(
        self,
        open_source: Callable[[Callable[[], None]], Source],
        *,
        sender: Sender,
        config: ClientConfig,
        encoder: ImageEncoder,
        model: ModelInfo,
        threads: anyio.CapacityLimiter,
        ordered: bool,
        deadline: float | None,
    ) -> None:
        self._open_source = open_source
        self._sender = sender
        self._config = config
        self._encoder = encoder
        self._model = model
        self._threads = threads
        self._ordered = ordered
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._source: Source
        self._timer: asyncio.TimerHandle | None = None
        self._open: dict[int, Row] = {}
        self._settled: deque[Row] = deque()
        self._unloaded: deque[Row] = deque()
        self._loads: set[asyncio.Task[None]] = set()
        self._loaded_bytes = 0
        self._next_index = 0
        self._wake = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._source = self._open_source(self._fill)
        if self._deadline is not None:
            self._timer = self._loop.call_at(self._deadline, self._wake.set)
        self._fill()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unloaded.clear()
        if self._open:
            self._sender.abandon(list(self._open.values()))
        loads = list(self._loads)
        for task in loads:
            task.cancel()
        # Shielded, because anyio cancels a task again at each of its awaits, and the source would run on behind it.
        with anyio.CancelScope(shield=True):
            await self._source.aclose()
            if loads:
                await asyncio.wait(loads)

    async def more(self) -> bool:
        """Wait until :meth:`rows` has some; False at the end. Raises the source's error there, once all is out."""
        while not self._settled:
            first = next(iter(self._open.values()), None) if self._ordered else None
            if first is not None and first.outcome is not None:
                return True
            if self._source.exhausted and not self._open:
                if self._source.error is not None:
                    raise self._source.error
                return False
            if self._deadline is not None and self._loop.time() >= self._deadline:
                raise DeadlineExceeded(
                    f"timeout_s ran out with {len(self._open)} images on their way, the first of them number "
                    f"{min(self._open, default=self._next_index)}."
                )
            await self._wake.wait()
            self._wake.clear()
        return True

    def rows(self) -> Iterator[tuple[Row, NDArray[np.float32] | ImageError]]:
        """What has been settled, each once and with its outcome; raises the service's error where that is one.

        Each step lets the source give one more image.
        """
        while (row := self._next_settled()) is not None:
            outcome = row.outcome
            if isinstance(outcome, ImageError):
                outcome.index = row.index
                outcome.source = path_of(row.source)
            elif isinstance(outcome, ClipError):
                raise outcome
            assert outcome is not None  # or it were not settled
            self._source.delivered()
            if not self._source.exhausted:
                self._fill()
            yield row, outcome

    def _next_settled(self) -> Row | None:
        if not self._ordered:
            return self._open.pop(self._settled.popleft().index) if self._settled else None
        # A dict keeps insertion order, and rows are inserted in the order of their index.
        first = next(iter(self._open.values()), None)
        return self._open.pop(first.index) if first is not None and first.outcome is not None else None

    def _fill(self) -> None:
        """Take what the source has."""
        for image in self._source.take():
            row = Row(self._next_index, cast("ImageSource", image), self._model, self._deadline, self._row_settled)
            self._open[self._next_index] = row
            self._next_index += 1
            self._unloaded.append(row)
        if self._unloaded:
            self._start_loads()
        if self._source.exhausted:
            self._wake.set()

    def _start_loads(self) -> None:
        ahead = _LOADED_REQUESTS * self._config.max_request_bytes
        at_once = 2 * self._threads.total_tokens
        ready = []
        while self._unloaded and self._loaded_bytes < ahead and len(self._loads) < at_once:
            row = self._unloaded.popleft()
            payload = self._encoder.unchanged(row.source)
            if payload is None:
                task = asyncio.create_task(self._load(row), name="clip_client load")
                self._loads.add(task)
                task.add_done_callback(partial(self._load_done, row))
            else:
                row.payload = payload
                self._loaded_bytes += len(payload)
                ready.append(row)
        if ready:
            self._sender.submit(ready)

    async def _load(self, row: Row) -> None:
        remaining = self._config.timeout_s if self._deadline is None else self._deadline - self._loop.time()
        try:
            with anyio.fail_after(remaining):
                payload = await anyio.to_thread.run_sync(
                    self._encoder.encode, row.source, row.model, limiter=self._threads, abandon_on_cancel=True
                )
        except ClipError as error:
            row.settle(error)
        except TimeoutError:
            row.settle(DeadlineExceeded(f"Reading image {row.index} took longer than timeout_s."))
        else:
            row.payload = payload
            self._loaded_bytes += len(payload)
            self._sender.submit([row])

    def _load_done(self, row: Row, task: asyncio.Task[None]) -> None:
        self._loads.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            # No memory, no thread to be had, or a source of somebody else's that raises CancelledError: whatever it is,
            # the consumer must not wait for ever. A row that was given up by leaving the stream is settled for nobody.
            row.settle(ClipError(f"Reading image {row.index} failed unforeseen ({type(error).__name__})."))
        self._start_loads()
        if error is not None and not task.cancelled():
            raise error

    def _row_settled(self, row: Row) -> None:
        self._loaded_bytes -= len(row.payload)
        if not self._ordered:
            self._settled.append(row)
        self._wake.set()
        if self._unloaded:
            self._start_loads()


def embedded_item(row: Row, outcome: NDArray[np.float32] | ImageError) -> EmbeddedItem:
    """The item for the consumer. With a vector of its own, because a view would keep a whole answer alive."""
    if isinstance(outcome, ImageError):
        return EmbeddedItem(index=row.index, source=row.source, vector=None, error=outcome)
    return EmbeddedItem(index=row.index, source=row.source, vector=outcome.copy(), error=None)
