"""A slice of each experiment that needs no other environment, with the small model, so that none rots."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.__main__ import MODULES, WITH_TABLES, print_tables
from benchmarks.fixtures.sample_photos import write_originals
from benchmarks.fixtures.server import TINY_CLIP
from benchmarks.report.command import newest, part_of
from tests.paths import ROOT

Measure = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.long

SHORT: Final = "--rounds 1 --seconds 0.2 --concurrency 2"
IMAGES: Final = f"--repository {{images}} --model {TINY_CLIP}"
TEXTS: Final = f"--repository {{pairs}} --model {TINY_CLIP}"


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


def figures(found: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each single figure in a result, with its name."""
    if isinstance(found, dict | list):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from figures(value, f"{name} {key}".strip())
    else:
        yield name, found


SLICES: Final = {
    # The plain service has tests of its own, and so have exports in int8.
    "three_way": (f"{IMAGES} --systems pytorch client --offered 0.5 {SHORT}", "client (at|offered) .*(median|p99)"),
    "text": (
        f"{TEXTS} --text --captions 8 --systems pytorch-text client-text {SHORT}",
        "client-text (odd|at .*median)",
    ),
    "gateway": (
        f"{IMAGES} --systems grpc openai-base64 form --rows 1 2 {SHORT}",
        "(openai-base64|form) .*processor_ms gateway",
    ),
    "serialisation": (
        f"--repository {{images}} {SHORT}",
        "forms FP32, JSON over HTTP bytes|(client-side|session) .*median",
    ),
    "client_cost": ("--rounds 1 --images 256", "(single|lists|stream) median over bare"),
    "operators": ("--repository {images} --batch 2 --runs 1", "operators MatMul share"),
    "scaling": (f"--repository {{images}} --servers 1 {SHORT}", "1 efficiency"),
    "transfer": ("--repository {images} --most 2", "(thumbnail|original) mean_kb"),
    "runtimes": ("--repository {pairs} --rounds 1 --seconds 0.1", "(images|texts) (rates .*|share)"),
    "towers": ("{pairs} --batch 2 --rounds 1", "milliseconds .* (image|text)"),
    "preprocess": ("--sizes 224x224 --seconds 0.1", "one_core_ms open_clip"),
    "fidelity": ("--repository {images} --sizes '1.2 MP' --kinds text texture", "(by_class|stress) .*psnr_db_min"),
    "search": ("--photos 500 --rounds 1", "sizes 500 ms .* median"),
    "first_scan": ("--repository {images} --files 11 --rounds 1 --sizes '256 px'", "searches 256 px, .* groups"),
    "scale": ("--vectors 400 --files 60 --engines Ray", "searches .* recall|embedding .* worker_peak_mb"),
}
"""Name of the result -> options of the experiment, and the figures of its result that must be above 0."""


@pytest.mark.parametrize("name", SLICES)
def test_a_slice_of_an_experiment(
    name: str, tiny_repository: Path, tiny_pair_repository: Path, measured: Measure
) -> None:
    options, above_zero = SLICES[name]
    words = shlex.split(options.format(images=tiny_repository, pairs=tiny_pair_repository))
    found = dict(figures(measured("three_way" if name == "text" else name, *words, kept=name)))
    shown = [value for key, value in found.items() if re.search(f"({above_zero})$", key)]
    assert shown, found
    assert min(shown) > 0
    assert {value for key, value in found.items() if key.endswith(" valid")} <= {True}


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


def test_ensemble(tiny_repository: Path, tmp_path: Path, measured: Measure) -> None:
    # With a tenth of a second to wait, requests that come together share a run.
    options = f"{IMAGES} --delay-us 100000 --concurrency 1 4 --name delays --rounds 1 --seconds 0.5"
    summary = measured("ensemble", *options.format(images=tiny_repository).split(), kept="delays")["summary"]
    (served,) = summary["settings"]
    assert (served["valid"], served["name"]) == (True, "delay 100000 us")
    assert served["at"]["1"]["share_batched"] == 0 < served["at"]["4"]["share_batched"]
    for point in served["at"].values():
        assert 0 < point["server_ms"]["clip_encoder"]["compute_infer"] < point["latency_ms"]["p99"]
    assert [*summary["ratios"]] == ["session", "pytorch"]
    kept = newest((tmp_path / "results").iterdir())["delays"]
    assert "| 4 |" in part_of("ensemble", {"ensemble": kept})
    assert "x, 100 ms |" in part_of("queue_delay", {"queue_delay": kept})


