"""``python -m benchmarks gpu`` and its offline bundle: files and processes. A live test runs the experiments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

from benchmarks.experiments.serving import peak_throughput
from benchmarks.fixtures.server_setting import ServerSetting
from benchmarks.gpu import command, run
from benchmarks.gpu.offline_bundle import copy_tree, requirements, write_checksums
from benchmarks.gpu.parts import PARTS, Plan
from benchmarks.harness.meters import GpuMeter
from preprocess_ensemble.contract import ENCODER
from preprocess_ensemble.model_repository.config import DEFAULT_SHAPES, configs
from preprocess_ensemble.serving.tensorrt import usable_gpus
from tests.paths import ROOT


def test_bare_products_and_copies_are_measured_by_models_of_one_node(tmp_path: Path) -> None:
    for operator, inputs, element in (("MatMul", "ab", peak_throughput.FLOAT16), ("Neg", "a", peak_throughput.FLOAT)):
        model = onnx.load_from_string(peak_throughput.one_node(operator, inputs, element))
        onnx.checker.check_model(model)
        assert [value.name for value in model.graph.input] == list(inputs)
    found = peak_throughput.peaks(tmp_path, "cpu", 0.0, side=16, copied_bytes=2**16)
    assert found["product_gflops"]["fp32"]["best"] >= found["product_gflops"]["fp32"]["median"] > 0
    assert found["memory_gb_s"]["best"] > 0


FAKE = """
import json, pathlib, sys, time
words, _, results = sys.argv[1:4]
print("said:", words, flush=True)
if words == "hangs":
    time.sleep(600)
if words == "breaks":
    sys.exit("first\\nthe reason")
if words == "continues":
    checkpoint = pathlib.Path(results, "fake.jsonl")
    count = len(checkpoint.read_text().splitlines()) if checkpoint.exists() else 0
    with checkpoint.open("a") as file:
        print(json.dumps({"cell": f"cell {count}", "result": {"rate": count}}), file=file)
    if count < 3:
        time.sleep(600)
pathlib.Path(results, "fake.json").write_text(json.dumps({"summary": {"words": words}}))
"""
"""Stands in for an experiment: its first argument says how it behaves, and the third is the folder for its result."""


def run_part(tmp_path: Path, *words: str, times: int = 1, cannot: str | None = None) -> dict[str, Any]:
    """Run a part of such experiments in a new process, because it kills all of its children; return what it kept."""
    (tmp_path / "fake.py").write_text(FAKE)
    seconds = 3.0 if {"hangs", "continues"} & set(words) else 600.0
    script = f"""
import time
from pathlib import Path
from benchmarks.gpu.command import PartRunner
from benchmarks.gpu.parts import Part, Plan, Run
path = Path({str(tmp_path)!r})
plan = Plan(exports=path, photos=path, output=path, device="cpu", seconds=0.0, quick=True)
runs = [Run(label=words, module="fake", options=(words,), cannot={cannot!r}) for words in {words!r}]
runner = PartRunner(name="x", part=Part(runs=lambda plan: runs, limit_s=600), plan=plan, least_s=0.0)
for _ in range({times}):
    runner.measure(time.monotonic() + {seconds})
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, cwd=tmp_path, capture_output=True)
    kept: dict[str, Any] = json.loads((tmp_path / "gpu_x.json").read_text())
    return kept


def test_a_run_that_fails_is_a_finding_and_the_next_one_runs(tmp_path: Path) -> None:
    kept = run_part(tmp_path, "breaks", "works")
    assert kept["complete"]
    assert kept["cells"]["works"] == {"words": "works"}
    assert kept["cells"]["breaks"]["error"].endswith("the reason\n")
    assert "said: works" in (tmp_path / "gpu.log").read_text()


def test_a_run_that_is_impossible_here_says_why(tmp_path: Path) -> None:
    assert run_part(tmp_path, "works", cannot="no card")["cells"] == {"works": {"unproved": "no card"}}


