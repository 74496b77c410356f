"""A network that tests can break."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing import Self


_READ_BYTES: Final = 1 << 16


class Relay:
    """A TCP relay on a loopback port that can stall or cut connections. ``async with`` starts and stops it."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._closing = False
        self._answer_bytes_left: int | None = None
        self.connections = 0
        """How many connections were accepted so far."""

    @property
    def url(self) -> str:
        """For :class:`clip_client.ClipClient`."""
        return f"grpc://localhost:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Reset every connection now; new ones are accepted."""
        for writer in list(self._writers):
            writer.transport.abort()

    def cut_after(self, answer_bytes: int) -> None:
        """Reset the connections after the servers have sent this many more bytes: in the middle of a message."""
        self._answer_bytes_left = answer_bytes

    def freeze(self) -> None:
        """Pass nothing on, but keep the connections half-open, as a network does when a cable is pulled."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Pass everything on again, starting with what has accumulated."""
        self._flowing.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "localhost", 0)
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._server.close()
        self._closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        # Last, so that connections that these tasks were opening are cut, too.
        self.cut()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closing:
            writer.transport.abort()
            return
        self.connections += 1
        self._writers.add(writer)
        self._start(self._connect(reader, writer))

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("localhost", self._target)
        except OSError:
            self._close(writer)
            return
        self._writers.add(upstream_writer)
        for source, sink, is_answer in ((reader, upstream_writer, False), (upstream_reader, writer, True)):
            self._start(self._pass_on(source, sink, is_answer=is_answer))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := await source.read(_READ_BYTES):
                await self._flowing.wait()
                if is_answer and self._answer_bytes_left is not None:
                    chunk = chunk[: self._answer_bytes_left]
                    self._answer_bytes_left -= len(chunk)
                sink.write(chunk)
                await sink.drain()
                if is_answer and self._answer_bytes_left == 0:
                    self._answer_bytes_left = None
                    self.cut()
        self._close(sink)

    def _close(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.transport.abort()
