"""The blocking client: the asynchronous client, run by an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import aclosing, suppress
from functools import cached_property, partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from clip_client._client import ClientBase, ClipClient
from clip_client._results import ClientStats

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[ClipClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncClipClient, P], T]:
    """Return a method of :class:`SyncClipClient` that runs ``method`` in the client's thread and waits for its end."""

    @wraps(method)
    def call(self: SyncClipClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(partial(method, self._client, *args, **kwargs))

    return call


def _streaming(
    method: Callable[Concatenate[ClipClient, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[SyncClipClient, P], Generator[T, None, None]]:
    """Return a generator of :class:`SyncClipClient` that runs each step of ``method`` in the client's thread."""

    @wraps(method)
    def generate(self: SyncClipClient, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        portal = self._open_portal()
        items = method(self._client, *args, **kwargs)
        # An interrupted step may still run when the stream is closed.
        one_at_a_time = asyncio.Lock()

        async def step() -> T:
            async with one_at_a_time:
                return await items.__anext__()

        async def end() -> None:
            async with one_at_a_time:
                await items.aclose()

        try:
            with suppress(StopAsyncIteration):
                while True:
                    yield self._call(step)
        finally:
            if self._portal is portal and not self._is_forked:  # a closed client has ended the stream already
                self._call(end)

    return generate


class SyncClipClient(ClientBase):
    """:class:`ClipClient` for code without an event loop.

    ::

        with SyncClipClient("localhost:8001") as clip:
            batch = clip.embed(["a.jpg", "b.jpg"])

    It has the same arguments, methods and errors, but the methods block. Any number of threads may share one client. It
    works in notebooks, where an event loop already runs, and an interrupt (Ctrl-C) ends the call. It runs a
    :class:`ClipClient` in a thread of its own, which ends with the client or with the process. Where a ``with`` block
    is in the way, as in a notebook, call :meth:`open` and :meth:`close`.
    """

    _portal: BlockingPortal | None = None
    _thread: threading.Thread

    @cached_property
    def _client(self) -> ClipClient:
        return ClipClient(config=self._config)

    def __repr__(self) -> str:
        return repr(self._client).replace("<ClipClient", "<SyncClipClient", 1)

    def open(self) -> Self:
        """Open the client and return it, like ``with``; call :meth:`close` at the end. An open client stays as it is.

        Raises RuntimeError if the client has been closed: make a new one.
        """
        with self._opening:
            if self._portal is None:
                started: Future[BlockingPortal] = Future()
                self._thread = threading.Thread(
                    target=self._run, args=(started,), name="clip_client portal", daemon=True
                )
                self._thread.start()
                try:
                    self._portal = started.result()
                except Exception:
                    self._thread.join()
                    raise
                self._opened_in = os.getpid()
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel all requests, disconnect and end the thread if the client is open; ``with`` does this at its end."""
        with self._opening:
            portal, self._portal = self._portal, None
        if portal is not None and not self._is_forked:
            portal.call(portal.stop)
            self._thread.join()

    embed = _blocking(ClipClient.embed)
    embed_text = _blocking(ClipClient.embed_text)
    embed_stream = _streaming(ClipClient.embed_stream)
    embed_text_stream = _streaming(ClipClient.embed_text_stream)
    classify = _blocking(ClipClient.classify)
    find_duplicates = _blocking(ClipClient.find_duplicates)
    model = _blocking(ClipClient.model)
    health = _blocking(ClipClient.health)

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
            # An interrupt reaches the thread that waits here, not the thread that works. It may come before there is a
            # future to cancel, when the other thread may have started already.
            interrupted = True
            if task is not None and not task.done():
                with suppress(RuntimeError):  # the loop has been closed meanwhile
                    task.get_loop().call_soon_threadsafe(task.cancel)
            raise

    def _open_portal(self) -> BlockingPortal:
        self._refuse_if_forked()
        if self._portal is None:
            raise RuntimeError(
                "this SyncClipClient is not open: use it inside `with SyncClipClient(...) as clip:`, or make one with "
                "`clip = SyncClipClient(...).open()`"
            )
        return self._portal

    def _run(self, started: Future[BlockingPortal]) -> None:
        """Run an event loop with the client, and with a portal into it, until the portal is stopped."""

        async def serve() -> None:
            await self._client.__aenter__()  # the portal would wrap an error that is raised inside of it
            # anyio's start_blocking_portal() is not used: when it is deleted in a forked process, it waits for its
            # thread, which is not there.
            async with BlockingPortal() as portal, aclosing(self._client):
                started.set_result(portal)
                await portal.sleep_until_stopped()

        try:
            anyio.run(serve)
        except BaseException as error:  # such as too many open files; without this the caller would wait forever
            if started.done():
                raise
            started.set_exception(error)
