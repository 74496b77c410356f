"""The asynchronous client."""

from __future__ import annotations

import asyncio
import copy
import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from clip_client._balancing.balancer import Balancer
from clip_client._balancing.retry import backoff_s, is_retried
from clip_client._config import ClientConfig, at_least_one, positive_seconds
from clip_client._encoding import IMAGE_ENCODINGS
from clip_client._endpoint import DEFAULT_URL, EndpointKind
from clip_client._errors import ClipError, DeadlineExceeded, Unavailable
from clip_client._handshake import fetch_common_model
from clip_client._health import HealthReport, run_health_checks
from clip_client._pipeline.encoder import ImageEncoder
from clip_client._pipeline.images import known_count
from clip_client._pipeline.sender import Sender
from clip_client._pipeline.source import open_source
from clip_client._pipeline.stream import Stream, embedded_item
from clip_client._results import Collector, EmbeddedItem, EmbeddingBatch
from clip_client._transports.factory import transport_factory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from clip_client._client_stats import ClientStats
    from clip_client._encoding import TransferName
    from clip_client._endpoint import Endpoint
    from clip_client._image_source import ImageSources
    from clip_client._model import ModelInfo
    from clip_client.dedup.types import DuplicateReport

URL_VARIABLE = "CLIP_URL"
"""Environment variable that names the server where the code does not."""

_READERS = min(16, (os.cpu_count() or 1) + 4)
"""Threads that read and encode images: more than cores, because most of them wait for a disk."""


def make_config(
    url: str | Sequence[str] | None,
    *,
    timeout_s: float | None = None,
    token: str | None = None,
    transfer: TransferName | None = None,
    config: ClientConfig | None = None,
) -> ClientConfig:
    """Put a client's arguments together: what is named wins over ``config``, and the environment comes last."""
    given = config or ClientConfig()
    if url is not None:
        given = replace(given, urls=(url,) if isinstance(url, str) else tuple(url))
    elif config is None:
        given = replace(given, urls=(os.environ.get(URL_VARIABLE) or DEFAULT_URL,))
    if timeout_s is not None:
        given = replace(given, timeout_s=timeout_s)
    if transfer is not None:
        given = replace(given, transfer=transfer)
    return given if token is None else replace(given, token=token)


