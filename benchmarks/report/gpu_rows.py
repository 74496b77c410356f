"""What a part of ``python -m benchmarks gpu`` found, as rows of names and values, and whether it reached the goals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.experiments.serving.operators import FLOP_PER_IMAGE
from benchmarks.report.cards import card
from benchmarks.report.efficiency_breakdown import points_that_count, precision_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.report.cards import Card

    Result = Mapping[str, Any]

RATE_GOALS: Final = {"throughput_224": 20_000.0, "throughput_256": 6_000.0}
"""Part -> images per second that one H200 with 16 cores should reach."""
SINGLE_GOALS_MS: Final = {"p50": 4.0, "encoder": 2.5, "encoder with CUDA graphs": 1.0}
"""Milliseconds that one image should take at most, for one caller, at fp16, on one H200 with 16 cores."""


def rows_of(result: Result) -> list[tuple[str, str]]:
    """Rows for one result ``gpu_<part>``: of a run that failed or was cut, the reason and the rates until then."""
    part = result["experiment"].removeprefix("gpu_")
    cells: Mapping[str, Result] = result["cells"]
    rows = list(_goals(part, cells))
    for label, cell in cells.items():
        if reason := cell.get("error") or cell.get("unproved"):
            rows += _incomplete(label, reason, cell)
        else:
            rows += [(f"{label}, {what}", _text(value)) for what, value in _values(cell, result["environment"]["gpu"])]
    for label, cell in result.get("cut", {}).items():
        rows += _incomplete(label, cell["cut"], cell)
    return rows


def _incomplete(label: str, reason: str, cell: Result) -> Iterator[tuple[str, str]]:
    yield label, reason.strip().splitlines()[-1]
    for name, one in cell.get("cells", {}).items():
        if "rate" in one:
            yield f"{label}, {name}", f"{one['rate']:,.4g} images/s"


def _text(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _goals(part: str, cells: Mapping[str, Result]) -> Iterator[tuple[str, str]]:
    """The best measurement beside each goal of a part."""
    good = [cell for cell in cells.values() if points_that_count(cell)]
    found: list[tuple[str, float, float, bool]] = []
    if part in RATE_GOALS and good:
        best = max(point["rate"] for cell in good for point in points_that_count(cell))
        found.append(("images per second", best, RATE_GOALS[part], best >= RATE_GOALS[part]))
    if part == "single":
        for what, goal in SINGLE_GOALS_MS.items():
            times = [
                point["latency_ms"]["p50"] if what == "p50" else point["server_ms"]["clip_encoder"]["compute_infer"]
                for cell in good
                if precision_of(cell) == "fp16" and (what == "p50" or cell["setting"]["graphs"] == ("graphs" in what))
                for point in points_that_count(cell)
            ]
            if times:
                found.append((f"{what}, ms", min(times), goal, min(times) <= goal))
    for what, value, goal, reached in found:
        yield f"goal: {what}", f"{value:,.4g} of {goal:,g}, {'reached' if reached else 'not reached'}"


def _values(cell: Result, gpu: str | None) -> Iterator[tuple[str, Any]]:
    """Names and values of the summary of one experiment."""
    if "product_gflops" in cell:
        return _peak(cell, card(gpu))
    if "batches" in cell:
        return _session(cell, card(gpu))
    if "by_concurrency" in cell:
        return _latency(cell)
    if "recommended" in cell:
        return _queue_delay(cell)
    if all("total_ms" in one for one in cell.values()):
        return _operators(cell)
    return ((name, _option(found)) for name, found in cell.items())


def _peak(cell: Result, known: Card | None) -> Iterator[tuple[str, Any]]:
    for kind, rate in cell["product_gflops"].items():
        yield f"matrix products, {kind}, TFLOP/s", rate["best"] / 1e3
        if known is not None:
            yield f"matrix products, {kind}, share of the data sheet", rate["best"] / 1e3 / getattr(known, kind)
    yield "memory, read and written, GB/s", cell["memory_gb_s"]["best"]


def _session(cell: Result, known: Card | None) -> Iterator[tuple[str, Any]]:
    yield "provider", cell["providers"][0]
    yield "cosine of the canary", cell["canary_cosine"]
    yield "seconds to the first vector", cell["ready_s"]
    for rows, point in cell["batches"].items():
        kernels_ms = point["kernels_ms"]["p50"]
        kernels = 1e3 * int(rows) / kernels_ms
        whole = f"{point['latency_ms']['p50']:.4g} ms, {point['rate']:,.4g} images/s"
        alone = f"kernels alone {kernels_ms:.4g} ms, {kernels:,.4g} images/s"
        if known is not None:
            share = kernels * FLOP_PER_IMAGE / (getattr(known, precision_of(cell)) * 1e12)
            alone += f" ({share:.1%} of the card's peak)"
        yield f"batch {rows}", f"{whole}; {alone}"


def _latency(cell: Result) -> Iterator[tuple[str, Any]]:
    yield "seconds to ready", cell["cold_start_s"]
    if "cosine" in cell:
        yield "least cosine", cell["cosine"] if points_that_count(cell) else f"{cell['cosine']}: other vectors"
    for point in cell["by_concurrency"]:
        yield f"{point['concurrency']} at a time", _point(point)


def _queue_delay(cell: Result) -> Iterator[tuple[str, Any]]:
    for one in cell["cells"]:
        setting = f"delay {one['delay_us']} us, {one['concurrency']} callers"
        yield setting, f"{one['rate']:,.4g} images/s, p50 {one['p50_ms']:.4g} ms, {one['share_batched']:.0%} batched"


def _operators(cell: Result) -> Iterator[tuple[str, Any]]:
    for batch, one in cell.items():
        # On a card the time of a node is the time to launch it.
        yield f"batch {batch}, ms of launches a run", one["total_ms"]
        yield f"batch {batch}, nodes by provider", ", ".join(f"{k} {v}" for k, v in one["nodes_by_provider"].items())
        yield f"batch {batch}, fell back to the CPU", ", ".join(one["cpu_fallbacks"]) or "none"
        yield f"batch {batch}, fused attention", ", ".join(one["fused_attention"]) or "none"


def _point(point: Result) -> str:
    latency = ", ".join(f"{name} {value:.4g} ms" for name, value in point["latency_ms"].items())
    encoder = point["server_ms"].get("clip_encoder", {}).get("compute_infer")
    parts = [f"{point['rate']:,.4g} images/s", latency, *([f"encoder {encoder:.4g} ms"] if encoder else [])]
    if card_use := point.get("gpu"):
        parts += [f"{name.replace('_', ' ')} {value:,.4g}" for name, value in card_use.items() if value is not None]
    return "; ".join(parts)


def _option(found: Result) -> str:
    """Whether one option of a provider does what it says; see ``provider_options``."""
    if reason := found.get("unproved") or found.get("error"):
        return str(reason)
    read = ", ".join(f"{key}={value}" for key, value in found["read_back"].items())
    effect = {True: "; its effect shows", False: "; NO EFFECT"}.get(found["effect"], "")
    return f"{read}{effect}{'' if found['ok'] else '; expected ' + str(found['expected'])}"
