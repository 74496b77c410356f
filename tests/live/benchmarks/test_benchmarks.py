"""A slice of each experiment that needs no other environment, with the small model, so that none rots."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.experiments.serving.soak import mixed_calls, soak
from benchmarks.fixtures.copies.holdout_tools import missing_tools
from benchmarks.fixtures.sample_photos import write_originals
from benchmarks.fixtures.server import TINY_CLIP
from benchmarks.report.command import newest
from benchmarks.report.markdown_tables import part_of
from tests.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.fixtures.server import Server


def run(name: str, *options: str, results: Path, kept: str | None = None) -> dict[str, Any]:
    """Run one experiment as a user does, in a folder of its own, and return what it kept under its name or ``kept``."""
    command = [sys.executable, "-m", "benchmarks", name, "--results", str(results), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=results, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    (path,) = results.glob(f"{kept or name}-*.json")
    result: dict[str, Any] = json.loads(path.read_text())
    assert result["environment"]["cores"] >= 1
    return result


def test_three_way(tiny_repository: Path, tmp_path: Path) -> None:
    # The plain service has tests of its own.
    systems = ("pytorch", "triton-json", "triton-http", "triton-grpc", "ensemble", "client", "auto", "int8")
    options = ("--systems", *systems, "--concurrency", "2", "--rounds", "1", "--seconds", "0.2")
    model = ("--repository", str(tiny_repository), "--model", str(TINY_CLIP))
    summary = run("three_way", *model, *options, results=tmp_path)["summary"]
    assert all(row["valid"] for row in summary["systems"].values()), summary
    assert {row["at"]["2"]["images_per_second"]["median"] > 0 for row in summary["systems"].values()} == {True}
    assert summary["systems"]["int8"]["cosine"] < summary["systems"]["ensemble"]["cosine"]
    assert "timed on" in summary["systems"]["auto"]["runtime"]


def test_three_way_in_an_open_loop(tiny_repository: Path, tmp_path: Path) -> None:
    # Through the client, which repeats what fails while a busy machine lets Triton think that a stub is dead.
    options = ("--systems", "client", "--concurrency", "2", "--offered", "0.5", "--rounds", "1", "--seconds", "0.2")
    model = ("--repository", str(tiny_repository), "--model", str(TINY_CLIP))
    summary = run("three_way", *model, *options, results=tmp_path)["summary"]
    assert summary["systems"]["client"]["offered"]["0.5"]["p99"] > 0


def test_text(tiny_pair_repository: Path, tmp_path: Path) -> None:
    options = ("--systems", "client-text", "--concurrency", "2", "--rounds", "1", "--seconds", "0.2")
    summary = run(
        "text", "--repository", str(tiny_pair_repository), "--model", str(TINY_CLIP), *options, results=tmp_path
    )
    for system in summary["summary"].values():
        assert system["valid"]
        assert system["odd"] > 0.999999
        assert system["at"]["2"]["rate"]["median"] > 0


def test_trained(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "photos" / name).mkdir(parents=True)
    write_originals(tmp_path / "photos" / "one")
    for photo in sorted((tmp_path / "photos" / "one").iterdir())[::2]:
        photo.rename(tmp_path / "photos" / "two" / photo.name)
    options = ("--pretrained", "random:0", "--photos", str(tmp_path / "photos"), "--most", "8")
    summary = run("trained", "--model", str(TINY_CLIP), *options, results=tmp_path)["summary"]
    assert summary["images, sent whole"]["least"] > 0.999
    assert summary["texts"]["least"] > 0.999999
    assert summary["zero-shot"]["labels"] == 2
    assert summary["nothing clearly matches: nonsense"]["queries"] == 50


def test_ensemble(tiny_repository: Path, tmp_path: Path) -> None:
    # With a tenth of a second to wait, requests that come together share a run.
    options = ("--delay-us", "0", "100000", "--concurrency", "1", "4", "--offered", "0.5", "--name", "delays")
    model = ("--repository", str(tiny_repository), "--model", str(TINY_CLIP))
    command = ("ensemble", *model, *options, "--rounds", "1", "--seconds", "0.5")
    summary = run(*command, results=tmp_path, kept="delays")["summary"]
    at_once, waiting = summary["settings"]
    assert (at_once["valid"], waiting["name"]) == (True, "delay 100000 us")
    assert waiting["at"]["1"]["share_batched"] == 0 < waiting["at"]["4"]["share_batched"]
    for point in (*at_once["at"].values(), *at_once["offered"].values()):
        assert 0 < point["server_ms"]["clip_encoder"]["compute_infer"] < point["latency_ms"]["p99"]
    assert {(part, *sizes) for part, sizes in summary["ratios"].items()} == {
        ("session", "1", "4"),
        ("pytorch", "1", "4"),
    }
    kept = newest(tmp_path)["delays"]  # no document has a result of these tables yet
    assert "| 4 |" in part_of("ensemble", {"ensemble": kept})
    assert "x, 100 ms |" in part_of("queue_delay", {"queue_delay": kept})
    on_a_card = kept | {"experiment": "gpu_delays", "plan": {**kept["plan"], "device": "cuda"}}
    assert "| bare session, batch 4 |" in part_of("gpu", {"gpu_delays": on_a_card})


def test_transfer(tiny_repository: Path, tmp_path: Path) -> None:
    found = run("transfer", "--repository", str(tiny_repository), results=tmp_path)
    sizes = {way: one["mean_kb"] for way, one in found["preparation_2_megapixels"].items()}
    assert sizes["JSON"] > sizes["FP32 tensor"] == 4 * sizes["uint8 tensor"] > sizes["thumbnail"]
    assert found["settings"]["PNG"]["least_cosine"] > found["settings"]["JPEG q75 4:2:0"]["least_cosine"]


def test_towers(tiny_pair_repository: Path, tmp_path: Path) -> None:
    found = run("towers", str(tiny_pair_repository), "--batch", "2", "--rounds", "1", results=tmp_path)
    ((model, milliseconds),) = found["milliseconds"].items()
    assert model.startswith("tiny_clip/")
    assert milliseconds["image"] > milliseconds["text"] > 0


@pytest.mark.timeout(300)
def test_scale(tmp_path: Path) -> None:
    found = run("scale", "--vectors", "400", "--files", "60", results=tmp_path)
    assert {name for name in found["searches"] if not name.startswith("10 of")} == {
        "400 vectors, one machine",
        "400 vectors, Ray",
    }
    assert all(one["recall"] == 1 for one in found["searches"].values() if "recall" in one)
    assert set(found["embedding"]) == {"one machine", "Ray"}


def test_gpu_with_the_cpu_provider(tiny_repository: Path, tmp_path: Path) -> None:
    """Without a card: everything except the provider. The second command finds that all is done."""
    exports, photos, output = tmp_path / "exports", tmp_path / "photos", tmp_path / "out"
    exports.mkdir()
    for precision in ("fp32", "fp16"):
        (exports / precision).symlink_to(tiny_repository)
    folders = (f"--exports={exports}", f"--photos={photos}", f"--output={output}")
    runs = ("single", "parts", "tensorrt")
    command = [sys.executable, "-m", "benchmarks", "gpu", *folders, "--device=cpu", "--quick", "--runs", *runs]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for said in ("complete", "complete already"):
        ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
        assert ran.returncode == 0, (ran.stdout, (output / "gpu.log").read_text())
        assert f"single: {said}\nparts: {said}\ntensorrt: " in ran.stdout
    kept = {path.name.split("-")[0]: json.loads(path.read_text()) for path in output.glob("*.json")}
    (single,) = kept["gpu_single"]["summary"]["settings"]
    assert (single["name"], single["valid"]) == ("graphs, batch 32", True)
    assert kept["gpu_parts"]["summary"]["parts"]["session"]["2"]["median"] > 0


@pytest.mark.parametrize("part", ["seeds", "holdout"])
def test_accuracy(part: str, tiny_repository: Path, tmp_path: Path) -> None:
    if part == "holdout" and (missing := missing_tools()):
        pytest.skip(f"the holdout needs {', '.join(missing)}")
    sets = ("--seeds", "7") if part == "seeds" else ("--seeds", "", "--holdout")
    options = ("--repository", str(tiny_repository), "--store", str(tmp_path / "store"), "--most", "1")
    kinds = ("equal bytes", "table, number") if part == "seeds" else ("lossless beside lossy", "film: bikes")
    result = run("accuracy", *options, *sets, "--classes", *kinds, results=tmp_path)
    classes = result[part]["classes"]
    assert set(classes) == {*kinds, "all"}
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


def test_gateway(tiny_repository: Path, tmp_path: Path) -> None:
    options = ("--rows", "1", "2", "--concurrency", "2", "--rounds", "1", "--seconds", "0.2")
    model = ("--repository", str(tiny_repository), "--model", str(TINY_CLIP))
    summary = run("gateway", *model, *options, results=tmp_path)["summary"]
    assert all(row["valid"] for row in summary.values()), summary
    assert summary.keys() >= {"grpc x1", "openai-base64 x2", "immich x1"}
    assert summary["openai x1"]["processor_ms"]["gateway"] > 0 == summary["grpc x2"]["processor_ms"].get("infinity", 0)
