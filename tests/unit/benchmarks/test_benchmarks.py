"""The harness itself: what it compares, keeps and concludes."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from benchmarks.harness.experiment import Checkpoint
from benchmarks.harness.results import cosine_to_first
from benchmarks.load.loops import closed_loop, open_loop, poisson
from clip_client._transports.triton_statistics import ModelStatistics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_a_single_other_vector_shows_in_the_cosine() -> None:
    rows = np.eye(4)[:3]
    other = rows.copy()
    other[2] = [0, 0, 0.6, 0.8]
    cosines = cosine_to_first({"first": rows, "longer": 5 * rows, "other": other})
    assert cosines == pytest.approx({"first": 1.0, "longer": 1.0, "other": 0.6})


def test_a_stopped_run_continues_where_it_was(tmp_path: Path) -> None:
    asked: list[str] = []

    def measure(name: str) -> dict[str, Any]:
        asked.append(name)
        return {"rate": 1.0}

    first = Checkpoint("tried", {"rounds": 2}, tmp_path)
    first.cell("a", lambda: measure("a"))
    with (tmp_path / "tried.jsonl").open("a") as file:
        file.write('{"cell": "b", "result": {"ra')  # killed while it wrote
    second = Checkpoint("tried", {"rounds": 2}, tmp_path)
    assert second.has("a")
    assert not second.has("a", "b")
    second.cell("a", lambda: measure("a"))
    second.cell("b", lambda: measure("b"))
    assert asked == ["a", "b"]
    path = second.finish({"summary": {}}, tmp_path / "results")
    assert json.loads(path.read_text())["cells"] == {"a": {"rate": 1.0}, "b": {"rate": 1.0}}
    assert not Checkpoint("tried", {"rounds": 2}, tmp_path).has("a")


def test_what_another_plan_or_commit_measured_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_kept(rounds: int) -> bool:
        checkpoint = Checkpoint("tried", {"rounds": rounds}, tmp_path)
        was_kept = checkpoint.has("a")
        checkpoint.cell("a", lambda: {"rate": 1.0})
        return was_kept

    assert [is_kept(rounds) for rounds in (2, 2, 3, 3)] == [False, True, False, True]
    monkeypatch.setattr("benchmarks.harness.experiment.output", lambda *_: "another")
    assert not is_kept(3)


async def test_an_open_loop_counts_from_when_a_request_was_due() -> None:
    gate = asyncio.Semaphore(1)

    async def call(due_s: float) -> None:
        async with gate:  # a server that can do 100 a second
            await asyncio.sleep(0.01)

    answers = await open_loop(call, poisson(400.0, seed=1), seconds=0.5)
    assert answers.calls == pytest.approx(200, rel=0.2)
    assert answers.rate < 110
    # Half a second of arrivals at four times the capacity leaves the last one more than a second behind.
    assert answers.summary()["latency_ms"]["p99"] > 500


async def test_an_open_loop_drops_calls_beyond_its_limit() -> None:
    end = asyncio.Event()

    async def call(due_s: float) -> None:
        await end.wait()

    def gaps() -> Iterator[float]:
        yield from itertools.repeat(0.001, 9)
        end.set()
        yield 1

    answers = await open_loop(call, gaps(), seconds=1, limit=2)
    assert (answers.calls, answers.dropped) == (2, 7)


async def test_a_closed_loop_never_has_more_in_flight_than_callers() -> None:
    # This clock advances by 1 ms per look. By wall time, a busy machine could end the loop before all callers began.
    looks = itertools.count()
    in_flight = most = 0

    async def call(number: float) -> None:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1

    answers = await closed_loop(call, callers=3, seconds=0.05, clock=lambda: next(looks) / 1000)
    assert most == 3
    assert answers.summary(rows=2)["images"] == 2 * answers.calls


async def test_a_closed_loop_measures_the_latency_of_a_saturated_server() -> None:
    """Each answer takes 1 s and there is one at a time: five callers wait 5 s each, however short the loop is."""
    now = 0.0
    server = asyncio.Lock()

    async def call(number: float) -> None:
        nonlocal now
        await asyncio.sleep(0)  # all begin at 0
        async with server:
            now += 1
            await asyncio.sleep(0)

    result = (await closed_loop(call, callers=5, seconds=0.5, clock=lambda: now)).summary()
    assert result["latency_ms"] == pytest.approx(dict.fromkeys(("p50", "p95", "p99"), 5000), rel=0.01)
    # The first ones waited 1 to 5 s: they count for the rate and for the mean, as in the server's own counters.
    assert (result["images"], result["rate"]) == (10, pytest.approx(1))
    assert result["mean_ms"] == pytest.approx((3000 + 5000) / 2, rel=0.01)


def statistics(requests: int, batches: dict[int, int]) -> ModelStatistics:
    return ModelStatistics(
        requests=requests,
        rows=sum(size * count for size, count in batches.items()),
        runs=sum(batches.values()),
        total_ns=requests * 2_000_000,
        stages_ns={"queue": requests * 500_000},
        batches=batches,
    )


def test_statistics_between_two_looks() -> None:
    grown = statistics(14, {1: 6, 8: 1}).since(statistics(4, {1: 4}))
    assert (grown.requests, grown.rows, grown.runs) == (10, 10, 3)
    assert grown.batches == {1: 2, 8: 1}
    assert grown.share_batched == pytest.approx(0.8)
    assert grown.mean_ms() == pytest.approx({"total": 2.0, "queue": 0.5})


def test_every_experiment_is_listed_with_its_question_on_one_line() -> None:
    asked = subprocess.run([sys.executable, "-m", "benchmarks"], capture_output=True, text=True, check=True)
    listed = asked.stdout.partition("\n\n")[0].splitlines()
    assert {"three_way", "ensemble", "gpu_kit", "report", "demo"} <= {line.split()[0] for line in listed}
    for line in listed:
        assert re.fullmatch(r"\w+ +[A-Z][^?]{20,}\?", line), line
        assert len(line) <= 100, line
