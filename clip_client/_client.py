"""The asynchronous client."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import numpy as np

from clip_client._batch import EmbeddedItem, EmbeddingBatch
from clip_client._config import DEFAULT_URL, ClientConfig
from clip_client._errors import ClipError, DeadlineExceeded, ImageError
from clip_client._health import HealthReport, examine
from clip_client._source import open_source
from clip_client._stream import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from clip_client._images import ImageSources
    from clip_client._model import ModelInfo
    from clip_client._sender import Sender
    from clip_client._transport import TritonTransport

URL_VARIABLE = "CLIP_URL"
"""Environment variable that names the server where the code does not."""

_TRANSFER = "original"
_READERS = min(16, (os.cpu_count() or 1) + 4)
"""Threads that read and encode images: more than cores, because most of them wait for a disk."""


def make_config(
    url: str | Sequence[str] | None,
    *,
    timeout_s: float | None,
    token: str | None,
    config: ClientConfig | None,
) -> ClientConfig:
    """Put a client's arguments together: what is named wins over ``config``, and the environment comes last."""
    given = config or ClientConfig()
    if url is not None:
        given = replace(given, urls=(url,) if isinstance(url, str) else tuple(url))
    elif config is None:
        given = replace(given, urls=(os.environ.get(URL_VARIABLE) or DEFAULT_URL,))
    if timeout_s is not None:
        given = replace(given, timeout_s=timeout_s)
    return given if token is None else replace(given, token=token)