class ClipClient:
    """Embeds images on a Triton server.

    ::

        async with ClipClient("localhost:8001") as clip:
            batch = await clip.embed(["a.jpg", "b.jpg"])

    ``url`` is ``host:port``, ``grpc://host:port`` or ``grpcs://host:port`` (TLS), or several of them; without it the
    environment variable ``CLIP_URL`` counts, then ``localhost:8001``. ``local:`` or ``local:DIR`` embeds in this
    process, with the model of a repository (the environment variable ``CLIP_MODEL``, else ``triton_models``), and
    ``auto:`` or ``auto:host:port`` does so where no server answers, and logs that once.

    ``timeout_s`` is the time for one call, ``token`` the bearer token, and ``transfer`` how images travel:
    ``"thumbnail"``, the default, reduces them to what the model needs, ``"thumbnail-small"`` further, ``"original"``
    sends files as they are. Everything else stands in :class:`ClientConfig`.

    The client belongs to one event loop and may be used by any number of tasks at once. Entering it costs nothing: the
    first call connects. Every method may be cancelled at any time; its requests are then cancelled, too.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        timeout_s: float | None = None,
        token: str | None = None,
        transfer: TransferName | None = None,
        config: ClientConfig | None = None,
    ) -> None:
        self._config = make_config(url, timeout_s=timeout_s, token=token, transfer=transfer, config=config)
        self._state = "new"
        self._loop: asyncio.AbstractEventLoop
        self._balancer: Balancer
        self._sender: Sender
        self._encoder: ImageEncoder
        self._handshake: asyncio.Task[ModelInfo] | None = None
        self._has_connected = False
        self._randomness = random.Random()
        self._threads: anyio.CapacityLimiter

    def __repr__(self) -> str:
        known = self._known_model()
        model = "" if known is None else f" model={known.id}"
        return f"<ClipClient {self._names()} [{self._state}]{model}>"

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise RuntimeError("a ClipClient can be entered once; make a new one")
        self._loop = asyncio.get_running_loop()
        self._threads = anyio.CapacityLimiter(_READERS)
        self._balancer = Balancer(self._config, transport_factory(self._config))
        self._sender = Sender(self._balancer, self._config, self._invalidate_model)
        self._encoder = ImageEncoder(self._config)
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
        # Shielded, because anyio cancels a task again at each of its awaits, and connections would stay open.
        with anyio.CancelScope(shield=True):
            if self._handshake is not None and not self._handshake.done():
                self._handshake.cancel()
                await asyncio.wait({self._handshake})
                # It holds the call that was cancelled, for which gRPC would go on connecting.
                self._handshake = None
            await self._sender.aclose()
            await self._balancer.aclose()

    async def embed(self, images: ImageSources, *, timeout_s: float | None = None) -> EmbeddingBatch:
        """Embed one image or an iterable of images.

        ``timeout_s`` covers the whole call, and defaults to the client's. An image that fails has a NaN row and an
        ImageError in ``errors``; a failure of the service is raised (see :class:`ClipError` for the kinds).

        Cancelling the task cancels the requests that carry nobody else's images, and leaves nothing running.
        """
        deadline = self._deadline(timeout_s)
        model = await self._model(deadline)
        collector = Collector(model.dimension, expected=known_count(images))
        max_ahead = 2 * self._config.max_in_flight
        async with self._stream(images, model, ordered=False, max_ahead=max_ahead, deadline=deadline) as stream:
            while await stream.more():
                for row, outcome in stream.rows():
                    collector.add(row.index, outcome)
        return collector.batch(model)

    async def embed_stream(
        self,
        source: ImageSources,
        *,
        ordered: bool = True,
        max_in_flight: int | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[EmbeddedItem, None]:
        """Embed any iterable or async iterable, of any length, in bounded memory.

        Yields an :class:`EmbeddedItem` per image, each exactly once: in the order of the source, or as they come with
        ``ordered=False``, which is faster where some images take longer. At most ``max_in_flight`` images (default:
        twice the client's) are taken from the source ahead of what was yielded, so a slow consumer slows the source
        down. An iterable that is not a container runs in a thread of its own and may block.

        ``timeout_s`` limits the whole stream. Without it the stream may last for ever, and the client's ``timeout_s``
        limits each image, from the moment it is first sent: so long an outage may last before it ends the stream.
        What the source raises, and a failure of the service, are raised here after the items before it.

        Leave it early by ``break`` inside ``async with contextlib.aclosing(...)``; like a cancellation of the task
        that cancels its requests and leaves nothing running, but a source that is blocking keeps its thread until it
        comes back.
        """
        if max_in_flight is not None:
            at_least_one("max_in_flight", max_in_flight)
        self._check_open()
        deadline = None if timeout_s is None else self._deadline(timeout_s)
        model = await self._model(self._deadline(timeout_s))
        max_ahead = max_in_flight or 2 * self._config.max_in_flight
        async with self._stream(source, model, ordered=ordered, max_ahead=max_ahead, deadline=deadline) as stream:
            while await stream.more():
                for row, outcome in stream.rows():
                    yield embedded_item(row, outcome)

    async def find_duplicates(
        self, images: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, threshold: float | None = None
    ) -> DuplicateReport:
        """Find what shows the same among photos and folders; :func:`clip_client.dedup.find_duplicates` says more."""
        from clip_client.dedup import find_duplicates

        return await find_duplicates(self, images, threshold=threshold)

    async def model(self, *, timeout_s: float | None = None) -> ModelInfo:
        """What the server serves. Asked once and remembered, until an answer shows that it has changed."""
        return await self._model(self._deadline(timeout_s))

    async def health(self, *, timeout_s: float | None = None) -> HealthReport:
        """Check every server step by step, up to the vector of a known image. Never raises a ClipError."""
        deadline = self._deadline(timeout_s)
        await self._balancer.ensure_resolved()
        remaining = max(0.001, deadline - asyncio.get_running_loop().time())
        servers = self._balancer.servers
        reports = await asyncio.gather(
            *(run_health_checks(server.transport, name=str(server.endpoint), timeout_s=remaining) for server in servers)
        )
        return HealthReport(
            steps=tuple(step for report in reports for step in report.steps),
            model_id=next((report.model_id for report in reports if report.model_id is not None), None),
        )

    def stats(self) -> ClientStats:
        """Counts since the client was entered, as a snapshot."""
        self._check_open()
        return self._sender.stats()

    @property
    def vector_id(self) -> str:
        """Model, preprocessing and transfer in one text; vectors of different ids must not be compared.

        Raises RuntimeError before the first call has asked the server for its model.
        """
        known = self._known_model()
        if known is None:
            raise RuntimeError("the model is not known yet: await embed() or model() first")
        return known.vector_id

    @property
    def is_local(self) -> bool:
        """True where this process embeds; with ``auto:``, False until the first call has settled it."""
        return all(endpoint.kind is EndpointKind.LOCAL for endpoint in self._endpoints())

    def _stream(
        self, images: ImageSources, model: ModelInfo, *, ordered: bool, max_ahead: int, deadline: float | None
    ) -> Stream:
        return Stream(
            lambda on_arrival: open_source(images, max_ahead=max_ahead, on_arrival=on_arrival),
            sender=self._sender,
            config=self._config,
            encoder=self._encoder,
            model=model,
            threads=self._threads,
            ordered=ordered,
            deadline=deadline,
        )

    def _check_open(self) -> None:
        if self._state != "open":
            raise RuntimeError("this ClipClient is not open: use it inside `async with ClipClient(...) as clip:`")

    def _deadline(self, timeout_s: float | None) -> float:
        self._check_open()
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            raise RuntimeError(
                "this ClipClient belongs to another event loop: make one in each, or use SyncClipClient, which any "
                "thread may call"
            )
        if timeout_s is not None:
            positive_seconds("timeout_s", timeout_s)
        return loop.time() + (self._config.timeout_s if timeout_s is None else timeout_s)

    def _known_model(self) -> ModelInfo | None:
        task = self._handshake
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    def _invalidate_model(self, model: ModelInfo) -> None:
        if self._known_model() is model:
            self._handshake = None

    async def _model(self, deadline: float) -> ModelInfo:
        """The handshake, shared: whoever comes while it is on its way waits for the same one."""
        known = self._known_model()
        if known is not None:
            return known
        if self._handshake is None or self._handshake.done():
            self._handshake = asyncio.create_task(self._fetch_model(), name="clip_client handshake")
        task = self._handshake
        # Not awaited itself, so that one caller's deadline or cancellation does not end it for the others.
        await asyncio.wait({task}, timeout=deadline - asyncio.get_running_loop().time())
        if not task.done():
            raise DeadlineExceeded(f"{self._names()} did not tell the model within timeout_s.")
        if task.cancelled():
            raise Unavailable("The client was closed during the handshake.")
        error = task.exception()
        if error is not None:
            # A copy each: a traceback grows onto an exception wherever it is raised.
            raise copy.copy(error)
        return task.result()

    async def _fetch_model(self) -> ModelInfo:
        """Ask every server. One that was never reached is not waited for, but one that was may be restarting."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.timeout_s
        failures = 0
        while True:
            try:
                model = await fetch_common_model(self._balancer, timeout_s=deadline - loop.time())
            except ClipError as error:
                failures += 1
                pause_s = backoff_s(failures, random_source=self._randomness)
                if not self._has_connected or not is_retried(error) or loop.time() + pause_s >= deadline:
                    raise
                await asyncio.sleep(pause_s)
            else:
                self._has_connected = True
                return replace(model, transfer=IMAGE_ENCODINGS[self._config.transfer].id)

    def _names(self) -> str:
        return ", ".join(map(str, self._endpoints()))

    def _endpoints(self) -> tuple[Endpoint, ...]:
        return self._config.endpoints if self._state == "new" else self._balancer.endpoints
