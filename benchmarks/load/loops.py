"""The load generators: a closed loop and an open loop."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.harness.results import percentiles

LEAST_TURNS: Final = 2
"""Calls that each caller of a closed loop makes, however long they take: one fills the queue, one counts."""
OPEN_TIMES: Final = 3
"""Length of an open loop over that of a closed one, because near saturation a queue grows slowly to its full length."""
OPEN_LOOP_LIMIT: Final = 4096
"""Most calls in flight in an open loop; further ones are counted as dropped and not made."""


@dataclass(kw_only=True)
class Answers:
    """The measurements of a loop."""

    calls: int = 0
    dropped: int = 0
    seconds: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    """Latency of each caller's first call, which meets a queue that is still filling."""

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds

    def summary(self, rows: int = 1) -> dict[str, Any]:
        """Images, rate and latencies as JSON, for calls of ``rows`` images; ``mean_ms`` includes the first calls."""
        every = [*self.first_ms, *self.latencies_ms]
        latency = {"latency_ms": percentiles(self.latencies_ms)} if self.latencies_ms else {}
        mean = {"mean_ms": statistics.fmean(every)} if every else {}
        return {"images": rows * self.calls, "rate": rows * self.rate, **latency, **mean}


async def closed_loop(
    call: Callable[[int], Awaitable[Any]],
    *,
    callers: int,
    seconds: float,
    most: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> Answers:
    """Let ``callers`` tasks each make one call after another for ``seconds``, ``most`` calls in total.

    ``call`` gets the number of the call. Each caller makes at least :data:`LEAST_TURNS` calls. The latency of its first
    call is kept apart: if a server needs longer for one turn of all callers than the loop lasts, the first calls only
    meet a queue that is still filling.
    """
    answers = Answers()
    start = clock()
    numbers = itertools.count()

    async def caller() -> None:
        for turn in itertools.count():
            then = clock()
            if (then >= start + seconds and turn >= LEAST_TURNS) or (number := next(numbers)) >= most:
                return
            await call(number)
            answers.calls += 1
            (answers.latencies_ms if turn else answers.first_ms).append(1e3 * (clock() - then))

    await asyncio.gather(*(caller() for _ in range(callers)))
    answers.seconds = clock() - start
    return answers


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Seconds from one call to the next: ``rate`` calls a second on average, at random moments."""
    randomness = random.Random(seed)
    while True:
        yield randomness.expovariate(rate)


async def open_loop(
    call: Callable[[float], Awaitable[Any]], gaps: Iterator[float], *, seconds: float, limit: int = OPEN_LOOP_LIMIT
) -> Answers:
    """Start calls at the times that ``gaps`` sets, whether or not earlier ones were answered, and wait for the last.

    ``call`` gets the seconds from the start of the loop to the moment when it was due. Latencies count from that
    moment too, so a generator that falls behind does not flatter the server.
    """
    answers = Answers()
    loop = asyncio.get_running_loop()
    start = loop.time()
    due_s = 0.0
    in_flight = 0
    tasks: list[asyncio.Task[None]] = []

    async def one(due_s: float) -> None:
        nonlocal in_flight
        try:
            await call(due_s)
        finally:
            in_flight -= 1
        answers.latencies_ms.append(1e3 * (loop.time() - start - due_s))

    while (due_s := due_s + next(gaps)) < seconds:
        if (ahead := start + due_s - loop.time()) > 0:
            await asyncio.sleep(ahead)
        if in_flight >= limit:
            answers.dropped += 1
        else:
            in_flight += 1  # not in the task, which begins later if this loop is behind
            tasks.append(asyncio.create_task(one(due_s)))
    await asyncio.gather(*tasks)
    answers.calls, answers.seconds = len(answers.latencies_ms), loop.time() - start
    return answers
