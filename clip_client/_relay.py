"""A network that can be broken, for tests."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Relay:
    """A TCP relay on a loopback port that can lose, stall or cut connections. ``async with`` starts and stops it."""

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
        """How many connections were made so far."""

    @property
    def url(self) -> str:
        """For :class:`clip_client.ClipClient`."""
        return f"grpc://localhost:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Reset every connection now; new ones are accepted."""
        for writer in list(self._writers):
            writer.transport.abort()

    def cut_after(self, answer_bytes: int) -> None:
        """Reset the connections once the servers have sent so many more bytes: in the middle of a message."""
        self._answer_bytes_left = answer_bytes

    def freeze(self) -> None:
        """Pass nothing on, but keep the connections: what a network does when a cable is pulled (half-open)."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Pass everything on again, what has piled up first."""
        self._flowing.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "localhost", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        self._closing = True
        self.thaw()
        self.cut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        await self._flowing.wait()
        if self._closing:
            self._forget(writer)
            return
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("localhost", self._target)
        except OSError:
            self._forget(writer)
            return
        self._writers.add(upstream_writer)
        for source, sink, is_answer in ((reader, upstream_writer, False), (upstream_reader, writer, True)):
            task = asyncio.create_task(self._pass_on(source, sink, is_answer=is_answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := await source.read(1 << 16):
                await self._flowing.wait()
                if is_answer and self._answer_bytes_left is not None:
                    chunk = chunk[: self._answer_bytes_left]
                    self._answer_bytes_left -= len(chunk)
                sink.write(chunk)
                await sink.drain()
                if is_answer and self._answer_bytes_left == 0:
                    self._answer_bytes_left = None
                    self.cut()
        self._forget(sink)

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.transport.abort()
