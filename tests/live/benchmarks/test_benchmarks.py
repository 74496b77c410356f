"""A slice of each experiment that needs no other environment, with the small model, so that none rots."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.experiments.imaging.fuzz import fuzz_live
from benchmarks.experiments.robustness.soak import Series, mixed_calls, soak
from benchmarks.fixtures.copies.generator import KINDS
from benchmarks.fixtures.copies.holdout import KINDS as HOLDOUT_KINDS
from benchmarks.fixtures.copies.holdout_tools import missing_tools
from benchmarks.gpu.offline_bundle import write_photos
from preprocess_ensemble.runtimes.processor import has_bf16
from preprocess_ensemble.testing.tiny_model import TINY_CLIP
from tests.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from preprocess_ensemble.testing.server import Server


def run(name: str, *options: str, results: Path) -> dict[str, Any]:
    """Run one experiment as a user does, in a folder of its own, and return what it kept."""
    command = [sys.executable, "-m", "benchmarks", name, "--results", str(results), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=results, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    (kept,) = results.glob(f"{name}-*.json")
    result: dict[str, Any] = json.loads(kept.read_text())
    assert result["environment"]["cores"] >= 1
    return result


def test_three_way(tiny_repository: Path, tmp_path: Path) -> None:
    # The plain service has tests of its own, and ClipClient is what test_scaling loads servers with.
    systems = ("pytorch", "triton-json", "triton-http", "triton-grpc", "ensemble")
    options = ("--systems", *systems, "--concurrency", "2", "--rounds", "1", "--seconds", "0.2")
    model = ("--repository", str(tiny_repository), "--model", str(TINY_CLIP))
    summary = run("three_way", *model, *options, results=tmp_path)["summary"]
    assert all(row["valid"] for row in summary["systems"].values()), summary
    assert {row["at"]["2"]["images_per_second"]["median"] > 0 for row in summary["systems"].values()} == {True}


def test_queue_delay(tiny_repository: Path, tmp_path: Path) -> None:
    # With a tenth of a second to wait, requests that come together share a run.
    options = ("--delays-us", "100000", "--instances", "1", "--concurrency", "1", "4", "--rounds", "1")
    summary = run("queue_delay", "--repository", str(tiny_repository), *options, "--seconds", "0.5", results=tmp_path)[
        "summary"
    ]
    alone, together = summary["cells"]
    assert alone["share_batched"] == 0
    assert together["share_batched"] > 0.5
    assert summary["recommended"]["max_queue_delay_microseconds"] == 100_000


def test_serialisation(tmp_path: Path) -> None:
    line = ("--links", "100 Mbit/s, 20 ms", "--link-rows", "2")
    # Long enough for ten of the requests that the line takes 44 ms for: the median of two may be that of a hiccup.
    summary = run("serialisation", "--rows", "2", *line, "--rounds", "1", "--seconds", "0.5", results=tmp_path)[
        "summary"
    ]
    sizes = {point["form"]: point["bytes"] for point in summary["points"]}
    assert sizes["fp32-grpc"] == 2 * 602_112 == 4 * sizes["uint8-grpc"]
    assert sizes["fp32-json"] > sizes["fp32-grpc"] > sizes["jpeg-grpc"]
    # Two tensors alone take 96 ms of that line, and it is 20 ms long.
    slow = {point["form"]: point["p50_ms"] for point in summary["over_links"]}
    assert slow["fp32-grpc"] > 100
    assert slow["fp32-json"] > slow["fp32-grpc"] > slow["uint8-grpc"] > 20


def test_latency(tiny_repository: Path, tmp_path: Path) -> None:
    options = ("--rows", "1", "4", "--concurrency", "1", "4", "--rounds", "1", "--seconds", "0.2")
    summary = run("latency", "--repository", str(tiny_repository), *options, results=tmp_path)["summary"]
    assert summary["saturated_at"] in (1, 4)
    for point in (*summary["by_rows"], *summary["by_concurrency"], *summary["by_offered"]):
        assert point["server_ms"]["clip_encoder"]["compute_infer"] > 0
    single = summary["by_concurrency"][0]
    assert single["server_ms"]["clip_encoder"]["compute_infer"] < single["latency_ms"]["p99"]


def test_precision(tiny_repository: Path, tmp_path: Path) -> None:
    rows = ("fp32", "auto", "int8")
    model = ("--repository", str(tiny_repository), "--model", str(TINY_CLIP))
    options = ("--rows", *rows, "--rounds", "1", "--seconds", "0.2")
    summary = run("precision", *model, *options, results=tmp_path)["summary"]
    assert {row: summary[row]["valid"] for row in rows} == dict.fromkeys(rows, True)
    assert summary["int8"]["cosine"] < summary["fp32"]["cosine"]
    assert "(fp32 was asked for)" in summary["fp32"]["runtime"]
    assert "timed on" in summary["auto"]["runtime"]
    assert ("OpenVINO bf16: this processor has neither" in summary["auto"]["runtime"]) != has_bf16()
    assert set(summary["auto"]["times_fp32"]) == {"1", "8", "32"}
    assert {one["fastest"] for one in summary["auto"]["times_fastest"].values()} == {"fp32"}, "the only other row"
    assert all(one["low"] <= one["ratio"] <= one["high"] for one in summary["auto"]["times_fastest"].values())
    assert min(summary["auto"]["starts_s"].values()) > 0


def test_operators(tiny_repository: Path, tmp_path: Path) -> None:
    options = ("--repository", str(tiny_repository), "--batch", "2", "--runs", "2")
    summary = run("operators", *options, results=tmp_path)["summary"]["2"]
    assert {"Conv", "MatMul"} <= {row["operator"] for row in summary["operators"]}
    assert sum(row["share"] for row in summary["operators"]) == pytest.approx(1)
    assert summary["cpu_fallbacks"] == []


def test_scaling(tiny_repository: Path, tmp_path: Path) -> None:
    options = ("--repository", str(tiny_repository), "--rounds", "1", "--seconds", "0.2", "--price-per-hour", "3.6")
    summary = run("scaling", *options, results=tmp_path)["summary"]
    assert summary["efficiency"]["1"] == 1
    assert summary["least_cosine"] >= 0.9999
    assert summary["cost_per_1000_images"] == pytest.approx(1 / max(summary["rates"].values()))


def test_gpu_with_the_cpu_provider(tiny_repository: Path, tmp_path: Path) -> None:
    """Without a card: everything except the provider. The second command finds that all is done."""
    exports, photos = tmp_path / "exports", tmp_path / "photos"
    exports.mkdir()
    for precision in ("fp32", "fp16"):
        (exports / precision).symlink_to(tiny_repository)
    write_photos(photos)
    parts = ["session", "single", "tensorrt"]
    options = ("--exports", str(exports), "--photos", str(photos), "--output", str(tmp_path / "out"))
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu.command",
        "--device",
        "cpu",
        "--quick",
        "--seconds",
        "0.2",
        *options,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for said in ("complete; kept in", "complete already"):
        ran = subprocess.run(
            [*command, "--parts", *parts], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.count(said) == len(parts)
    results = {part: json.loads((tmp_path / "out" / f"gpu_{part}.json").read_text()) for part in parts}
    session = results["session"]["cells"]["fp16, graphs, batch 2"]
    assert session["buckets"] == [1, 2]
    assert session["canary_cosine"] > 0.9999
    single = results["single"]["cells"]["fp16, graphs, batch 32"]
    assert single["cosine"] > 0.9999
    (point,) = single["by_concurrency"]
    assert 0 < point["server_ms"]["clip_encoder"]["compute_infer"] < point["latency_ms"]["p99"]
    assert "unproved" in results["tensorrt"]["cells"]["engine built"]


@pytest.mark.timeout(300)  # it writes and searches a case of every class
@pytest.mark.parametrize("part", ["seeds", "holdout"])
def test_accuracy(part: str, tiny_repository: Path, tmp_path: Path) -> None:
    if part == "holdout" and (missing := missing_tools()):
        pytest.skip(f"the holdout needs {', '.join(missing)}")
    sets = ("--seeds", "7") if part == "seeds" else ("--seeds", "", "--holdout")
    options = ("--repository", str(tiny_repository), "--store", str(tmp_path / "store"), "--most", "1")
    result = run("accuracy", *options, *sets, results=tmp_path)
    classes = result[part]["classes"]
    assert set(KINDS if part == "seeds" else HOLDOUT_KINDS) < set(classes)
    assert {row["cases"] for kind, row in classes.items() if kind != "all"} == {1}
    assert classes["all"]["moved_hash"] > 0
    if part == "seeds":
        assert classes["equal bytes"]["moved_default"] == 1
    else:
        assert classes["film: bikes"]["moved_request"] == 0


async def test_soak(server: Server) -> None:
    calls = mixed_calls()
    assert {(call.is_bad, call.is_cancelled) for call in calls} == set(itertools.product((False, True), repeat=2))
    soaked = await soak(server, calls[:40], transfer="original", requests=40, seconds=60, concurrency=4)
    assert soaked.requests == 40
    assert soaked.cancelled > 0
    assert "tiny_clip" in soaked.model_id
    read = {name: one.values for name, one in soaked.series.items()}
    assert set(read["restarts"]) == {0}
    processes = ("client", "clip-serve", "tritonserver", "clip_preprocess", "clip_encoder")
    assert all(min(read[f"{name}, memory in MiB"]) > 10 and min(read[f"{name}, open files"]) > 2 for name in processes)
    assert min(read["shared-memory regions"]) > 0


@pytest.mark.parametrize(
    ("values", "exact", "flat"),
    [
        ([10.0] * 10 + [60.0] * 90, False, True),  # grows in the first tenth only
        ([60.0] * 90 + [62.9] * 10, False, True),
        ([60.0] * 90 + [63.1] * 10, False, False),
        ([17.0] * 15 + [18.0] * 85, True, True),  # seen in the second tenth
        ([17.0] * 90 + [18.0] * 10, True, False),
    ],
)
def test_what_a_soak_calls_flat(values: list[float], exact: bool, flat: bool) -> None:
    assert Series(values=values, exact=exact).record()["flat"] is flat


def test_a_server_survives_damaged_files_among_good_ones(server: Server) -> None:
    outcome, _ = fuzz_live(server, seed=11, count=240)
    assert outcome.findings == {}
    assert outcome.statuses.total() == 240
