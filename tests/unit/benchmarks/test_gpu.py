"""The study of a card as far as arithmetic and files go; a live test runs it with the CPU provider."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

from benchmarks.experiments.serving import peak_throughput
from benchmarks.gpu import parts, run
from benchmarks.gpu import study as gpu
from benchmarks.gpu.efficiency import GOALS, card, ladder, peak_rate, summarise
from benchmarks.gpu.meter import GpuMeter
from benchmarks.gpu.offline_bundle import copy_tree, write_manifest
from benchmarks.gpu.settings import Setting
from benchmarks.report import efficiency_breakdown, plots
from preprocess_ensemble.contract import ENCODER
from preprocess_ensemble.model_repository.config import DEFAULT_SHAPES, configs
from preprocess_ensemble.serving.tensorrt import usable_gpus

H200 = "NVIDIA H200, 580.159.04"


@pytest.mark.parametrize(
    ("name", "fp16"),
    [(H200, 989.4), ("NVIDIA H100 80GB HBM3", 989.4), ("NVIDIA H100 PCIe", 756.0), ("NVIDIA A100-SXM4-40GB", 312.0)],
)
def test_cards_are_known_by_name(name: str, fp16: float) -> None:
    known = card(name)
    assert known is not None
    assert known.fp16 == fp16
    # 8.82 GFLOP an image.
    assert peak_rate(known, "fp16") == pytest.approx(fp16 * 1e3 / 8.82)


def test_an_unknown_card_has_no_roofline() -> None:
    assert card("GeForce 256") is None
    assert card(None) is None


def session_cell(kernels_ms: float) -> dict[str, Any]:
    point = {"latency_ms": {"p50": 2 * kernels_ms}, "kernels_ms": {"p50": kernels_ms}, "rate": 16e3 / kernels_ms}
    return {
        "setting": {"precision": "fp16", "tf32": False},
        "providers": ["CUDAExecutionProvider"],
        "canary_cosine": 1.0,
        "ready_s": 3.0,
        "batches": {"1": point, "32": point},
    }


def test_the_ladder_leads_from_the_peak_to_the_service() -> None:
    results: dict[str, dict[str, Any]] = {
        "gpu_session": {"environment": {"gpu": H200}, "cells": {"a": session_cell(1.0), "b": {"error": "x"}}},
        "gpu_throughput_224": {"cells": {"1": {"rate": 8_000.0}, "start": {"ready_s": 1.0}}},
    }
    steps = ladder(results)
    assert [round(step["rate"]) for step in steps] == [112_177, 32_000, 16_000, 8_000]
    assert steps[1]["of_above"] == pytest.approx(32_000 / 112_176.9, rel=1e-4)
    assert [step["of_above"] for step in steps[2:]] == [0.5, 0.5]
    assert ladder({}) == []


def roofs_cell(gflops: float) -> dict[str, Any]:
    rate = {"best": gflops, "median": gflops, "runs": 5}
    return {"side": 8192, "product_gflops": {"fp16": rate}, "memory_gb_s": {"best": 3_000.0, "median": 3_000.0}}


def test_what_the_card_does_without_a_model_stands_below_its_data_sheet() -> None:
    results: dict[str, dict[str, Any]] = {
        "gpu_roofs": {"cells": {"cuda": roofs_cell(882_000.0)}},
        "gpu_session": {"environment": {"gpu": H200}, "cells": {"a": session_cell(1.0)}},
    }
    assert [round(step["rate"]) for step in ladder(results)] == [112_177, 100_000, 32_000, 16_000]
    summary = summarise("roofs", results["gpu_roofs"]["cells"], H200)
    assert summary["bare products, fp16, share of the data sheet's peak"] == pytest.approx(0.8914, rel=1e-3)
    assert summarise("roofs", {"cuda": {"error": "no CUDA"}}, H200) == {"cuda": "no CUDA"}


def test_bare_products_and_copies_are_measured_by_models_written_byte_by_byte() -> None:
    for operator, inputs, element in (("MatMul", "ab", peak_throughput.FLOAT16), ("Neg", "a", peak_throughput.FLOAT)):
        model = onnx.load_from_string(peak_throughput.one_node(operator, inputs, element))
        onnx.checker.check_model(model)
        assert [value.name for value in model.graph.input] == list(inputs)
    found = peak_throughput.measure("cpu", 0.0, side=16, copied_bytes=2**16)
    assert found["product_gflops"]["fp32"]["best"] >= found["product_gflops"]["fp32"]["median"] > 0
    assert found["memory_gb_s"]["best"] > 0


CPU: dict[str, Any] = {"cpu": "a CPU", "cores": 2, "gpu": None}
PROFILE: dict[str, Any] = {
    "total_ms": 200.0,
    "operators": [
        {"operator": "MatMul", "ms": 150.0},
        {"operator": "Conv", "ms": 10.0},
        {"operator": "Add", "ms": 40.0},
    ],
}


def cpu_results(**environment: Any) -> dict[str, dict[str, Any]]:
    fp32 = {"product_gflops": {"fp32": {"best": 88.2}}, "memory_gb_s": {"best": 20.0}}
    operators = {
        "environment": CPU,
        "model": "ViT-B-32/random:0@0",
        "roofs": fp32,
        "summary": {"1": PROFILE, "16": {**PROFILE, "total_ms": 2_000.0}},
    }
    served = {"images_per_second": {"session": {"median": 7.0}, "ensemble": {"median": 6.0}}}
    end_to_end = {"environment": {**CPU, **environment}, "summary": {"1": served, "16": served}}
    return {"operators": operators, "end_to_end": end_to_end}


def test_the_roofline_of_a_cpu_leads_from_bare_products_to_the_ensemble() -> None:
    shown = efficiency_breakdown.of_cpu(cpu_results())
    assert shown is not None
    assert [round(step["rate"], 2) for step in shown.steps] == [10.0, 100.0, 8.0, 7.0, 6.0]
    assert shown.steps[-1]["of_first"] == pytest.approx(0.6)
    assert shown.machine.startswith("2 cores of a CPU, no GPU used")
    assert plots.roofline(shown).startswith(b"\x89PNG")


def test_another_machine_or_a_busier_hour_has_no_place_in_a_roofline() -> None:
    slower = cpu_results()
    slower["operators"]["roofs"]["product_gflops"]["fp32"]["best"] = 60.0
    for results in (cpu_results(cores=4), slower):
        shown = efficiency_breakdown.of_cpu(results)
        assert shown is not None
        assert len(shown.steps) == 3
        assert list(shown.curves) == ["the model's nodes"]
    kept_before_roofs = {key: value for key, value in cpu_results()["operators"].items() if key != "roofs"}
    assert efficiency_breakdown.of_cpu({"operators": kept_before_roofs}) is None


def test_the_roofline_of_a_card_is_drawn_from_its_parts() -> None:
    cell = session_cell(1.0)
    cell["setting"]["graphs"] = True
    results = {"gpu_session": {"environment": {"gpu": H200}, "cells": {"a": cell, "b": {"error": "x"}}}}
    shown = efficiency_breakdown.of_gpu(results)
    assert shown is not None
    assert shown.compute == pytest.approx(peak_rate(card(H200), "fp16"))  # type: ignore[arg-type]
    assert dict(shown.curves["kernels, fp16, CUDA graphs"]) == {1: 1_000.0, 32: 32_000.0}
    measured = efficiency_breakdown.of_gpu({**results, "gpu_roofs": {"cells": {"cuda": roofs_cell(882_000.0)}}})
    assert measured is not None
    assert measured.compute == pytest.approx(100_000)
    assert plots.roofline(measured).startswith(b"\x89PNG")
    assert efficiency_breakdown.of_gpu({}) is None


def study(output: Path) -> parts.Study:
    return parts.Study(exports=output, photos=output, output=output, device="cpu", seconds=0.0, quick=True)


def test_whatever_fails_becomes_a_cell_and_what_hangs_is_not_tried_for_ever(tmp_path: Path) -> None:
    def broken() -> dict[str, Any]:
        raise KeyError("nobody thought of this")

    def hangs() -> dict[str, Any]:
        raise KeyboardInterrupt

    assert "nobody thought" in parts._cell(study(tmp_path).checkpoint("x"), "broken", broken)["error"]
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            parts._cell(study(tmp_path).checkpoint("x"), "hangs", hangs)
    assert parts._cell(study(tmp_path).checkpoint("x"), "hangs", hangs) == {"error": "begun 2 times and never ended"}
    # Another plan begins anew.
    other = replace(study(tmp_path), seconds=1.0)
    assert parts._cell(other.checkpoint("x"), "hangs", lambda: {"rate": 1.0}) == {"rate": 1.0}


def test_servers_are_not_tried_with_graphs_that_no_session_started_with(tmp_path: Path) -> None:
    assert parts.graphs_start(study(tmp_path)), "nothing is known"
    journal = study(tmp_path).checkpoint("session")
    journal.cell("fp16, graphs, batch 128", lambda: {"error": "refused"})
    assert not parts.graphs_start(study(tmp_path))
    assert not any(setting.graphs for setting in parts.throughput_settings(graphs=False))
    study(tmp_path).checkpoint("session").forget()
    assert study(tmp_path).checkpoint("session").cells == {}


def test_what_was_measured_is_kept_though_nobody_can_sum_it_up(tmp_path: Path) -> None:
    study(tmp_path).checkpoint("single").cell("odd", lambda: {"form": "unknown"})
    path = gpu.keep(study(tmp_path), "single", None)
    kept = path.read_text()
    assert '"form": "unknown"' in kept
    assert "no summary" in kept
    assert gpu.failures(study(tmp_path), "single") == ""
    study(tmp_path).checkpoint("single").cell("bad", lambda: {"error": "first\nthe reason"})
    assert gpu.failures(study(tmp_path), "single") == ", but 1 of 2 failed (the reason; see gpu.log)"


def test_a_part_that_is_cut_says_so_and_its_words_are_in_the_log(tmp_path: Path) -> None:
    # In a process of its own: what ends a part ends every child of its process, and this one has other tests' servers.
    script = f"""
