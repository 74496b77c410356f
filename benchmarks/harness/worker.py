"""One system under test in a process of its own, which measures on request."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self


class WorkerFailed(RuntimeError):
    """A worker process ended before it gave its result."""


class Worker:
    """One system under test, in a process of its own that loads once and measures on request.

    The process runs ``python -m MODULE ARGUMENTS`` and writes lines of JSON: ``{"ready": ...}`` once it is warm, then
    one answer for each order that it reads. The constructor does not wait, so several workers start in parallel.
    """

    def __init__(self, name: str, module: str, *arguments: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def process_id(self) -> int:
        """Of the process that measures."""
        return self._process.pid

    @cached_property
    def ready(self) -> dict[str, Any]:
        """The first answer; waits until the worker is warm."""
        return self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.communicate()

    def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Send one order, ``seconds`` and whatever else this worker knows, and return its answer."""
        assert self.ready
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"{self.name}: ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


async def serve_orders(ready: Mapping[str, Any], carry_out: Callable[[Any], Awaitable[Mapping[str, Any]]]) -> None:
    """The worker's side: send ``ready``, then answer each order with what ``carry_out`` returns, until input ends."""
    print(json.dumps({"ready": True, **ready}), flush=True)
    # Another thread reads the pipe, because connections need the event loop between orders too.
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await carry_out(json.loads(line))), flush=True)


def in_new_process(measure: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Call ``measure`` in a new Python process, whose peak of memory holds no earlier measurement."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


def peak_memory_mb() -> float:
    """Peak resident memory of this process; ``ru_maxrss`` would include the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024 / 1e6
