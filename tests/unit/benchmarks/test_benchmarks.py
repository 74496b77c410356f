"""Records and measurements of the harness, the conclusions that experiments draw from them, and the report of all."""

import asyncio
import base64
import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.experiments.serving.ensemble import summary_of
from benchmarks.experiments.serving.perf_analyzer import input_file
from benchmarks.experiments.serving.soak import record
from benchmarks.experiments.serving.three_way import SYSTEMS, summarise
from benchmarks.fixtures.planted import THRESHOLD, planted
from benchmarks.fixtures.server_setting import ServerSetting
from benchmarks.harness.experiment import REPOSITORY, Checkpoint, experiment
from benchmarks.harness.results import cosine_to_first
from benchmarks.load.loops import closed_loop, open_loop, poisson
from benchmarks.load.triton_statistics import Counters, growth
from benchmarks.report import command as report
from benchmarks.report.charts import write_charts
from benchmarks.scripts.install_size import EXTRAS
from tests.fixtures.packaging.extras import extras
from tests.paths import ROOT


def test_a_single_other_vector_shows_in_the_cosine() -> None:
    rows = np.eye(4)[:3]
    other = rows.copy()
    other[2] = [0, 0, 0.6, 0.8]
    cosines = cosine_to_first({"first": rows, "longer": 5 * rows, "other": other})
    assert cosines == pytest.approx({"first": 1.0, "longer": 1.0, "other": 0.6})


def test_perf_analyzer_gets_each_image_behind_its_length() -> None:
    (row,) = json.loads(input_file([b"photo"]))["data"]
    assert row["image"]["shape"] == [1]
    assert base64.b64decode(row["image"]["content"]["b64"]) == b"\5\0\0\0photo"


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

    answers = await open_loop(call, poisson(400.0, seed=1), seconds=0.2)
    assert answers.calls == pytest.approx(80, rel=0.3)
    assert answers.rate < 110
    # 0.2 s of arrivals at four times the capacity leaves the last one more than 0.4 s behind.
    assert answers.summary()["latency_ms"]["p99"] > 200


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


def test_statistics_between_two_looks() -> None:
    def counted(requests: int, batches: dict[str | int, int]) -> Counters:
        times = {"total": requests * 2_000_000, "queue": requests * 500_000}
        return Counter(batches | {"requests": requests, "runs": sum(batches.values())} | times)

    grown = growth(counted(4, {1: 4}), counted(14, {1: 6, 8: 1}))
    assert (grown["requests"], grown["runs"], grown["batches"]) == (10, 3, {"1": 2, "8": 1})
    assert grown["share_batched"] == pytest.approx(0.8)
    assert grown["mean_ms"] == pytest.approx({"total": 2.0, "queue": 0.5})


def test_an_experiment_without_a_model_says_so_before_it_starts(tmp_path: Path) -> None:
    main = experiment(REPOSITORY)(lambda _: pytest.fail("it has started"))
    with pytest.raises(SystemExit, match=rf"^there is no model in {re.escape(str(tmp_path))}: run clip-export$"):
        main(["--repository", str(tmp_path), "--results", str(tmp_path)])


def test_every_experiment_is_listed_with_its_question_on_one_line() -> None:
    asked = subprocess.run([sys.executable, "-m", "benchmarks"], capture_output=True, text=True, check=True)
    listed = asked.stdout.partition("\n\n")[0].splitlines()
    assert {"three_way", "ensemble", "gpu_kit", "report", "demo"} <= {line.split()[0] for line in listed}
    for line in listed:
        assert re.fullmatch(r"\w+ +[A-Z][^?]{20,}\?", line), line
        assert len(line) <= 100, line


