"""The one pipeline: take images, load them, hand them to the sender, deliver the outcomes."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

import anyio
import anyio.to_thread

from clip_client._batch import EmbeddedItem
from clip_client._errors import ClipError, DeadlineExceeded, ImageError
from clip_client._images import path_of
from clip_client._sender import Row, Sender
from clip_client._source import NOTHING, Source

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from clip_client._config import ClientConfig
    from clip_client._images import ImageSource
    from clip_client._loader import Loader
    from clip_client._model import ModelInfo

_LOADED_REQUESTS = 8
"""Files are read ahead for so many full requests, and no further: what bounds memory when photos are large."""


class Stream:
    """One call of ``embed`` or ``embed_stream``.

    Everything is driven by callbacks in the event loop - an image arrives, a file is loaded, a row is settled - so the
    pipeline keeps moving while the consumer is busy, as far as the source's room allows.
    """

    def __init__(
        self,
        *,
        sender: Sender,
        config: ClientConfig,
        loader: Loader,
        model: ModelInfo,
        threads: anyio.CapacityLimiter,
        ordered: bool,
        deadline: float | None,
    ) -> None:
        self._sender = sender
        self._config = config
        self._loader = loader
        self._model = model
        self._threads = threads
        self._ordered = ordered
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._source: Source
        self._open: dict[int, Row] = {}
        self._settled: deque[Row] = deque()
        self._unloaded: deque[Row] = deque()
        self._loads: set[asyncio.Task[None]] = set()
        self._loaded_bytes = 0
        self._next_index = 0
        self._wake = asyncio.Event()

    async def run(self, open_source: Callable[[Callable[[], None]], Source]) -> AsyncGenerator[EmbeddedItem, None]:
        """Yield an item for each image; raise the service's error where there is one, once what came before is out."""
        self._source = open_source(self._fill)
        timer = None if self._deadline is None else self._loop.call_at(self._deadline, self._wake.set)
        try:
            self._fill()
            while True:
                row = self._next_settled()
                if row is not None:
                    item = self._item(row)
                    self._source.delivered()
                    if not self._source.exhausted:
                        self._fill()
                    yield item
                elif self._source.exhausted and not self._open:
                    if self._source.error is not None:
                        raise self._source.error
                    return
                elif self._deadline is not None and self._loop.time() >= self._deadline:
                    raise DeadlineExceeded(
                        f"timeout_s ran out with {len(self._open)} images on their way, the first of them number "
                        f"{min(self._open, default=self._next_index)}."
                    )
                else:
                    await self._wake.wait()
                    self._wake.clear()
        finally:
            if timer is not None:
                timer.cancel()
            await self._aclose()

    def _next_settled(self) -> Row | None:
        if not self._ordered:
            return self._open.pop(self._settled.popleft().index) if self._settled else None
        # A dict keeps insertion order, and rows are inserted in the order of their index.
        first = next(iter(self._open.values()), None)
        return self._open.pop(first.index) if first is not None and first.outcome is not None else None

    def _item(self, row: Row) -> EmbeddedItem:
        outcome = row.outcome
        if isinstance(outcome, ImageError):
            outcome.index = row.index
            outcome.source = path_of(row.source)
            return EmbeddedItem(index=row.index, source=row.source, vector=None, error=outcome)
        if isinstance(outcome, ClipError):
            raise outcome
        return EmbeddedItem(index=row.index, source=row.source, vector=outcome, error=None)

    def _fill(self) -> None:
        """Take what the source has."""
        while (image := self._source.take()) is not NOTHING:
            row = Row(self._next_index, cast("ImageSource", image), self._model, self._deadline, self._row_settled)
            self._next_index += 1
            self._open[row.index] = row
            self._unloaded.append(row)
        if self._unloaded:
            self._start_loads()
        if self._source.exhausted:
            self._wake.set()

    def _start_loads(self) -> None:
        ahead = _LOADED_REQUESTS * self._config.max_request_bytes
        while self._unloaded and self._loaded_bytes < ahead and len(self._loads) < 2 * self._threads.total_tokens:
            row = self._unloaded.popleft()
            payload = self._loader.ready(row.source)
            if payload is not None:
                self._submit(row, payload)
                continue
            task = asyncio.create_task(self._load(row), name="clip_client load")
            self._loads.add(task)
            task.add_done_callback(self._load_done)

    async def _load(self, row: Row) -> None:
        remaining = self._config.timeout_s if self._deadline is None else self._deadline - self._loop.time()
        try:
            with anyio.fail_after(remaining):
                payload = await anyio.to_thread.run_sync(
                    self._loader.load, row.source, row.model, limiter=self._threads, abandon_on_cancel=True
                )
        except ClipError as error:
            row.settle(error)
        except TimeoutError:
            row.settle(DeadlineExceeded(f"Reading image {row.index} took longer than timeout_s."))
        else:
            self._submit(row, payload)

    def _load_done(self, task: asyncio.Task[None]) -> None:
        self._loads.discard(task)
        self._start_loads()

    def _submit(self, row: Row, payload: bytes) -> None:
        row.payload = payload
        self._loaded_bytes += len(payload)
        self._sender.submit(row)

    def _row_settled(self, row: Row) -> None:
        self._loaded_bytes -= len(row.payload)
        if not self._ordered:
            self._settled.append(row)
        self._wake.set()
        if self._unloaded:
            self._start_loads()

    async def _aclose(self) -> None:
        self._unloaded.clear()
        if self._open:
            self._sender.abandon(list(self._open.values()))
        loads = list(self._loads)
        for task in loads:
            task.cancel()
        if loads:
            await asyncio.wait(loads)
        await self._source.aclose()
