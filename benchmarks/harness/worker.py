"""Processes: one that measures on request, and one for a single measurement."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

Opened = AbstractAsyncContextManager[tuple[Any, Callable[[Any], Awaitable[dict[str, Any]]]]]
"""Gives what a worker says when it is warm, and what carries out an order."""
# Not forked, because a process that has used gRPC cannot be.
_SPAWN = multiprocessing.get_context("spawn")


class WorkerFailed(RuntimeError):
    """A worker process ended before it gave its result."""


class Worker:
    """One system under test, in a process that opens it once and measures on request.

    The constructor does not wait, so several workers start in parallel.
    """

    def __init__(self, name: str, open_system: Callable[..., Opened], *arguments: Any) -> None:
        self.name = name
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_work, args=(theirs, open_system, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def process_id(self) -> int:
        """Of the process that measures."""
        assert self._process.pid is not None
        return self._process.pid

    @cached_property
    def ready(self) -> Any:
        """What it said when it was warm, which this waits for."""
        return self._receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.join()

    def ask(self, order: Any) -> dict[str, Any]:
        """Send one order and return its answer."""
        assert self.ready is not None
        self._pipe.send(order)
        answer: dict[str, Any] = self._receive()
        return answer

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join()
            raise WorkerFailed(f"{self.name}: ended with exit code {self._process.exitcode}") from None


def _work(pipe: Connection, open_system: Callable[..., Opened], *arguments: Any) -> None:
    async def serve() -> None:
        async with open_system(*arguments) as (ready, carry_out):
            pipe.send(ready)
            while True:
                # Another thread reads the pipe, because connections need the event loop between orders too.
                pipe.send(await carry_out(await asyncio.to_thread(pipe.recv)))

    asyncio.run(serve())


def in_new_process(measure: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Call ``measure`` in a new Python process, whose peak of memory holds no earlier measurement."""
    with ProcessPoolExecutor(1, mp_context=_SPAWN) as pool:
        return pool.submit(measure, *arguments).result()


def peak_memory_mb() -> float:
    """Peak resident memory of this process; ``ru_maxrss`` would include the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024 / 1e6
