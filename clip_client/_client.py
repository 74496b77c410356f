"""The asynchronous client, and the path of a call: source -> encode -> pack -> send -> results.

:class:`Stream` takes images from the caller's source, encodes them, and submits them in chunks to the client's one
:class:`Sender`, which sends requests and gives each chunk its results. A call that is one request is sent at once.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Iterable, Sequence, Sized
from dataclasses import replace
from itertools import compress, count
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from clip_client import _zero_shot as zero_shot
from clip_client._balancing.balancer import Balancer
from clip_client._balancing.handshake import Handshake
from clip_client._config import ClientConfig, check_count, positive_seconds
from clip_client._deadline import Deadline
from clip_client._endpoint import DEFAULT_URL, Endpoint, EndpointKind
from clip_client._errors import ProtocolMismatch, forked_process
from clip_client._health import HealthReport, run_health_checks, without_address
from clip_client._model import ModelInfo, Tower
from clip_client._pipeline.chunk import Collector
from clip_client._pipeline.encoder import ImageEncoder, TextEncoder
from clip_client._pipeline.sender import Sender
from clip_client._pipeline.stream import Stream
from clip_client._results import ClientStats, EmbeddedItem, EmbeddingBatch, ImageSources, TextSources
from clip_client._transports.factory import transport_factory
from preprocess_ensemble.cores import usable_cores

if TYPE_CHECKING:
    from typing import Self

    from clip_client._encoding import TransferName
    from clip_client._transports.base import TransportFactory
    from clip_client._zero_shot import Classification
    from clip_client.dedup.report import DuplicateReport

URL_VARIABLE = "CLIP_URL"

_MOST_READERS = 16
_EXTRA_READERS = 4  # threads beyond the usable cores, because most that read images wait for a disk


class ClientBase:
    """The arguments of both clients; :class:`ClipClient` explains them."""

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        timeout_s: float | None = None,
        token: str | None = None,
        transfer: TransferName | None = None,
        model: str | None = None,
        config: ClientConfig | None = None,
    ) -> None:
        self._config = make_config(url, config, timeout_s=timeout_s, token=token, transfer=transfer, model=model)
        self._opened_in = 0
        self._opening = threading.Lock()

    @property
    def _is_forked(self) -> bool:
        """True in a process that was forked after the client was opened: the client's threads are not there."""
        return self._opened_in not in (0, os.getpid())

    def _refuse_if_forked(self) -> None:
        if self._is_forked:
            raise forked_process("This client was opened", self._opened_in)


