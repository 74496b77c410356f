"""A slice of each experiment that needs no other environment, with the small model, so that none rots."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from benchmarks.__main__ import MODULES, WITH_TABLES, print_tables
from benchmarks.experiments.serving.soak import mixed_calls, soak
from benchmarks.fixtures.copies.holdout_tools import missing_tools
from benchmarks.fixtures.sample_photos import write_originals
from benchmarks.fixtures.server import TINY_CLIP
from benchmarks.report.command import newest, part_of
from tests.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.fixtures.server import Server

    Measure = Callable[..., dict[str, Any]]

SHORT: Final = ("--rounds", "1", "--seconds", "0.2")


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Runs an experiment in a folder of its own and returns what it kept."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *options: str, kept: str | None = None) -> dict[str, Any]:
        module = importlib.import_module(f"benchmarks.{MODULES[name]}")
        show = print_tables if name in WITH_TABLES else None
        assert module.measure([*options, "--results", str(tmp_path / "results")], show) == 0
        (path,) = (tmp_path / "results").glob(f"{kept or name}-*.json")
        result: dict[str, Any] = json.loads(path.read_text())
        assert result["environment"]["cores"] >= 1
        return result

    return run


def command(name: str, *options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run what a user types."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "benchmarks", name, *options]
    return subprocess.run(line, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


def test_three_way(tiny_repository: Path, measured: Measure) -> None:
    # The plain service has tests of its own.
    systems = ("pytorch", "client", "int8")
    model = ("--repository", str(tiny_repository), "--model", str(TINY_CLIP))
    found = measured("three_way", *model, "--systems", *systems, "--concurrency", "2", "--offered", "0.5", *SHORT)
    summary = found["summary"]["systems"]
    assert all(row["valid"] for row in summary.values()), summary
    assert {row["at"]["2"]["images_per_second"]["median"] > 0 for row in summary.values()} == {True}
    assert summary["int8"]["cosine"] < summary["pytorch"]["cosine"]
    assert summary["client"]["offered"]["0.5"]["p99"] > 0


def test_text(tiny_pair_repository: Path, measured: Measure) -> None:
    model = ("--repository", str(tiny_pair_repository), "--model", str(TINY_CLIP))
    options = ("--systems", "client-text", "--captions", "8", "--concurrency", "2", *SHORT)
    summary = measured("text", *model, *options)["summary"]
    for system in summary.values():
        assert system["valid"]
        assert system["odd"] > 0.999999
        assert system["at"]["2"]["images_per_second"]["median"] > 0


def test_gateway(tiny_repository: Path, measured: Measure) -> None:
    model = ("--repository", str(tiny_repository), "--model", str(TINY_CLIP))
    summary = measured("gateway", *model, "--rows", "1", "2", "--concurrency", "2", *SHORT)["summary"]
    assert all(row["valid"] for row in summary.values()), summary
    assert set(summary["openai-base64"]["at"]) == {"1", "2"} > set(summary["immich"]["at"])
    assert summary["openai"]["at"]["1"]["processor_ms"]["gateway"] > 0


def test_trained(tmp_path: Path, measured: Measure) -> None:
    for name in ("one", "two"):
        (tmp_path / "photos" / name).mkdir(parents=True)
    write_originals(tmp_path / "photos" / "one")
    for photo in sorted((tmp_path / "photos" / "one").iterdir())[::2]:
        photo.rename(tmp_path / "photos" / "two" / photo.name)
    options = ("--pretrained", "random:0", "--photos", str(tmp_path / "photos"), "--most", "8")
    summary = measured("trained", "--model", str(TINY_CLIP), *options)["summary"]
    assert summary["images, sent whole"]["least"] > 0.999
    assert summary["texts"]["least"] > 0.999999
    assert summary["zero-shot"]["labels"] == 2
    assert summary["nothing clearly matches: nonsense"]["queries"] == 50


def test_ensemble(tiny_repository: Path, tmp_path: Path, measured: Measure) -> None:
    # With a tenth of a second to wait, requests that come together share a run.
    options = ("--delay-us", "0", "100000", "--concurrency", "1", "4", "--name", "delays")
    model = ("--repository", str(tiny_repository), "--model", str(TINY_CLIP))
    found = measured("ensemble", *model, *options, "--rounds", "1", "--seconds", "0.5", kept="delays")
    summary = found["summary"]
    at_once, waiting = summary["settings"]
    assert (at_once["valid"], waiting["name"]) == (True, "delay 100000 us")
    assert waiting["at"]["1"]["share_batched"] == 0 < waiting["at"]["4"]["share_batched"]
    for point in at_once["at"].values():
        assert 0 < point["server_ms"]["clip_encoder"]["compute_infer"] < point["latency_ms"]["p99"]
    assert {(part, *sizes) for part, sizes in summary["ratios"].items()} == {
        ("session", "1", "4"),
        ("pytorch", "1", "4"),
    }
    kept = newest((tmp_path / "results").iterdir())["delays"]
    assert "| 4 |" in part_of("ensemble", {"ensemble": kept})
    assert "x, 100 ms |" in part_of("queue_delay", {"queue_delay": kept})
    on_a_card = {**kept, "experiment": "gpu_delays", "plan": {**kept["plan"], "device": "cuda"}}
    assert "| bare session, batch 4 |" in part_of("gpu", {"gpu_delays": on_a_card})


def test_transfer(tiny_repository: Path, measured: Measure) -> None:
    found = measured("transfer", "--repository", str(tiny_repository), "--most", "2")
    sizes = {way: one["mean_kb"] for way, one in found["preparation_2_megapixels"].items()}
    assert sizes["original"] > sizes["thumbnail"] > sizes["thumbnail-small"]
    assert found["settings"]["PNG"]["least_cosine"] > found["settings"]["JPEG q75 4:2:0"]["least_cosine"]


def test_towers(tiny_pair_repository: Path, measured: Measure) -> None:
    found = measured("towers", str(tiny_pair_repository), "--batch", "2", "--rounds", "1")
    ((model, milliseconds),) = found["milliseconds"].items()
    assert model.startswith("tiny_clip/")
    assert milliseconds["image"] > milliseconds["text"] > 0


def test_preprocess(measured: Measure) -> None:
    (found,) = measured("preprocess", "--sizes", "224x224", "--seconds", "0.1")["sizes"].values()
    assert found["psnr_db"]["exact path"] == 99
    assert found["one_core_ms"]["open_clip"] > 0


def test_fidelity(tiny_repository: Path, measured: Measure) -> None:
    options = ("--sizes", "1.2 MP", "--kinds", "text", "texture")
    found = measured("fidelity", "--repository", str(tiny_repository), *options)
    assert {row["kind"] for row in found["by_class"]} == {"text"}
    assert all(row["psnr_db_min"] > 20 for row in (*found["by_class"], *found["stress"]))


def test_review(measured: Measure) -> None:
    (found,) = measured("review", "--groups", "5")["review"]
    assert [len(found[name]) for name in ("pages_ms", "next_ms", "decision_ms")] == [5, 5, 5]
    assert min(*found["next_ms"], *found["rules_s"].values()) > 0


def test_search(measured: Measure) -> None:
    (found,) = measured("search", "--photos", "500", "--rounds", "1")["sizes"].values()
    assert found["valid"]
    assert min(one["median"] for one in found["ms"].values()) > 0


def test_search_scores(measured: Measure) -> None:
    cells = measured("search_scores", "--queries", "2")["cells"]
    assert [one["unclear"] for one in cells if one["matches"] == 200 and one["lift"] == 6] == [0]


@pytest.mark.timeout(300)
def test_scale(measured: Measure) -> None:
    found = measured("scale", "--vectors", "400", "--files", "60")
    assert {name for name in found["searches"] if not name.startswith("10 of")} == {
        "400 vectors, one machine",
        "400 vectors, Ray",
    }
    assert all(one["recall"] == 1 for one in found["searches"].values() if "recall" in one)
    assert set(found["embedding"]) == {"one machine", "Ray"}


def test_first_scan(tiny_repository: Path, measured: Measure) -> None:
    options = ("--files", "11", "--sizes", "256 px", "--rounds", "1")
    found = measured("first_scan", "--repository", str(tiny_repository), *options)["searches"]
    assert set(found) == {"256 px, local:", "256 px, unaligned", "256 px, clip-serve"}
    assert all((one["photos"], one["groups"]) == (11, 1) for (one,) in found.values())


@pytest.mark.parametrize("part", ["seeds", "holdout"])
def test_accuracy(part: str, tiny_repository: Path, measured: Measure) -> None:
    if part == "holdout" and (missing := missing_tools()):
        pytest.skip(f"the holdout needs {', '.join(missing)}")
    sets = ("--seeds", "7") if part == "seeds" else ("--seeds", "", "--holdout")
    kinds = ("equal bytes", "table, number") if part == "seeds" else ("lossless beside lossy", "film: bikes")
    options = ("--store", "store", "--most", "1", "--classes", *kinds)
    result = measured("accuracy", "--repository", str(tiny_repository), *options, *sets)
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
    limits = {"requests": 40, "seconds": 60, "concurrency": 4}
    counts, read = await soak(server, calls[:40], **limits, transfer="original")
    assert counts["requests"] == 40
    assert counts["cancelled"] > 0
    assert "tiny_clip" in counts["model"]
    assert set(read["restarts"]) == {0}
    processes = ("client", "clip-serve", "tritonserver", "clip_preprocess", "clip_encoder")
    assert all(min(read[f"{name}, memory in MiB"]) > 10 and min(read[f"{name}, open files"]) > 2 for name in processes)
    assert min(read["shared-memory regions"]) > 0


def test_a_soak_that_is_too_short_fails(tiny_repository: Path, measured: Measure) -> None:
    with pytest.raises(SystemExit, match="too few to tell whether anything grows"):
        measured("soak", "--repository", str(tiny_repository), "--requests", "4")


def test_gpu_with_the_cpu_provider(tiny_repository: Path, tmp_path: Path) -> None:
    """Without a card: everything except the provider. The second command finds that all is done."""
    exports, photos, output = tmp_path / "exports", tmp_path / "photos", tmp_path / "out"
    exports.mkdir()
    for precision in ("fp32", "fp16"):
        (exports / precision).symlink_to(tiny_repository)
    folders = (f"--exports={exports}", f"--photos={photos}", f"--output={output}")
    for said in ("complete", "complete already"):
        ran = command("gpu", *folders, "--device=cpu", "--quick", "--runs", "single", "parts", "tensorrt", cwd=tmp_path)
        assert ran.returncode == 0, (ran.stdout, (output / "gpu.log").read_text())
        assert f"single: {said}\nparts: {said}\ntensorrt: " in ran.stdout
    kept = {path.name.split("-")[0]: json.loads(path.read_text()) for path in output.glob("*.json")}
    (single,) = kept["gpu_single"]["summary"]["settings"]
    assert (single["name"], single["valid"]) == ("graphs, batch 32", True)
    assert kept["gpu_parts"]["summary"]["parts"]["session"]["2"]["median"] > 0


def test_the_demo_finds_the_copies_of_the_sample_photos(tiny_repository: Path, tmp_path: Path) -> None:
    (tmp_path / "triton_models").symlink_to(tiny_repository)
    ran = command("demo", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert len(json.loads((tmp_path / "demo" / "groups.json").read_text())["groups"]) >= 5
    assert (tmp_path / "demo" / "report.html").exists()
