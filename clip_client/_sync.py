"""The blocking client: the asynchronous one, run in an event loop of its own in a thread."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from clip_client._client import ClipClient

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from clip_client._client_stats import ClientStats
    from clip_client._config import ClientConfig
    from clip_client._encoding import TransferName
    from clip_client._health import HealthReport
    from clip_client._image_source import ImageSources
    from clip_client._model import ModelInfo
    from clip_client._results import EmbeddedItem, EmbeddingBatch
    from clip_client._transports.base import TransportFactory
    from clip_client.dedup.types import DuplicateReport

T = TypeVar("T")


class SyncClipClient:
    """:class:`ClipClient` for code without an event loop.

    ::

        with SyncClipClient("localhost:8001") as clip:
            batch = clip.embed(["a.jpg", "b.jpg"])

    It has the same arguments, methods and errors, but the methods block. Any number of threads may share one. It works
    in notebooks, where an event loop already runs, and an interrupt (Ctrl-C) ends the call. It runs a
    :class:`ClipClient` in a thread of its own.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        timeout_s: float | None = None,
        token: str | None = None,
        transfer: TransferName | None = None,
        config: ClientConfig | None = None,
        transport_factory: TransportFactory | None = None,
    ) -> None:
        self._client = ClipClient(
            url,
            timeout_s=timeout_s,
            token=token,
            transfer=transfer,
            config=config,
            transport_factory=transport_factory,
        )
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    def __repr__(self) -> str:
        return repr(self._client).replace("<ClipClient", "<SyncClipClient", 1)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(portal.wrap_async_context_manager(self._client))
            self._portal = portal
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel all requests, disconnect and end the thread; ``with`` does this when you leave it."""
        self._portal = None
        self._stack.close()

    def embed(self, images: ImageSources, *, timeout_s: float | None = None) -> EmbeddingBatch:
        """See :meth:`ClipClient.embed`."""
        return self._call(partial(self._client.embed, images, timeout_s=timeout_s))

    def embed_stream(
        self,
        source: ImageSources,
        *,
        ordered: bool = True,
        max_in_flight: int | None = None,
        timeout_s: float | None = None,
    ) -> Generator[EmbeddedItem, None, None]:
        """See :meth:`ClipClient.embed_stream`; if you leave the loop early, closing the generator ends the stream."""
        portal = self._open_portal()
        items = self._client.embed_stream(source, ordered=ordered, max_in_flight=max_in_flight, timeout_s=timeout_s)
        # A step that was interrupted may not have ended yet when the stream is closed.
        one_at_a_time = asyncio.Lock()

        async def step() -> EmbeddedItem:
            async with one_at_a_time:
                return await items.__anext__()

        async def end() -> None:
            async with one_at_a_time:
                await items.aclose()

        try:
            while True:
                try:
                    item = self._call(step)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if self._portal is portal:  # otherwise closing the client has ended the stream
                self._call(end)

    def find_duplicates(
        self, images: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, threshold: float | None = None
    ) -> DuplicateReport:
        """See :meth:`ClipClient.find_duplicates`."""
        return self._call(partial(self._client.find_duplicates, images, threshold=threshold))

    def model(self, *, timeout_s: float | None = None) -> ModelInfo:
        """See :meth:`ClipClient.model`."""
        return self._call(partial(self._client.model, timeout_s=timeout_s))

    def health(self, *, timeout_s: float | None = None) -> HealthReport:
        """See :meth:`ClipClient.health`."""
        return self._call(partial(self._client.health, timeout_s=timeout_s))

    def stats(self) -> ClientStats:
        """See :meth:`ClipClient.stats`."""
        return self._open_portal().call(self._client.stats)

    @property
    def vector_id(self) -> str:
        """See :attr:`ClipClient.vector_id`."""
        return self._client.vector_id

    @property
    def is_local(self) -> bool:
        """See :attr:`ClipClient.is_local`."""
        return self._client.is_local

    def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        portal = self._open_portal()
        task: asyncio.Task[object] | None = None
        interrupted = False

        async def run() -> T:
            nonlocal task
            task = asyncio.current_task()
            if interrupted:
                raise asyncio.CancelledError
            return await work()

        try:
            return portal.start_task_soon(run).result()
        except BaseException:
            # An interrupt reaches the thread that waits here, and not the one that works; also before there is a
            # future to cancel, when the other thread may have started.
            interrupted = True
            if task is not None and not task.done():
                with suppress(RuntimeError):  # the loop has been closed meanwhile
                    task.get_loop().call_soon_threadsafe(task.cancel)
            raise

    def _open_portal(self) -> BlockingPortal:
        if self._portal is None:
            raise RuntimeError("this SyncClipClient is not open: use it inside `with SyncClipClient(...) as clip:`")
        return self._portal