from pathlib import Path
from benchmarks.gpu import study as gpu
log = Path({str(tmp_path / "log")!r})
print(gpu.run_part("session", ["--exports", {str(tmp_path)!r}], 60, log) is not None)
print(gpu.run_part("session", [], 0.0, log))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["True", "cut after 0 s"]
    assert "there is no exported model" in (tmp_path / "log").read_text()


def test_nothing_that_a_part_started_outlives_it() -> None:
    """Even what began a session of its own, as tritonserver does, and whose parent was killed."""
    stub = "import time; print(1, flush=True); time.sleep(60)"
    server = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {stub!r}], start_new_session=True).wait()"
    )
    script = f"""
import subprocess, sys
from benchmarks.harness import process_cleanup as orphans
orphans.adopt()
part = subprocess.Popen([sys.executable, "-c", {server!r}], stdout=subprocess.PIPE, start_new_session=True)
part.stdout.readline()
orphans.end_group(part.pid, within_s=5)
print(orphans.kill_children(within_s=5), orphans.kill_children(within_s=5))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["1", "0"]


@pytest.mark.skipif(usable_gpus() > 0, reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_so(tmp_path: Path) -> None:
    assert gpu.unusable("cuda") == "the driver shows no NVIDIA GPU (does nvidia-smi?)"
    provider = tmp_path / run.PROVIDER
    with pytest.raises(run.RunError, match="The kit has no onnxruntime-gpu"):
        run.check_cuda(tmp_path, run.environment_with([]))
    provider.parent.mkdir(parents=True)
    provider.touch()
    with pytest.raises(run.RunError, match=r"shows no NVIDIA GPU here.*--device cpu"):
        run.check_cuda(tmp_path, run.environment_with([]))


def test_what_a_cuda_provider_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("onnxruntime_pybind11_state*.so")
    monkeypatch.setattr(run, "OPENED_LATER", ("libm.so.6", "libnobody.so.9"))
    assert run.missing_libraries(library, run.environment_with([])) == ["libnobody.so.9"]


def test_a_python_that_cannot_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(run.RunError, match=r"cannot be started.*--export-with"):
        run.check_exporter(str(tmp_path / "python"))
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(run.RunError, match=r"has no torch, torchvision, .*--without-models"):
        run.check_exporter(str(bare))


def test_what_failed_stays_in_the_summary_with_its_reason() -> None:
    cells = {"good": session_cell(1.0), "bad": {"error": "RuntimeError: first\nthe reason"}}
    summary = summarise("session", cells, H200)
    assert summary["bad"] == "the reason"
    assert summary["good"]["kernels, share of peak"] == pytest.approx(32_000 / 112_176.9, rel=1e-4)
    assert summarise("tensorrt", {"tensorrt": {"unproved": "no card"}}, None) == {"tensorrt": "no card"}


def test_a_goal_is_judged_by_the_best_rate() -> None:
    gpu = {"images_per_joule": 40.0, "samples": [{"s": 0.2, "watts": 500.0, "gpu_percent": 90, "memory_mb": 4e3}]}
    point = {"rate": GOALS["throughput_224"], "latency_ms": {"p50": 9.0}, "server": {}, "gpu": gpu}
    cells: dict[str, dict[str, Any]] = {"start": {"cosine": 0.99995}, "a": point, "b": {**point, "rate": 1.0}}
    summary = summarise("throughput_224", cells, H200)
    assert summary["goal reached"]
    assert (summary["with"], summary["least cosine"], summary["watts, median"]) == ("a", 0.99995, 500.0)


def test_a_setting_that_gives_other_vectors_reaches_no_goal() -> None:
    point = {"rate": 10.0, "latency_ms": {"p50": 9.0}, "server": {}, "gpu": None, "cosine": 0.99995}
    cells: dict[str, dict[str, Any]] = {"good": point, "wrong": {**point, "rate": 1e6, "cosine": 0.5}}
    summary = summarise("throughput_224", cells, H200)
    assert (summary["with"], summary["goal reached"], summary["wrong"]) == ("good", False, "other vectors")
    assert [step["rate"] for step in ladder({"gpu_throughput_224": {"cells": cells}})] == [10.0]
    assert summarise("throughput_224", {"wrong": cells["wrong"]}, H200) == {"wrong": "other vectors"}


def test_settings_are_written_as_an_operator_would() -> None:
    setting = Setting(precision="fp32", tf32=True, graphs=True, max_batch_size=16, encoders=2, delay_us=500)
    assert setting.name == "tf32, graphs, batch 16, 2 x encoder, delay 500 us"
    config = configs(DEFAULT_SHAPES)[ENCODER]
    setting.change_encoder(config, "cuda")
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert dict(accelerator.parameters) == {"use_tf32": "1", "enable_cuda_graph": "1"}
    assert (config.instance_group[0].count, config.instance_group[0].kind) == (2, 1)
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert [warmup.batch_size for warmup in config.model_warmup] == [1, 16]
    on_cpu = configs(DEFAULT_SHAPES)[ENCODER]
    setting.change_encoder(on_cpu, "cpu")
    assert on_cpu.parameters["batch_buckets"].string_value == "1,2,4,8,16"
    assert not on_cpu.optimization.execution_accelerators.gpu_execution_accelerator


def test_without_a_card_the_meter_is_silent() -> None:
    with GpuMeter(index=99) as meter:
        pass
    assert meter.report(10) is None


def test_a_kit_that_did_not_arrive_whole_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    file = tmp_path / "wheels" / "onnxruntime_gpu-1.31.1-cp39-cp39-manylinux.whl"
    file.write_bytes(b"wheel")
    assert write_manifest(tmp_path) == 5
    run.check_files(tmp_path)
    with pytest.raises(run.RunError, match=r"The kit is for Python 3\.9 and this is 3\."):
        run.check_python(tmp_path / "wheels")
    file.write_bytes(b"whale")
    with pytest.raises(run.RunError, match="damaged on its way"):
        run.check_files(tmp_path)
    file.write_bytes(b"whe")
    with pytest.raises(run.RunError, match="missing or cut short"):
        run.check_files(tmp_path)


def test_the_tree_of_a_kit_runs_where_it_lies(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    assert (tmp_path / "COMMIT").read_text().strip()
    assert not (tmp_path / "benchmarks" / "results").exists()
    command = [sys.executable, "-m", "benchmarks.gpu.study", "--exports", str(tmp_path / "none")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no exported model" in done.stderr