def test_a_run_that_hangs_is_cut_and_not_tried_a_third_time(tmp_path: Path) -> None:
    kept = run_part(tmp_path, "hangs")
    assert not kept["complete"]
    assert kept["cut"]["hangs"]["cut"].startswith("cut after")
    kept = run_part(tmp_path, "hangs")
    assert kept["complete"]
    assert "2 times in a row without a new measurement" in kept["cells"]["hangs"]["error"]


def test_a_run_that_is_cut_keeps_what_it_measured_and_continues(tmp_path: Path) -> None:
    """However often it is cut, because it gets further each time."""
    kept = run_part(tmp_path, "continues", times=3)
    assert kept["cut"]["continues"]["cells"] == {f"cell {number}": {"rate": number} for number in range(3)}
    kept = run_part(tmp_path, "continues")
    assert kept["cells"]["continues"] == {"words": "continues"}


def test_a_limit_cuts_what_a_command_prints_nothing_about(tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from benchmarks.gpu.command import execute
print(execute([sys.executable, "-c", "import time; time.sleep(60)"], 0.5, Path({str(tmp_path / "log")!r})))
print(execute([sys.executable, "-c", "print(1)"], 60, Path({str(tmp_path / "log")!r})))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.splitlines() == ["cut after 0 s", "None"]


def plan(output: Path) -> Plan:
    return Plan(exports=output, photos=output, output=output, device="cuda", seconds=4.0, quick=False)


def test_every_experiment_knows_the_options_that_it_is_given(tmp_path: Path) -> None:
    """Otherwise a wrong option would be found only on the machine with the card."""
    runs = {name: part.runs(plan(tmp_path)) for name, part in PARTS.items()}
    assert all(len({one.label for one in several}) == len(several) for several in runs.values())
    first = {name: (several[0].module, [*several[0].options, "--checkpoints", "x"]) for name, several in runs.items()}
    script = f"""
import importlib, sys
for name, (module, options) in {first!r}.items():
    sys.argv = [name, *options, "--results", "x", "--no-such-option"]
    try:
        importlib.import_module(f"{{module}}.__main__").main()
    except SystemExit:
        pass
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    refused = [line for line in ran.stderr.splitlines() if ": error: " in line]
    assert len(refused) == len(PARTS)
    assert all(line.endswith(": error: unrecognized arguments: --no-such-option") for line in refused), refused


def test_all_parts_fit_into_25_minutes() -> None:
    assert sum(part.limit_s for part in PARTS.values()) <= 25 * 60


def test_servers_are_not_tried_with_graphs_that_no_session_started_with(tmp_path: Path) -> None:
    def labels() -> str:
        return " ".join(one.label for one in PARTS["throughput_224"].runs(plan(tmp_path)))

    assert "graphs" in labels(), "nothing is known"
    for cells, expected in (
        ({"fp16, graphs": {"error": "refused"}, "fp32": {}}, False),
        ({"fp16, graphs": {"error": "refused"}, "tf32, graphs": {}}, True),
    ):
        (tmp_path / "gpu_session.json").write_text(json.dumps({"cells": cells}))
        assert ("graphs" in labels()) == expected


def test_nothing_that_a_run_started_outlives_it() -> None:
    """Not even a process with its own session, like tritonserver, whose parent was killed."""
    stub = "import time; print(1, flush=True); time.sleep(60)"
    server = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {stub!r}], start_new_session=True).wait()"
    )
    script = f"""
import subprocess, sys
from benchmarks.harness import process_cleanup
process_cleanup.adopt()
part = subprocess.Popen([sys.executable, "-c", {server!r}], stdout=subprocess.PIPE, start_new_session=True)
part.stdout.readline()
print(process_cleanup.end_group(part.pid, within_s=1), process_cleanup.end_group(part.pid, within_s=1))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["1", "0"]


@pytest.mark.skipif(usable_gpus() > 0, reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_so(tmp_path: Path) -> None:
    assert command.unusable("cuda") == "the driver shows no NVIDIA GPU (does nvidia-smi?)"
    provider = tmp_path / run.PROVIDER
    with pytest.raises(run.RunError, match="The bundle has no onnxruntime-gpu"):
        run.check_cuda(sys.executable, tmp_path, run.environment_with([]))
    provider.parent.mkdir(parents=True)
    provider.touch()
    with pytest.raises(run.RunError, match=r"shows no NVIDIA GPU here.*--device cpu"):
        run.check_cuda(sys.executable, tmp_path, run.environment_with([]))


def test_missing_libraries_of_a_cuda_provider_are_named() -> None:
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("onnxruntime_pybind11_state*.so")
    opened_later = ("libm.so.6", "libnosuch.so.9")
    assert run.missing_libraries(library, run.environment_with([]), opened_later) == ["libnosuch.so.9"]


def test_a_python_that_cannot_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(run.RunError, match=r"cannot be started.*--export-with"):
        run.check_exporter(str(tmp_path / "python"))
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(run.RunError, match=r"has no torch, torchvision, .*--without-models"):
        run.check_exporter(str(bare))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_setting_is_written_as_an_operator_would_write_it(device: str) -> None:
    setting = ServerSetting(device=device, tf32=True, graphs=True, max_batch_size=16, encoders=2, delay_us=500)
    assert setting.name == "tf32, graphs, batch 16, 2 x encoder, delay 500 us"
    config = configs(DEFAULT_SHAPES)[ENCODER]
    setting.change_encoder(config)
    assert (config.instance_group[0].count, config.instance_group[0].kind) == (2, 1 if device == "cuda" else 2)
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert [warmup.batch_size for warmup in config.model_warmup] == [1, 16]
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    if device == "cuda":
        assert dict(accelerators[0].parameters) == {"use_tf32": "1", "enable_cuda_graph": "1"}
    else:
        assert not accelerators
        assert config.parameters["batch_buckets"].string_value == "1,2,4,8,16"


def test_without_a_setting_the_repository_itself_is_served(tmp_path: Path) -> None:
    with ServerSetting().applied_to(tmp_path) as served:
        assert served == tmp_path


def test_without_a_card_the_meter_is_silent() -> None:
    with GpuMeter.running(index=99) as meter:
        pass
    assert meter.report(10) is None


def test_a_bundle_that_did_not_arrive_whole_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    file = tmp_path / "wheels" / "onnxruntime_gpu-1.31.1-cp39-cp39-manylinux.whl"
    file.write_bytes(b"wheel")
    assert write_checksums(tmp_path) == 5
    run.check_files(tmp_path)
    with pytest.raises(run.RunError, match=r"The bundle is for Python 3\.9 and this is 3\."):
        run.check_python(tmp_path / "wheels")
    file.write_bytes(b"whale")
    with pytest.raises(run.RunError, match="missing or damaged"):
        run.check_files(tmp_path)
    file.unlink()
    with pytest.raises(run.RunError, match="missing or damaged"):
        run.check_files(tmp_path)


def test_the_tree_of_a_bundle_runs_in_place(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    assert (tmp_path / "COMMIT").read_text().strip()
    assert not (tmp_path / "benchmarks" / "results").exists()
    asked = [sys.executable, "-m", "benchmarks.gpu.command", "--exports", str(tmp_path / "none")]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no exported model" in done.stderr


def test_a_bundle_brings_what_the_package_and_its_server_require() -> None:
    names = [one.partition(">")[0] for one in requirements()]
    assert {"anyio", "grpcio", "tritonclient[grpc]", "psutil", "nvidia-ml-py", "rich"} <= set(names)
    assert not {"nvidia-pytriton", "PyTurboJPEG"} & set(names), "these come without their dependencies"
    assert "numpy>=1.26,<2" in requirements()