class ClipClient(ClientBase):
    """Embeds images and texts on a Triton server.

    ::

        async with ClipClient("localhost:8001") as clip:
            batch = await clip.embed(["a.jpg", "b.jpg"])

    ``url`` is ``host:port``, ``grpc://host:port`` or ``grpcs://host:port`` (TLS), or several of them; the default is
    the environment variable ``CLIP_URL``, then ``localhost:8001``. ``local:`` or ``local:DIR`` embeds in this process,
    with the model of a repository: ``CLIP_REPOSITORY``, else ``triton_models`` in this folder if it has a model, else
    the one in your data folder. ``auto:`` or ``auto:host:port`` uses a server if one responds, else this process, with
    a warning.

    ``timeout_s`` is the time in which a call must get results (see :meth:`embed`), and ``token`` the bearer token.
    ``transfer`` is the form in which images are sent: ``"thumbnail"``, the default, reduces an image to the pixels
    that the model needs, ``"thumbnail-small"`` sends the same pixels in fewer bytes, and ``"original"`` sends files as
    they are. ``model`` is the name that ``clip-export --name`` gave to the model; a server may have several models.
    All other settings are in :class:`ClientConfig`: ``ClipClient(config=ClientConfig(...))``.

    The client belongs to one event loop and one process; any number of tasks may use it at once. The first call
    connects, not ``async with``. You may cancel every method at any time; that also cancels its requests.
    """

    _session: _Session | None = None  # set when the client is opened; kept after it is closed

    def __repr__(self) -> str:
        session = self._session
        state = "new" if session is None else "closed" if session.closed else "open"
        model = "" if session is None or session.handshake.known is None else f" model={session.handshake.known.id}"
        return f"<ClipClient {self._names()} [{state}]{model}>"

    async def __aenter__(self) -> Self:
        if self._session is not None:
            raise RuntimeError("a ClipClient can be entered once; make a new one")
        self._session = _Session(self._config, self._transport_factory())
        self._opened_in = os.getpid()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel all requests and disconnect; ``async with`` does this when you leave it."""
        if self._session is not None and not self._session.closed:
            self._session.closed = True
            if not self._is_forked:
                await self._session.aclose()

    async def embed(self, images: ImageSources, *, timeout_s: float | None = None) -> EmbeddingBatch:
        """Embed one image or an iterable of images.

        An image that fails has a NaN row and an ImageError in ``errors``. If the service fails, this raises (see
        :class:`ClipError` for the kinds).

        ``timeout_s`` limits the whole call. When that time is over, images without a result get the error code
        ``TIMEOUT``, and you may embed them again. If no image has a vector by then, or ``images`` is an iterator that
        has not ended, this raises DeadlineExceeded. Without ``timeout_s`` the call may last as long as results come:
        it raises DeadlineExceeded if there is no result for the client's ``timeout_s``.

        If you cancel the task, nothing keeps running. Requests that also hold images of other calls are not cancelled.
        """
        return await self._embed(Tower.IMAGE, images, timeout_s)

    async def embed_text(self, texts: TextSources, *, timeout_s: float | None = None) -> EmbeddingBatch:
        """Embed one text or an iterable of texts, into the space of the images of this model.

        ::

            texts = await clip.embed_text(["a cat", "a dog"])
            cosines = batch.vectors @ texts.vectors.T       # of images, (N, 2)

        A text fails if it is empty (``EMPTY``), over 64 KB (``TOO_LARGE``) or not valid Unicode (``NOT_UTF8``): it has
        a NaN row and a TextError in ``errors``. If a text is longer than the model's context, only its beginning is
        embedded, and ``truncated`` has its index. Raises ModelNotReady if the model has no text tower, and TypeError
        for anything but ``str``. Deadlines, failures and cancelling are as in :meth:`embed`.
        """
        return await self._embed(Tower.TEXT, texts, timeout_s)

    def embed_stream(
        self,
        source: ImageSources,
        *,
        ordered: bool = True,
        max_in_flight: int | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[EmbeddedItem, None]:
        """Embed any iterable or async iterable, of any length, in bounded memory.

        Yields one :class:`EmbeddedItem` per image, in the order of the source. With ``ordered=False`` the items come as
        the results arrive; this is faster if some images take longer. At most ``max_in_flight`` images (default: twice
        the client's) are taken but not yet yielded, so a slow consumer slows down the source. An
        iterable that is not a container runs in a thread of its own and may block.

        ``timeout_s`` limits the whole stream. Without it the stream may last indefinitely, and the client's
        ``timeout_s`` limits each image from the moment it is first sent, so the stream survives shorter outages.
        If the source raises, the service fails or a result is late, the error is raised after the items before it.

        ::

            async with contextlib.aclosing(clip.embed_stream(paths)) as items:
                async for item in items:
                    print(item.source, item.error or item.vector)

        ``aclosing`` is for leaving early: ``break`` then cancels the requests and leaves nothing running, as does
        cancelling the task. Only a source that blocks keeps its thread until it returns.
        """
        return self._embed_stream(Tower.IMAGE, source, ordered, max_in_flight, timeout_s)

    def embed_text_stream(
        self,
        source: TextSources,
        *,
        ordered: bool = True,
        max_in_flight: int | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[EmbeddedItem, None]:
        """Embed texts as :meth:`embed_stream` embeds images; errors and ``truncated`` are as in :meth:`embed_text`."""
        return self._embed_stream(Tower.TEXT, source, ordered, max_in_flight, timeout_s)

    async def classify(
        self,
        images: ImageSources,
        labels: Sequence[str],
        *,
        templates: Sequence[str] = zero_shot.TEMPLATES,
        timeout_s: float | None = None,
    ) -> Classification:
        """Return how well each of ``labels`` describes each image, without training (zero-shot).

        ::

            found = await clip.classify("pet.jpg", ["cat", "dog"])
            if not found.errors:
                best = found.labels[found.probabilities[0].argmax()]

        The vector of a label is the mean of the vectors of ``templates``, in which ``{}`` stands for the label. The
        default is seven of OpenAI's templates for photos, in English. The cosines of images and labels become
        probabilities as in the model's training: by a softmax over the labels, or by a sigmoid for each label.

        Raises ModelNotReady if the model has no text tower, TextError with the index of the label if a label cannot be
        embedded, and ValueError without labels. Images, deadlines and failures are as in :meth:`embed`; ``timeout_s``
        limits the whole call.
        """
        prompts = zero_shot.prompts(labels, templates)
        session, deadline = self._begin(timeout_s)
        model = await session.handshake.model(deadline)
        texts = await self.embed_text(prompts, timeout_s=timeout_s and deadline.remaining)
        if texts.errors:
            prompt, error = min(texts.errors.items())
            label = prompt // len(templates)
            message = f"The label {labels[label]!r:.80} cannot be embedded: {error.message}"
            raise type(error)(message, code=error.code, index=label, request_id=error.request_id)
        batch = await self.embed(images, timeout_s=timeout_s and deadline.remaining)
        if {texts.model_id, batch.model_id} != {model.id}:
            raise ProtocolMismatch("The servers changed their model during the call; call again.")
        vectors = batch.vectors, texts.vectors
        shares = await anyio.to_thread.run_sync(zero_shot.probabilities, *vectors, model.text_tower, len(labels))
        return zero_shot.Classification(
            labels=tuple(labels), probabilities=shares, errors=batch.errors, sources=batch.sources
        )

    async def find_duplicates(
        self, images: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, threshold: float | None = None
    ) -> DuplicateReport:
        """Find near-duplicates among photos and folders; see :func:`clip_client.dedup.find_duplicates`."""
        from clip_client.dedup import find_duplicates

        return await find_duplicates(self, images, threshold=threshold)

    async def model(self, *, timeout_s: float | None = None) -> ModelInfo:
        """Describe the model of the servers. The client asks once, and again if a response shows another model."""
        session, deadline = self._begin(timeout_s)
        return await session.handshake.model(deadline)

    async def health(self, *, timeout_s: float | None = None) -> HealthReport:
        """Check every server step by step, up to the vector of a known image. Never raises a ClipError."""
        session, deadline = self._begin(timeout_s)
        try:
            await asyncio.wait_for(session.balancer.ensure_resolved(), deadline.remaining)
        except TimeoutError:
            return without_address(self._names(), deadline.elapsed)
        checks = [run_health_checks(one.transport, str(one.endpoint), deadline) for one in session.balancer.servers]
        reports = await asyncio.gather(*checks)
        return HealthReport(
            steps=tuple(step for report in reports for step in report.steps),
            model=next((report.model for report in reports if report.model is not None), None),
        )

    def stats(self) -> ClientStats:
        """Return a snapshot of the counts."""
        return self._open_session().sender.stats()

    @property
    def vector_id(self) -> str:
        """Id of this client's vectors of images. Raises RuntimeError before a call has asked a server for its model."""
        known = None if self._session is None else self._session.handshake.known
        if known is None:
            raise RuntimeError("the model is not known yet: await embed() or model() first")
        return known.vector_id

    @property
    def is_local(self) -> bool:
        """True if this process embeds. With ``auto:`` it is False until the first call has chosen."""
        return all(endpoint.kind is EndpointKind.LOCAL for endpoint in self._endpoints())

    def _transport_factory(self) -> TransportFactory:
        return transport_factory(self._config)

    def _endpoints(self) -> tuple[Endpoint, ...]:
        return self._config.endpoints if self._session is None else self._session.balancer.endpoints

    def _names(self) -> str:
        return ", ".join(map(str, self._endpoints()))

    def _open_session(self) -> _Session:
        self._refuse_if_forked()
        if self._session is None or self._session.closed:
            raise RuntimeError("this ClipClient is not open: use it inside `async with ClipClient(...) as clip:`")
        return self._session

    async def _embed(self, tower: Tower, source: object, timeout_s: float | None) -> EmbeddingBatch:
        session, deadline = self._begin(timeout_s)
        encoder = session.images if tower is Tower.IMAGE else session.texts
        items = encoder.items(source)
        model = session.handshake.known or await session.handshake.model(deadline)
        stream = Stream(items, model, encoder, session.sender, session.threads, deadline=deadline)
        chunk = await stream.at_once()
        if chunk is not None and chunk.vectors is not None:
            return EmbeddingBatch(
                vectors=chunk.vectors.copy(),
                errors={},
                model_id=model.id,
                vector_id=model.vector_id_of(tower),
                sources=(None,) * len(chunk.vectors),
                truncated=tuple(compress(count(), chunk.truncated)) if any(chunk.truncated) else (),
            )
        expected = len(items) if isinstance(items, Sized) else None
        collector = Collector(model, tower, expected=expected, keeps_late=timeout_s is not None)
        async with stream:
            async for chunk in stream:
                collector.add(chunk, stream.paths(chunk))
        return collector.batch()

    async def _embed_stream(
        self, tower: Tower, source: object, ordered: bool, max_ahead: int | None, timeout_s: float | None
    ) -> AsyncGenerator[EmbeddedItem, None]:
        if max_ahead is not None:
            check_count("max_in_flight", max_ahead)
        session, deadline = self._begin(timeout_s)
        encoder = session.images if tower is Tower.IMAGE else session.texts
        items = encoder.items(source)
        model = session.handshake.known or await session.handshake.model(deadline)
        limit = None if timeout_s is None else deadline
        async with Stream(
            items, model, encoder, session.sender, session.threads, deadline=limit, ordered=ordered, max_ahead=max_ahead
        ) as stream:
            async for chunk in stream:
                for item in stream.items(chunk):
                    yield item

    def _begin(self, timeout_s: float | None) -> tuple[_Session, Deadline]:
        session = self._open_session()
        if asyncio.get_running_loop() is not session.loop:
            raise RuntimeError(
                "this ClipClient belongs to another event loop: make one in each, or use SyncClipClient, which any "
                "thread may call"
            )
        if timeout_s is not None:
            positive_seconds("timeout_s", timeout_s)
            return session, Deadline(timeout_s)
        return session, Deadline(self._config.timeout_s, extended_by_s=self._config.timeout_s)


class _Session:
    """The parts of an open client, made in its event loop; :mod:`clip_client._pipeline` shows how they fit together."""

    def __init__(self, config: ClientConfig, connect: TransportFactory) -> None:
        self.closed = False
        self.loop = asyncio.get_running_loop()
        self.balancer = Balancer(config, connect)
        self.handshake = Handshake(self.balancer, config)
        self.sender = Sender(self.balancer, config, on_mismatch=self.handshake.invalidate_model)
        self.images, self.texts = ImageEncoder(config), TextEncoder()
        self.threads = anyio.CapacityLimiter(min(_MOST_READERS, usable_cores() + _EXTRA_READERS))

    async def aclose(self) -> None:
        # Shielded, because anyio cancels a task again at each of its awaits, and connections would stay open.
        with anyio.CancelScope(shield=True):
            await self.handshake.aclose()
            await self.sender.aclose()
            await self.balancer.aclose()


def make_config(url: str | Sequence[str] | None, config: ClientConfig | None = None, **changes: Any) -> ClientConfig:
    """Merge a client's arguments: an argument overrides ``config``. Without both, ``CLIP_URL`` names the server."""
    if isinstance(url, ClientConfig):
        raise TypeError("the first argument is a URL: pass a ClientConfig as config=, as in ClipClient(config=config)")
    if url is None and config is None:
        url = os.environ.get(URL_VARIABLE) or DEFAULT_URL
    if url is not None:
        changes["urls"] = (url,) if isinstance(url, str) else tuple(url)
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(config or ClientConfig(), **given)