class ClipClient:
    """Embeds images on a Triton server.

    ::

        async with ClipClient("localhost:8001") as clip:
            batch = await clip.embed(["a.jpg", "b.jpg"])

    ``url`` is ``host:port``, ``grpc://host:port`` or ``grpcs://host:port`` (TLS), or several of them; without it the
    environment variable ``CLIP_URL`` counts, then ``localhost:8001``. ``timeout_s`` is the time for one call,
    ``token`` the bearer token; everything else stands in :class:`ClientConfig`.

    The client belongs to one event loop and may be used by any number of tasks at once. Entering it costs nothing: the
    first call connects. Every method may be cancelled at any time; its requests are then cancelled, too.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        timeout_s: float | None = None,
        token: str | None = None,
        config: ClientConfig | None = None,
    ) -> None:
        self._config = make_config(url, timeout_s=timeout_s, token=token, config=config)
        self._state = "new"
        self._transport: TritonTransport
        self._sender: Sender
        self._handshake: asyncio.Task[ModelInfo] | None = None
        self._threads: anyio.CapacityLimiter

    def __repr__(self) -> str:
        urls = ", ".join(str(endpoint) for endpoint in self._config.endpoints)
        known = self._known_model()
        model = "" if known is None else f" model={known.id}"
        return f"<ClipClient {urls} [{self._state}]{model}>"

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise RuntimeError("a ClipClient can be entered once; make a new one")
        # Here and not above: grpc and protobuf take most of the package's import time.
        from clip_client._sender import Sender
        from clip_client._transport import TritonTransport

        self._threads = anyio.CapacityLimiter(_READERS)
        self._transport = TritonTransport(self._config.endpoints[0], self._config)
        self._sender = Sender(self._transport, self._config, self._forget)
        self._state = "open"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel what is on its way and disconnect; ``async with`` does this on leaving."""
        if self._state != "open":
            return
        self._state = "closed"
        if self._handshake is not None and not self._handshake.done():
            self._handshake.cancel()
            await asyncio.wait({self._handshake})
        await self._sender.aclose()
        await self._transport.close()

    async def embed(self, images: ImageSources, *, timeout_s: float | None = None) -> EmbeddingBatch:
        """Embed one image or an iterable of images.

        ``timeout_s`` covers the whole call, and defaults to the client's. An image that fails has a NaN row and an
        ImageError in ``errors``; a failure of the service is raised (see :class:`ClipError` for the kinds).

        Cancelling the task cancels the requests that carry nobody else's images, and leaves nothing running.
        """
        deadline = self._deadline(timeout_s)
        model = await self._model(deadline)
        vectors: dict[int, np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = {}
        errors: dict[int, ImageError] = {}
        async with aclosing(self._stream(images, model, ordered=False, deadline=deadline)) as items:
            async for item in items:
                if item.error is not None:
                    errors[item.index] = item.error
                elif item.vector is not None:
                    vectors[item.index] = item.vector
        matrix = np.full((len(vectors) + len(errors), model.dimension), np.nan, dtype=np.float32)
        for index, vector in vectors.items():
            matrix[index] = vector
        return EmbeddingBatch(
            vectors=matrix,
            errors=dict(sorted(errors.items())),
            model_id=model.id,
            vector_id=vector_id(model),
        )

    async def model(self, *, timeout_s: float | None = None) -> ModelInfo:
        """What the server serves. Asked once and remembered, until an answer shows that it has changed."""
        return await self._model(self._deadline(timeout_s))

    async def health(self, *, timeout_s: float | None = None) -> HealthReport:
        """Check the service step by step, up to the vector of a known image. Never raises a ClipError."""
        self._check_open()
        return await examine(self._transport, timeout_s=timeout_s or self._config.timeout_s)

    @property
    def vector_id(self) -> str:
        """Model, preprocessing and transfer in one text; vectors of different ids must not be compared.

        Raises RuntimeError before the first call has asked the server for its model.
        """
        known = self._known_model()
        if known is None:
            raise RuntimeError("the model is not known yet: await embed() or model() first")
        return vector_id(known)

    def _stream(
        self, images: ImageSources, model: ModelInfo, *, ordered: bool, deadline: float | None
    ) -> AsyncGenerator[EmbeddedItem, None]:
        stream = Stream(
            sender=self._sender,
            config=self._config,
            model=model,
            threads=self._threads,
            ordered=ordered,
            deadline=deadline,
        )
        room = 2 * self._config.max_in_flight
        return stream.run(lambda on_arrival: open_source(images, room=room, on_arrival=on_arrival))

    def _check_open(self) -> None:
        if self._state != "open":
            raise RuntimeError("this ClipClient is not open: use it inside `async with ClipClient(...) as clip:`")

    def _deadline(self, timeout_s: float | None) -> float:
        self._check_open()
        if timeout_s is not None and not timeout_s > 0:
            raise ValueError(f"timeout_s must be a positive number of seconds, got {timeout_s!r}")
        return asyncio.get_running_loop().time() + (self._config.timeout_s if timeout_s is None else timeout_s)

    def _known_model(self) -> ModelInfo | None:
        task = self._handshake
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    def _forget(self, model: ModelInfo) -> None:
        if self._known_model() is model:
            self._handshake = None

    async def _model(self, deadline: float) -> ModelInfo:
        """The handshake, shared: whoever comes while it is on its way waits for the same one."""
        known = self._known_model()
        if known is not None:
            return known
        if self._handshake is None or self._handshake.done():
            self._handshake = asyncio.create_task(self._shake_hands(), name="clip_client handshake")
        task = self._handshake
        # Not awaited itself, so that one caller's deadline or cancellation does not end it for the others.
        await asyncio.wait({task}, timeout=deadline - asyncio.get_running_loop().time())
        if not task.done():
            raise DeadlineExceeded(f"{self._config.endpoints[0]} did not tell its model within timeout_s.")
        if task.cancelled():
            raise RuntimeError("the client was closed during the handshake")
        error = task.exception()
        if isinstance(error, ClipError):
            raise type(error)(error.message, request_id=error.request_id)
        return task.result()

    async def _shake_hands(self) -> ModelInfo:
        from clip_client._handshake import ask_for_model

        return await ask_for_model(self._transport, timeout_s=self._config.timeout_s)


def vector_id(model: ModelInfo) -> str:
    """``model id | preprocessing id | transfer``."""
    return f"{model.id}|{model.preprocess_id}|{_TRANSFER}"
