"""One call of ``embed`` or ``embed_stream``: takes images, encodes them, submits them, delivers the results."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from clip_client._errors import ClipError, DeadlineExceeded, ImageError
from clip_client._pipeline.images import path_of
from clip_client._pipeline.pending_image import PendingImage
from clip_client._pipeline.source import open_source
from clip_client._results import EmbeddedItem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    from clip_client._config import ClientConfig
    from clip_client._image_source import ImageSources
    from clip_client._model import ModelInfo
    from clip_client._pipeline.encoder import ImageEncoder
    from clip_client._pipeline.sender import Sender

_ENCODED_REQUESTS = 8
"""Images are encoded ahead for this many full requests and no further, which bounds memory when photos are large."""


class Stream:
    """One call, as a context: leaving it abandons the images in flight.

    Callbacks in the event loop drive everything - an image arrives, an image is encoded, a result is set - so the
    pipeline keeps moving while the consumer is busy, as far as ``max_ahead`` allows (default: twice
    ``max_in_flight``). ``deadline`` is in loop time.
    """

    def __init__(
        self,
        images: ImageSources,
        model: ModelInfo,
        *,
        max_ahead: int | None,
        ordered: bool,
        deadline: float | None,
        config: ClientConfig,
        encoder: ImageEncoder,
        threads: anyio.CapacityLimiter,
        sender: Sender,
    ) -> None:
        self._ordered = ordered
        self._deadline = deadline
        self._model = model
        self._config = config
        self._encoder = encoder
        self._threads = threads
        self._sender = sender
        self._loop = asyncio.get_running_loop()

        # An image is in _pending from its arrival to its delivery. Meanwhile it is in _unencoded, in _encoding, with
        # the sender, or has its result; without order, the images with a result are also in _finished.
        self._pending: dict[int, PendingImage] = {}
        self._unencoded: deque[PendingImage] = deque()
        self._encoding: set[asyncio.Task[None]] = set()
        self._finished: deque[PendingImage] = deque()
        self._encoded_bytes = 0
        self._next_index = 0
        self._wake = asyncio.Event()

        self._source = open_source(images, max_ahead=max_ahead or 2 * config.max_in_flight, on_arrival=self._fill)
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._wake.set)

    async def __aenter__(self) -> Self:
        self._fill()
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unencoded.clear()
        if self._pending:
            self._sender.abandon(list(self._pending.values()))
        encoding = list(self._encoding)
        for task in encoding:
            task.cancel()
        # Shielded, because anyio cancels a task again at each of its awaits, and the source would keep running.
        with anyio.CancelScope(shield=True):
            await self._source.aclose()
            if encoding:
                await asyncio.wait(encoding)

    async def wait(self) -> bool:
        """Wait until :meth:`drain` has results; False at the end. Raises the source's error after all results."""
        while not self._finished:
            first = next(iter(self._pending.values()), None) if self._ordered else None
            if first is not None and first.result is not None:
                return True
            if self._source.exhausted and not self._pending:
                if self._source.error is not None:
                    raise self._source.error
                return False
            if self._deadline is not None and self._loop.time() >= self._deadline:
                raise DeadlineExceeded(
                    f"timeout_s ran out with {len(self._pending)} images in flight, the first of them number "
                    f"{min(self._pending, default=self._next_index)}."
                )
            await self._wake.wait()
            self._wake.clear()
        return True

    def drain(self) -> Iterator[tuple[PendingImage, NDArray[np.float32] | ImageError]]:
        """Yield every image that can be delivered now with its result, once; raise if the service failed.

        Each step lets the source give one more image.
        """
        while (image := self._next_finished()) is not None:
            result = image.result
            if isinstance(result, ImageError):
                result.index = image.index
                result.source = path_of(image.source)
            elif isinstance(result, ClipError):
                raise result
            assert result is not None  # _next_finished returns no other
            self._source.delivered()
            if not self._source.exhausted:
                self._fill()
            yield image, result

    def _next_finished(self) -> PendingImage | None:
        if not self._ordered:
            return self._pending.pop(self._finished.popleft().index) if self._finished else None
        # A dict keeps insertion order, and images are inserted in the order of their index.
        first = next(iter(self._pending.values()), None)
        return self._pending.pop(first.index) if first is not None and first.result is not None else None

    def _fill(self) -> None:
        """Take what the source has."""
        for source in self._source.take():
            image = PendingImage(self._next_index, source, self._model, self._deadline, self._on_result)
            self._pending[self._next_index] = image
            self._next_index += 1
            self._unencoded.append(image)
        if self._unencoded:
            self._start_encoding()
        if self._source.exhausted:
            self._wake.set()

    def _start_encoding(self) -> None:
        max_bytes = _ENCODED_REQUESTS * self._config.max_request_bytes
        max_tasks = 2 * self._threads.total_tokens
        ready = []
        while self._unencoded and self._encoded_bytes < max_bytes and len(self._encoding) < max_tasks:
            image = self._unencoded.popleft()
            payload = self._encoder.unchanged(image.source)
            if payload is None:
                task = asyncio.create_task(self._encode(image), name="clip_client encode")
                self._encoding.add(task)
                task.add_done_callback(partial(self._on_encoded, image))
            else:
                image.payload = payload
                self._encoded_bytes += len(payload)
                ready.append(image)
        if ready:
            self._sender.submit(ready)

    async def _encode(self, image: PendingImage) -> None:
        remaining = self._config.timeout_s if self._deadline is None else self._deadline - self._loop.time()
        try:
            with anyio.fail_after(remaining):
                payload = await anyio.to_thread.run_sync(
                    self._encoder.encode, image.source, image.model, limiter=self._threads, abandon_on_cancel=True
                )
        except ClipError as error:
            image.set_result(error)
        except TimeoutError:
            image.set_result(DeadlineExceeded(f"Reading image {image.index} took longer than timeout_s."))
        else:
            image.payload = payload
            self._encoded_bytes += len(payload)
            self._sender.submit([image])

    def _on_encoded(self, image: PendingImage, task: asyncio.Task[None]) -> None:
        self._encoding.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            # No memory, no thread, or a caller's file object that raises CancelledError: without a result, the consumer
            # would wait indefinitely. If the stream was left, the image is abandoned, and this does nothing.
            image.set_result(ClipError(f"Reading image {image.index} failed: internal error ({type(error).__name__})."))
        self._start_encoding()
        if error is not None and not task.cancelled():
            raise error

    def _on_result(self, image: PendingImage) -> None:
        self._encoded_bytes -= len(image.payload)
        if not self._ordered:
            self._finished.append(image)
        self._wake.set()
        if self._unencoded:
            self._start_encoding()


def embedded_item(image: PendingImage, result: NDArray[np.float32] | ImageError) -> EmbeddedItem:
    """Make the consumer's item, with a vector of its own, because a view would keep the whole answer in memory."""
    if isinstance(result, ImageError):
        return EmbeddedItem(index=image.index, source=image.source, vector=None, error=result)
    return EmbeddedItem(index=image.index, source=image.source, vector=result.copy(), error=None)