def test_accuracy(measured: Measure) -> None:
    kinds = ("copy: Pillow, thumbnail", "equal: bytes", "text: other colour")
    result = measured("accuracy", "--most", "1", "--seeds", "7", "--classes", *kinds)
    assert {*result["classes"]} == {*kinds, "all", "all: copy", "all: equal", "all: text"}
    assert result["classes"]["equal: bytes"]["moved_default"] == 1
    assert result["classes"]["all"]["harmful_default"] == 0
    assert result["classes"]["all"]["moved_hash"] > 0


def test_faults_lose_nothing(tiny_repository: Path, measured: Measure) -> None:
    # Others break files, processes and shared memory in other ways; the exit code would tell what was wrong or lost.
    faults = ("models swapped", "disk full, embedding store")
    options = ("--repository", str(tiny_repository), "--seconds", "3", "--faults", *faults)
    swapped, full = measured("faults", *options)["outcomes"]
    assert swapped["right"] == swapped["offered"] > 0
    assert "told to serve" in swapped["remark"]
    assert full["remark"].startswith("exit code 1: clip-client: ")


def test_a_soak_that_is_too_short_fails(tiny_repository: Path, measured: Measure) -> None:
    with pytest.raises(SystemExit, match=r"40 requests .* too few to tell whether anything grows"):
        measured("soak", "--repository", str(tiny_repository), "--requests", "40", "--mixed")


def test_the_kit_for_a_card_with_the_cpu_provider(tmp_path: Path) -> None:
    """The run uses everything except the CUDA provider. The second command finds that all is done."""
    gathered = command("gpu_kit", "--output=kit", "--wheels", "--parts=1", cwd=tmp_path)
    assert gathered.returncode == 0, gathered.stderr
    output = tmp_path / "out"
    options = ("--device=cpu", "--quick", f"--model={TINY_CLIP}", f"--output={output}", "--runs")
    runs = ("vectors", "load", "tensorrt", "single")
    for said in ("complete", "complete already"):
        line = [sys.executable, str(tmp_path / "kit" / "run.py"), *options, *runs]
        ran = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert ran.returncode == 0, (ran.stdout, ran.stderr, (output / "gpu.log").read_text())
        states = dict(line.split(": ", 1) for line in ran.stdout.splitlines()[-4:])
        assert [states[name] for name in runs if name != "tensorrt"] == [said] * 3
    results = newest(output.glob("gpu_*.json"))
    cells = results["gpu_load"]["cells"]
    assert cells["local, health"]["ok"]
    assert {name for name in cells if "rate" in cells[name]} == {"session, batch 2", "local, callers 2"}
    texts = results["gpu_vectors"]["cells"]["vectors, text"]["cosine"]
    assert list(texts) == ["1", "2", "31", "32", "beside failed rows"]
    assert all(one["summary"]["valid"] for name, one in results.items() if name != "gpu_single")
    assert [one["valid"] for one in results["gpu_single"]["summary"]["settings"]] == [True]
    on_a_card = {name: {**one, "plan": {**one["plan"], "device": "cuda"}} for name, one in results.items()}
    assert "| load, fp16 | session, batch 2 |" in part_of("gpu", on_a_card)


def test_the_demo_finds_the_copies_of_the_sample_photos(tiny_repository: Path, tmp_path: Path) -> None:
    (tmp_path / "triton_models").symlink_to(tiny_repository)
    ran = command("demo", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert len(json.loads((tmp_path / "demo" / "groups.json").read_text())["groups"]) >= 5
    assert (tmp_path / "demo" / "report.html").exists()
