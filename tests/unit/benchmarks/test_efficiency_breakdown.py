"""The report's efficiency breakdown and its rows about a card, from results made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.experiments.serving.operators import FLOP_PER_IMAGE
from benchmarks.report import efficiency_breakdown
from benchmarks.report.efficiency_breakdown import card
from benchmarks.report.gpu_rows import RATE_GOALS, rows_of

H200 = "NVIDIA H200, 580.159.04"


@pytest.mark.parametrize(
    ("name", "fp16"),
    [(H200, 989.4), ("NVIDIA H100 80GB HBM3", 989.4), ("NVIDIA H100 PCIe", 756.0), ("NVIDIA A100-SXM4-40GB", 312.0)],
)
def test_a_card_is_found_by_its_name(name: str, fp16: float) -> None:
    known = card(name)
    assert known is not None
    assert known.fp16 == fp16


def test_an_unknown_card_has_no_peaks() -> None:
    assert card("GeForce 256") is None
    assert card(None) is None


def on_card(part: str, **cells: Any) -> dict[str, Any]:
    return {"experiment": f"gpu_{part}", "environment": {"gpu": H200}, "cells": cells}


def session_cell(kernels_ms: float, *, graphs: bool = False) -> dict[str, Any]:
    point = {"latency_ms": {"p50": 2 * kernels_ms}, "kernels_ms": {"p50": kernels_ms}, "rate": 16e3 / kernels_ms}
    return {
        "setting": {"tf32": False, "graphs": graphs},
        "precision": "fp16",
        "providers": ["CUDAExecutionProvider"],
        "canary_cosine": 1.0,
        "ready_s": 3.0,
        "batches": {"1": point, "32": point},
    }


def served_cell(rate: float, *, cosine: float = 1.0, graphs: bool = False, encoder_ms: float = 2.0) -> dict[str, Any]:
    point = {
        "concurrency": 1,
        "rate": rate,
        "latency_ms": {"p50": 3.0},
        "server_ms": {"clip_encoder": {"compute_infer": encoder_ms}},
        "gpu": {"watts": 500.0},
    }
    setting = {"tf32": False, "graphs": graphs}
    return {"setting": setting, "precision": "fp16", "cold_start_s": 3.0, "cosine": cosine, "by_concurrency": [point]}


def peak_cell(gflops: float) -> dict[str, Any]:
    rate = {"best": gflops, "median": gflops, "runs": 5}
    return {"side": 8192, "product_gflops": {"fp16": rate}, "memory_gb_s": {"best": 3_000.0, "median": 3_000.0}}


def test_the_breakdown_of_a_card_leads_from_its_peak_to_the_service() -> None:
    results = {
        "gpu_session": on_card("session", a=session_cell(1.0, graphs=True), b={"error": "x"}),
        "gpu_throughput_224": on_card("throughput_224", a=served_cell(8_000.0), b={"error": "x"}),
    }
    shown = efficiency_breakdown.of_gpu(results)
    assert shown is not None
    assert [round(step["rate"]) for step in shown.steps] == [112_177, 32_000, 16_000, 8_000]
    assert shown.steps[1]["of_above"] == pytest.approx(32_000 / 112_176.9, rel=1e-4)
    assert [step["of_above"] for step in shown.steps[2:]] == [0.5, 0.5]
    assert shown.steps[0]["rate"] == pytest.approx(989.4e12 / FLOP_PER_IMAGE)
    measured = efficiency_breakdown.of_gpu(
        {**results, "gpu_peak_throughput": on_card("peak_throughput", cuda=peak_cell(882_000.0))}
    )
    assert measured is not None
    assert [round(step["rate"]) for step in measured.steps] == [112_177, 100_000, 32_000, 16_000, 8_000]


def test_without_a_rate_there_is_no_breakdown_of_a_card() -> None:
    assert efficiency_breakdown.of_gpu({}) is None
    assert efficiency_breakdown.of_gpu({"gpu_session": on_card("session", a={"error": "x"})}) is None


def test_other_vectors_count_for_no_goal_and_no_step() -> None:
    result = on_card("throughput_224", good=served_cell(10.0), wrong=served_cell(1e6, cosine=0.5))
    rows = dict(rows_of(result))
    assert rows["goal: images per second"] == "10 of 20,000, not reached"
    assert rows["wrong, least cosine"] == "0.5: other vectors"
    shown = efficiency_breakdown.of_gpu({"gpu_throughput_224": result})
    assert shown is not None
    assert shown.steps[-1]["rate"] == 10.0
    assert "goal: images per second" not in dict(rows_of(on_card("throughput_224", wrong=served_cell(1e6, cosine=0.5))))


def test_goals_are_judged_by_the_best_measurement() -> None:
    rows = dict(rows_of(on_card("throughput_224", a=served_cell(RATE_GOALS["throughput_224"]), b=served_cell(1.0))))
    assert rows["goal: images per second"] == "2e+04 of 20,000, reached"
    single = on_card("single", plain=served_cell(300.0), graphs=served_cell(300.0, graphs=True, encoder_ms=1.5))
    rows = dict(rows_of(single))
    assert rows["goal: p50, ms"] == "3 of 4, reached"
    assert rows["goal: encoder, ms"] == "2 of 2.5, reached"
    assert rows["goal: encoder with CUDA graphs, ms"] == "1.5 of 1, not reached"
    assert rows["plain, 1 at a time"] == "300 images/s; p50 3 ms; encoder 2 ms; watts 500"


def test_a_run_that_failed_is_a_row_with_its_reason() -> None:
    rows = dict(rows_of(on_card("session", good=session_cell(1.0), bad={"error": "RuntimeError: first\nthe reason"})))
    assert rows["bad"] == "the reason"
    assert (
        rows["good, batch 32"]
        == "2 ms, 1.6e+04 images/s; kernels alone 1 ms, 3.2e+04 images/s (28.5% of the card's peak)"
    )
    assert rows_of(on_card("tensorrt", cold={"unproved": "no card"})) == [("cold", "no card")]


def test_a_run_that_was_cut_shows_what_it_had_measured() -> None:
    cut = {"cut": "cut after 60 s", "cells": {"cold start": {"seconds": 3.0}, "x2 round 1": {"rate": 500.0}}}
    rows = rows_of({**on_card("throughput_224"), "cut": {"fp16": cut}})
    assert rows == [("fp16", "cut after 60 s"), ("fp16, x2 round 1", "500 images/s")]


def test_other_experiments_on_a_card_have_rows() -> None:
    rows = dict(rows_of(on_card("peak_throughput", cuda=peak_cell(882_000.0))))
    assert rows["cuda, matrix products, fp16, share of the data sheet"] == "0.8914"
    option = {"read_back": {"use_tf32": "1"}, "expected": {"use_tf32": "0"}, "effect": False, "ok": False}
    rows = dict(rows_of(on_card("options", cuda={"cuda: use_tf32=0": option, "cuda: x": {"error": "refused"}})))
    assert rows["cuda, cuda: use_tf32=0"] == "use_tf32=1; NO EFFECT; expected {'use_tf32': '0'}"
    assert rows["cuda, cuda: x"] == "refused"
    delay = {"delay_us": 500, "concurrency": 16, "rate": 100.0, "p50_ms": 5.0, "share_batched": 0.5}
    rows = dict(rows_of(on_card("queue_delay", fp16={"cells": [delay], "recommended": {}})))
    assert rows["fp16, delay 500 us, 16 callers"] == "100 images/s, p50 5 ms, 50% batched"
    profile = {"total_ms": 1.0, "nodes_by_provider": {"CUDA": 9}, "cpu_fallbacks": ["Cast"], "fused_attention": []}
    rows = dict(rows_of(on_card("operators", fp16={"1": profile})))
    assert rows["fp16, batch 1, fell back to the CPU"] == "Cast"


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


def test_the_breakdown_of_a_cpu_leads_from_bare_products_to_the_ensemble() -> None:
    shown = efficiency_breakdown.of_cpu(cpu_results())
    assert shown is not None
    assert [round(step["rate"], 2) for step in shown.steps] == [10.0, 100.0, 8.0, 7.0, 6.0]
    assert shown.steps[-1]["of_above"] == pytest.approx(6 / 7)
    assert shown.machine.startswith("2 cores of a CPU, no GPU used")


def test_results_of_another_machine_or_a_faster_hour_are_left_out() -> None:
    slower = cpu_results()
    slower["operators"]["roofs"]["product_gflops"]["fp32"]["best"] = 60.0
    for results in (cpu_results(cores=4), slower):
        shown = efficiency_breakdown.of_cpu(results)
        assert shown is not None
        assert len(shown.steps) == 3
    without_peak = {key: value for key, value in cpu_results()["operators"].items() if key != "roofs"}
    assert efficiency_breakdown.of_cpu({"operators": without_peak}) is None