@pytest.mark.parametrize(("name", "package"), [("perf_analyzer", "psutil"), ("demo", "skimage")])
def test_an_experiment_names_the_package_that_is_missing_and_what_installs_it(
    name: str, package: str, tmp_path: Path
) -> None:
    code = f"import runpy, sys; sys.modules[{package!r}] = None; runpy.run_module('benchmarks', run_name='__main__')"
    command = [sys.executable, "-c", code, name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    remedy = f"run `make install`, then `.venv/bin/python -m benchmarks {name}`"
    assert (ran.returncode, ran.stderr) == (1, f"{name} needs {package}, which this Python lacks: {remedy}\n")


def test_the_server_is_full_at_the_first_point_near_the_best_and_other_vectors_are_invalid() -> None:
    model = {"mean_ms": {"queue": 1.0, "compute_infer": 2.0}, "share_batched": 0.5}
    one = {
        "latency_ms": {"p50": 1.0, "p95": 2.0, "p99": 3.0}, "mean_ms": 1.0, "gpu": {},
        "models": {"clip_preprocess": model, "clip_encoder": model},
    }  # fmt: skip
    rates = {1: 10.0, 2: 15.0, 4: 19.5, 8: 20.0, 16: 19.8}
    cells = {f"ensemble x{size} round 1": {**one, "rate": rate} for size, rate in rates.items()}
    for cosine, valid in ((1.0, True), (0.9998, False)):
        cells["ensemble start round 1"] = {"seconds": 3.0, "cosine": cosine}
        found = summary_of(ServerSetting(), list(rates), cells)
        assert (found["full_at"], found["valid"]) == (4, valid)


@pytest.mark.parametrize("cosine", [1.0, 0.99])
def test_ratios_are_taken_within_each_round_and_other_vectors_make_the_run_invalid(cosine: float) -> None:
    rates = {"plain-batched": (10.0, 12.0), "ensemble": (20.0, 18.0)}
    found = {
        f"{system} x32": [{"rate": rate, "latency_ms": {"p50": 5.0}} for rate in values]
        for system, values in rates.items()
    }
    systems = {name: SYSTEMS[name] for name in rates}
    summary = summarise(systems, [32], found, {"plain-batched": 1.0, "ensemble": cosine}, {})
    (ratio,) = summary["ratios"]
    assert (ratio["min"], ratio["max"], ratio["median"]) == pytest.approx((1.5, 2.0, 1.75))
    assert summary["systems"]["ensemble"]["valid"] is summary["valid"] is (cosine == 1)


def test_exactly_the_planted_pairs_reach_the_threshold_and_all_are_close_together() -> None:
    vectors, family = planted(3000)
    products = vectors @ vectors.T
    assert products[np.triu(family[:, None] != family, 1)].max() < THRESHOLD
    copies = np.flatnonzero(family != np.arange(3000))
    assert len(copies) == 150
    assert (products[copies, family[copies]] >= THRESHOLD).all()
    cosines = products[np.triu_indices(3000, 1)]
    assert cosines.mean() == pytest.approx(0.6, abs=0.01)
    assert np.quantile(cosines, 0.99) == pytest.approx(0.73, abs=0.01)


def test_every_extra_for_users_is_measured() -> None:
    packages = extras()
    measured = [set().union(*(packages[name] for name in one.split(",") if name)) for one in EXTRAS]
    missing = {name for name in packages if not any(packages[name] <= one for one in measured)}
    assert missing == {"baseline", "bench", "dev", "gpu", "tensorrt-parser", "tracing"}


@pytest.mark.parametrize(
    ("name", "values", "flat"),
    [
        ("memory in MiB", [10.0] * 10 + [60.0] * 90, True),  # grows in the first tenth only
        ("memory in MiB", [60.0] * 90 + [62.9] * 10, True),
        ("memory in MiB", [60.0] * 90 + [63.1] * 10, False),
        ("open files", [17.0] * 15 + [18.0] * 85, True),  # seen in the second tenth
        ("open files", [17.0] * 90 + [18.0] * 10, False),
        ("restarts", [0.0] * 99 + [1.0], False),
        ("restarts", [1.0] * 100, False),
    ],
)
def test_what_a_soak_calls_flat(name: str, values: list[float], flat: bool) -> None:
    assert record(name, values)["flat"] is flat


MACHINE = {
    "cores": 2, "cpu": "a CPU", "cpu_flags": ["avx2"], "gpu": None, "system": "Linux", "python": "3.11",
    "commit": "abc", "modified": False, "load_average": 0.1,
}  # fmt: skip


def three_way(cosine: float = 1.0) -> dict[str, Any]:
    def at(low: float, median: float, high: float) -> dict[str, Any]:
        return {"32": {"images_per_second": {"min": low, "median": median, "max": high}, "p50_ms": 5.0}}

    valid = cosine > 0.9999
    ratio = {"of": "ensemble", "to": "plain-batched", "at_concurrency": 32, "required": 1.05}
    return {
        "systems": {
            "plain-batched": {"at": at(10.0, 11.0, 12.0), "cosine": 1.0, "valid": True},
            "ensemble": {"at": at(18.0, 19.0, 20.0), "cosine": cosine, "valid": valid},
        },
        "ratios": [{**ratio, "min": 1.5, "median": 1.75, "max": 2.0}],
        "valid": valid,
    }


def keep(directory: Path, name: str, day: str, **result: Any) -> None:
    record = {"experiment": name, "environment": {**MACHINE, "time": day}, **result}
    (directory / f"{name}-{day}.json").write_text(json.dumps(record))


def test_tables_come_from_the_newest_result_but_only_when_the_report_is_run(tmp_path: Path) -> None:
    for day, cosine in (("2026-01-01", 0.99), ("2026-01-02", 1.0)):
        keep(tmp_path, "three_way", day, plan={"rounds": 2}, summary=three_way(cosine))
    results = report.newest(tmp_path.glob("*.json"))
    text = report.fill("before\n<!-- three_way -->\nold\n<!-- /three_way -->\nafter\n", results)
    assert text.startswith("before\n<!-- three_way -->\n2 cores of a CPU with avx2, no GPU;")
    assert text.endswith("\n<!-- /three_way -->\nafter\n")
    assert "| ensemble, JPEG over gRPC | 19.0 | 1.000000 |" in text
    assert "old" not in text
    assert report.fill(text, results) == text
    keep(tmp_path, "three_way", "2026-01-03", plan={"rounds": 2}, summary=three_way(0.99))
    keep(tmp_path, "soak", "2026-01-03")
    assert report.fill(text, report.stated(text, tmp_path)) == text
    assert "2026-01-03" in report.fill(text, report.newest(tmp_path.glob("*.json")))
    typed = text.replace("19.0", "91.0")
    assert report.fill(typed, report.stated(typed, tmp_path)) == text != typed


def test_each_chart_is_drawn_from_the_kept_results(tmp_path: Path) -> None:
    results = report.newest((ROOT / "benchmarks" / "results").glob("*.json"))
    charts = write_charts(results, tmp_path)
    assert [chart.name for chart in charts] == ["three_way.png", "text.png", "first_scan.png"]
    assert all(chart.read_bytes().startswith(b"\x89PNG") for chart in charts)


def test_a_table_without_results_names_the_command_that_measures_them() -> None:
    for name in (report.FIGURES, *report.TABLES):
        text = report.fill(f"<!-- {name} -->\n<!-- /{name} -->\n", {})
        assert "Not measured yet: `python -m benchmarks " in text, name
    assert "GPU: not measured yet." in report.fill("<!-- gpu -->\n<!-- /gpu -->\n", {})


@pytest.mark.parametrize("document", report.DOCUMENTS, ids=str)
def test_the_documents_state_the_results_that_they_name(document: Path) -> None:
    # After a change to benchmarks/report/templates: python -m benchmarks report
    text = (ROOT / document).read_text(encoding="utf-8")
    results = report.stated(text, ROOT / "benchmarks" / "results")
    assert results
    assert report.fill(text, results) == text
