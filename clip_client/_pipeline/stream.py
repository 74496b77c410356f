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
from clip_client._pipeline.pending_image import Deadline, PendingImage
from clip_client._pipeline.source import open_source
from clip_client._results import EmbeddedItem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    from clip_client._config import ClientConfig
    from clip_client._image_source import ImageSource, ImageSources
    from clip_client._model import ModelInfo
    from clip_client._pipeline.encoder import ImageEncoder
    from clip_client._pipeline.sender import Sender

_ENCODED_REQUESTS = 8
"""Images are encoded ahead for this many full requests and no further, which bounds memory when photos are large."""


class Stream:
    """One call, as a context: leaving it abandons the images in flight.

    Callbacks in the event loop drive everything - an image arrives, an image is encoded, a result is set - so the
    pipeline keeps moving while the consumer is busy, as far as ``max_ahead`` allows (default: twice
    ``max_in_flight``). Without ``deadline``, each image has ``timeout_s`` of the configuration.

    Iterate over it: each step waits for results and gives an iterator over all that can be delivered, in which each
    step lets the source give one more image.
    """

    def __init__(
        self,
        images: ImageSources,
        model: ModelInfo,
        *,
        max_ahead: int | None,
        ordered: bool,
        deadline: Deadline | None,
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
        self._is_submitting = False
        """Images that fail at once free memory for others, which must not be submitted from within."""

        self._source = open_source(images, max_ahead=max_ahead or 2 * config.max_in_flight, on_arrival=self._fill)
        self._timer = None if deadline is None else self._loop.call_at(deadline.at, self._on_timer, deadline)

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

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Iterator[tuple[PendingImage, NDArray[np.float32] | ClipError]]:
        """Raise the source's error after all results, and DeadlineExceeded if the source may have more images then.

        The iterators raise if the service failed. If the deadline is fixed, images that ran out of time are no such
        failure: their results are the only ClipErrors that are no ImageError.
        """
        while not self._has_finished():
            if self._source.exhausted and not self._pending:
                if self._source.error is not None:
                    raise self._source.error
                raise StopAsyncIteration
            if self._deadline is not None and self._loop.time() >= self._deadline.at:
                self._give_up()
            else:
                await self._wake.wait()
                self._wake.clear()
        return self._drain()

    def _on_timer(self, deadline: Deadline) -> None:
        if deadline.at > self._loop.time():
            self._timer = self._loop.call_at(deadline.at, self._on_timer, deadline)
        else:
            self._wake.set()

    def _give_up(self) -> None:
        """End every image that has no result: the time is over. Raises DeadlineExceeded if that may not be all."""
        late = [image for image in self._pending.values() if image.result is None]
        rest = self._source.rest()
        first = late[0].index if late else self._next_index
        message = f"timeout_s ran out with {len(late)} images in flight, the first of them number {first}"
        if rest is None:
            hint = "embed a list, or use embed_stream without timeout_s"
            raise DeadlineExceeded(f"{message}, and the iterator has not ended; {hint}.")
        late += map(self._arrived, rest)
        self._unencoded.clear()
        error = DeadlineExceeded(f"{message}.")
        for image in late:
            image.set_result(error)
        self._sender.abandon(late)

    def _has_finished(self) -> bool:
        if not self._ordered:
            return bool(self._finished)
        # A dict keeps insertion order, and images are inserted in the order of their index.
        first = next(iter(self._pending.values()), None)
        return first is not None and first.result is not None

    def _drain(self) -> Iterator[tuple[PendingImage, NDArray[np.float32] | ClipError]]:
        is_fixed = self._deadline is not None and self._deadline.extended_by_s is None
        while self._has_finished():
            index = next(iter(self._pending)) if self._ordered else self._finished.popleft().index
            image = self._pending.pop(index)
            result = image.result
            if isinstance(result, ImageError):
                result.index = image.index
                result.source = path_of(image.source)
            elif isinstance(result, ClipError) and not (is_fixed and image.ran_out_of_time):
                raise result
            assert result is not None  # it has finished
            self._source.delivered()
            if not self._source.exhausted:
                self._fill()
            yield image, result

    def _fill(self) -> None:
        """Take what the source has."""
        self._unencoded.extend(map(self._arrived, self._source.take()))
        if self._unencoded:
            self._start_encoding()
        if self._source.exhausted:
            self._wake.set()

    def _arrived(self, source: ImageSource) -> PendingImage:
        image = PendingImage(self._next_index, source, self._model, self._deadline, self._on_result)
        self._pending[self._next_index] = image
        self._next_index += 1
        return image

    def _start_encoding(self) -> None:
        if self._is_submitting:
            return
        self._is_submitting = True
        try:
            while ready := self._next_encoded():
                self._sender.submit(ready)
        finally:
            self._is_submitting = False

    def _next_encoded(self) -> list[PendingImage]:
        """Start tasks that encode images, as long as memory allows; return the images that are sent as they are."""
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
        return ready

    async def _encode(self, image: PendingImage) -> None:
        try:
            # The time begins with a thread: if many images wait for one, the last of them has no less time.
            async with self._threads:
                now = self._loop.time()
                remaining = self._config.timeout_s if self._deadline is None else self._deadline.request_s(now)
                with anyio.fail_after(remaining):
                    payload = await anyio.to_thread.run_sync(
                        self._encoder.encode,
                        image.source,
                        image.model,
                        limiter=anyio.CapacityLimiter(1),
                        abandon_on_cancel=True,
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
        if self._deadline is not None and not image.ran_out_of_time:
            self._deadline.on_progress(self._loop.time())
        self._wake.set()
        if self._unencoded:
            self._start_encoding()


def embedded_item(image: PendingImage, result: NDArray[np.float32] | ClipError) -> EmbeddedItem:
    """Make the consumer's item, with a vector of its own, because a view would keep the whole answer in memory.

    Raises ``result`` if it is an error that is not the image's.
    """
    if isinstance(result, ImageError):
        return EmbeddedItem(index=image.index, source=image.source, vector=None, error=result)
    if isinstance(result, ClipError):
        raise result
    return EmbeddedItem(index=image.index, source=image.source, vector=result.copy(), error=None)
