"""The study of a card as far as arithmetic and files go; a live test runs it with the CPU provider."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import gpu_run
from benchmarks.gpu_kit import copy_tree, write_manifest
from benchmarks.gpu_meter import GpuMeter
from benchmarks.gpu_roofline import GOALS, card, ladder, peak_rate, summarise
from benchmarks.gpu_settings import Setting
from preprocess_ensemble.repository import DEFAULT_SHAPES, ENCODER, configs

if TYPE_CHECKING:
    from pathlib import Path

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
    gpu_run.check_files(tmp_path)
    with pytest.raises(gpu_run.RunError, match=r"The kit is for Python 3\.9 and this is 3\."):
        gpu_run.check_python(tmp_path / "wheels")
    file.write_bytes(b"whale")
    with pytest.raises(gpu_run.RunError, match="damaged on its way"):
        gpu_run.check_files(tmp_path)
    file.write_bytes(b"whe")
    with pytest.raises(gpu_run.RunError, match="missing or cut short"):
        gpu_run.check_files(tmp_path)


def test_the_tree_of_a_kit_runs_where_it_lies(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    assert (tmp_path / "COMMIT").read_text().strip()
    assert not (tmp_path / "benchmarks" / "results").exists()
    command = [sys.executable, "-m", "benchmarks.gpu", "--exports", str(tmp_path / "none")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no exported model" in done.stderr
