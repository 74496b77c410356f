"""The harness itself: what it compares, keeps and concludes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from benchmarks import load, report
from benchmarks.baseline.batcher import Batcher
from benchmarks.baseline.settings import SettingError, Settings
from benchmarks.harness import Journal, cosine_to_first, percentiles
from benchmarks.latency import saturation
from benchmarks.queue_delay import recommend
from benchmarks.serialisation import over_links
from benchmarks.three_way import summarise
from clip_client._statistics import ModelStatistics

if TYPE_CHECKING:
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

    first = Journal("tried", {"rounds": 2}, tmp_path)
    first.cell("a", lambda: measure("a"))
    with (tmp_path / "tried.jsonl").open("a") as file:
        file.write('{"cell": "b", "result": {"ra')  # killed while it wrote
    second = Journal("tried", {"rounds": 2}, tmp_path)
    assert second.has("a")
    assert not second.has("a", "b")
    second.cell("a", lambda: measure("a"))
    second.cell("b", lambda: measure("b"))
    assert asked == ["a", "b"]
    path = second.finish({"summary": {}}, tmp_path / "results")
    assert json.loads(path.read_text())["cells"] == {"a": {"rate": 1.0}, "b": {"rate": 1.0}}
    assert not Journal("tried", {"rounds": 2}, tmp_path).has("a")


def test_another_plan_starts_anew(tmp_path: Path) -> None:
    Journal("tried", {"rounds": 2}, tmp_path).cell("a", lambda: {"rate": 1.0})
    assert not Journal("tried", {"rounds": 3}, tmp_path).has("a")


def test_percentiles_of_one_value_are_that_value() -> None:
    assert percentiles([7.0]) == {"p50": 7.0, "p95": 7.0, "p99": 7.0}


async def test_an_open_loop_counts_from_when_a_request_was_due() -> None:
    gate = asyncio.Semaphore(1)

    async def embed(rows: list[int]) -> Any:
        async with gate:  # a server that can do 100 a second
            await asyncio.sleep(0.01)

    result = await load.open_loop(embed, 4, seconds=0.5, rate=400.0, rows=1)
    assert result["offered"] == 400.0
    assert result["rate"] < 110
    # Half a second of arrivals at four times the capacity leaves the last one more than a second behind.
    assert result["latency_ms"]["p99"] > 500


async def test_a_closed_loop_never_has_more_under_way_than_callers() -> None:
    under_way = most = 0

    async def embed(rows: list[int]) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    result = await load.closed_loop(embed, 4, seconds=0.05, concurrency=3, rows=2)
    assert most == 3
    assert result["images"] % 2 == 0


def cell(instances: int, delay_us: int, concurrency: int, rate: float, p50_ms: float) -> dict[str, Any]:
    return {"instances": instances, "delay_us": delay_us, "concurrency": concurrency, "rate": rate, "p50_ms": p50_ms}


def test_the_recommendation_prefers_throughput_then_the_lone_caller_then_less() -> None:
    cells = [
        cell(1, 0, 1, 18, 50), cell(1, 0, 32, 20.0, 1600),
        cell(1, 50_000, 1, 9, 100), cell(1, 50_000, 32, 20.3, 1580),
        cell(2, 0, 1, 18, 50), cell(2, 0, 32, 14.0, 2300),
    ]  # fmt: skip
    advice = recommend(cells)
    assert (advice["instances"], advice["max_queue_delay_microseconds"]) == (1, 0)
    # Where waiting really pays, it is chosen.
    cells[3]["rate"] = 30.0
    assert recommend(cells)["max_queue_delay_microseconds"] == 50_000


def test_saturation_is_the_first_point_near_the_best() -> None:
    rates = {1: 10, 2: 15, 4: 19.5, 8: 20, 16: 19.8}
    assert saturation([{"concurrency": size, "rate": rate} for size, rate in rates.items()]) == 4


def test_a_slow_link_adds_bytes_and_round_trip() -> None:
    assert over_links({"p50_ms": 1.0, "bytes": 250_000})["20 Mbit/s, 40 ms"] == pytest.approx(1 + 100 + 40)


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


async def test_requests_that_wait_share_a_run_up_to_the_limit() -> None:
    runs: list[list[int]] = []

    def work(items: list[int]) -> list[int]:
        runs.append(items)
        return [10 * item for item in items]

    batcher = Batcher(work, max_items=4)
    answers = await asyncio.gather(*(batcher.submit([n, n]) for n in range(5)))
    batcher.close()
    assert answers == [[10 * n, 10 * n] for n in range(5)]
    assert runs == [[0, 0], [1, 1, 2, 2], [3, 3, 4, 4]]


async def test_a_batch_that_fails_fails_its_callers_and_no_others() -> None:
    def work(items: list[int]) -> list[int]:
        if 0 in items:
            raise ValueError("zero")
        return items

    batcher = Batcher(work, max_items=1)
    answers = await asyncio.gather(*(batcher.submit([n]) for n in range(3)), return_exceptions=True)
    batcher.close()
    assert isinstance(answers[0], ValueError)
    assert answers[1:] == [[1], [2]]


def test_settings_come_from_the_environment() -> None:
    settings = Settings.from_environment({"CLIP_MODEL": "ViT-L-14", "CLIP_MAX_BATCH": "1", "HOME": "/"})
    assert (settings.model, settings.pretrained, settings.max_batch) == ("ViT-L-14", "laion2b_s34b_b79k", 1)
    with pytest.raises(SettingError, match="CLIP_MAX_BATCH must be a whole number"):
        Settings.from_environment({"CLIP_MAX_BATCH": "none"})


def three_way(cosine: float = 1.0) -> dict[str, Any]:
    systems = ["plain-batched", "ensemble"]
    rates = {"plain-batched": (10.0, 12.0), "ensemble": (20.0, 18.0)}
    cells = {
        f"{system} x32 round {number}": {"rate": rate, "latency_ms": {"p50": 5.0}}
        for system, values in rates.items()
        for number, rate in enumerate(values, 1)
    }
    return summarise(cells, {"plain-batched": 1.0, "ensemble": cosine}, systems, [32], 2)


def test_ratios_are_taken_within_each_round() -> None:
    (ratio,) = three_way()["ratios"]
    assert (ratio["min"], ratio["max"], ratio["median"]) == pytest.approx((1.5, 2.0, 1.75))


def test_other_vectors_make_a_row_and_the_run_invalid() -> None:
    summary = three_way(cosine=0.99)
    assert not summary["systems"]["ensemble"]["valid"]
    assert not summary["valid"]


def test_page_and_readme_come_from_the_newest_result(tmp_path: Path) -> None:
    machine = {
        "cores": 2, "cpu": "a CPU", "cpu_flags": ["avx2"], "gpu": None, "system": "Linux", "python": "3.11",
        "commit": "abc", "modified": False, "load_average": 0.1,
    }  # fmt: skip
    for day, cosine in (("2026-01-01", 0.99), ("2026-01-02", 1.0)):
        result = {
            "experiment": "three_way",
            "environment": {**machine, "time": day},
            "summary": three_way(cosine),
        }
        (tmp_path / f"three_way-{day}.json").write_text(json.dumps(result))
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    results = report.newest(tmp_path)
    assert report.update_readme(readme, report.readme_table(results))
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "| ensemble, JPEG over gRPC | 19.0 | 1.000000 |" in text
    assert "old" not in text
    page = report.render(results, tmp_path).read_text()
    assert "182.9 ms" in page
    assert "three_way-2026-01-02.json" in page
    assert (tmp_path / "three_way.png").read_bytes().startswith(b"\x89PNG")


def test_every_experiment_is_listed_with_its_question() -> None:
    listed = subprocess.run([sys.executable, "-m", "benchmarks"], capture_output=True, text=True, check=True).stdout
    for name in ("three_way", "queue_delay", "serialisation", "latency", "precision", "report"):
        assert f"\n{name} " in listed.replace("\n ", "\n")
