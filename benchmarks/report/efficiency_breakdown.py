"""How much of a machine the service uses, and which step loses the rest: of a CPU, and of an NVIDIA card.

Every image counts as the whole tower's ``FLOP_PER_IMAGE``, though the export leaves out 7 % of it. A share therefore
says how near the machine is to the most images that the whole tower allows; its units are that much less busy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.experiments.serving.operators import FLOP_PER_IMAGE
from benchmarks.harness.rounds import LEAST_COSINE
from benchmarks.report.cards import card

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Result = Mapping[str, Any]
    Results = Mapping[str, Result]

PARAMETERS: Final = 87.85e6
"""Of ViT-B-32's image tower. Every run reads all of them once, so small batches wait for memory."""
BYTES: Final[Mapping[str, int]] = {"fp32": 4, "tf32": 4, "fp16": 2}
PRODUCTS: Final = frozenset({"MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Conv", "FusedConv"})
"""Nodes that are products of matrices, as the peak is."""


@dataclass(frozen=True)
class Breakdown:
    """From what a machine can do without a model down to the service; all rates in images per second."""

    machine: str
    """Cores and CPU, or card."""
    precision: str
    """Of ``peak``."""
    rates: Sequence[tuple[str, float]]
    """What was measured, and its rate, from the peak down."""
    peak: Mapping[str, float] | None
    """``flop_s`` and ``byte_s`` of the machine; None if they are unknown."""
    curves: Mapping[str, Sequence[tuple[int, float]]]
    """Label -> (images in a run, rate)."""

    @property
    def steps(self) -> list[dict[str, Any]]:
        """``what``, ``rate``, and its share ``of_above`` (of the step before) and ``of_first``."""
        above = [self.rates[0], *self.rates]
        return [
            {"what": what, "rate": rate, "of_above": rate / before, "of_first": rate / self.rates[0][1]}
            for (what, rate), (_, before) in zip(self.rates, above, strict=False)
        ]

    @property
    def compute(self) -> float:
        """Limit that bare matrix products set; 0 if unknown."""
        return self.peak["flop_s"] / FLOP_PER_IMAGE if self.peak else 0.0

    @property
    def memory(self) -> float:
        """Limit that reading the weights sets, for each image of a batch; 0 if unknown."""
        return self.peak["byte_s"] / (PARAMETERS * BYTES[self.precision]) if self.peak else 0.0

    @property
    def can_be_drawn(self) -> bool:
        """Whether there are both limits and curves to compare with them."""
        return bool(self.peak and self.curves)


def of_cpu(results: Results) -> Breakdown | None:
    """Of the CPU's own experiments, at fp32; None before ``operators`` has measured the peak with ViT-B-32 there."""
    operators = results.get("operators")
    if operators is None or "roofs" not in operators:
        return None
    model = operators["model"]
    if not model.startswith("ViT-B-32/") or "+" in model:  # such as ...+fp16
        return None
    peak = _measured_peak(operators["roofs"], "fp32")
    compute = peak["flop_s"] / FLOP_PER_IMAGE
    profiles = {int(rows): profile for rows, profile in operators["summary"].items()}
    most = max(profiles)
    products_ms = sum(row["ms"] for row in profiles[most]["operators"] if row["operator"] in PRODUCTS)
    steps = [
        ("bare matrix products, measured", compute),
        (f"the model's products, batch {most}", 1e3 * most / products_ms),
        ("all of the model's nodes", 1e3 * most / profiles[most]["total_ms"]),
    ]
    curves = {"the model's nodes": [(rows, 1e3 * rows / one["total_ms"]) for rows, one in profiles.items()]}
    if served := results.get("end_to_end"):
        rates = {
            int(rows): [one["images_per_second"][system]["median"] for system in ("session", "ensemble")]
            for rows, one in served["summary"].items()
        }
        # A rate above the peak means that the machine was busier when the peak was measured.
        if _where(served) == _where(operators) and most in rates and max(map(max, rates.values())) <= compute:
            session, ensemble = rates[most]
            steps += [("a bare session, another run", session), ("the ensemble, JPEG in", ensemble)]
            curves["the ensemble, by callers"] = [(rows, rate) for rows, (_, rate) in rates.items()]
    cpu, cores = _where(operators)
    return Breakdown(f"{cores} cores of {cpu}, no GPU used", "fp32", steps, peak, curves)


def of_gpu(results: Results) -> Breakdown | None:
    """Of the results ``gpu_...`` of one card, at fp16; None if they give no rate at all."""
    name = next((one["environment"]["gpu"] for one in results.values() if "environment" in one), None)
    known = card(name)
    steps: list[tuple[str, float]] = []
    peak = None
    if known is not None:
        peak = {"flop_s": known.fp16 * 1e12, "byte_s": known.memory * 1e12}
        steps.append((f"peak of the card ({known.source})", peak["flop_s"] / FLOP_PER_IMAGE))
    for cell in _cells(results, "gpu_peak_throughput"):
        if "fp16" in cell.get("product_gflops", {}):
            peak = _measured_peak(cell, "fp16")
            steps.append(("bare matrix products, measured", peak["flop_s"] / FLOP_PER_IMAGE))
    sessions = [cell for cell in _cells(results, "gpu_session") if cell.get("batches")]
    good = [
        (int(rows), point)
        for cell in sessions
        if precision_of(cell) == "fp16" and cell["canary_cosine"] >= LEAST_COSINE
        for rows, point in cell["batches"].items()
    ]
    if good:
        steps.append(("the model's kernels", max(1e3 * rows / point["kernels_ms"]["p50"] for rows, point in good)))
        steps.append(("with copies to the card and back", max(point["rate"] for _, point in good)))
    for part, what in (("gpu_throughput_224", "served, from 224 px"), ("gpu_throughput_256", "served, from 256 px")):
        if rates := [point["rate"] for cell in _cells(results, part) for point in points_that_count(cell)]:
            steps.append((what, max(rates)))
    if not steps or (known is not None and len(steps) == 1):
        return None
    curves = {}
    for cell in sessions:
        label = f"kernels, {precision_of(cell)}{', CUDA graphs' if cell['setting']['graphs'] else ''}"
        times = {int(rows): one["kernels_ms"]["p50"] for rows, one in cell["batches"].items()}
        curves[label] = [(rows, 1e3 * rows / ms) for rows, ms in times.items()]
    return Breakdown(name or "a card", "fp16", steps, peak, curves)


def points_that_count(cell: Result) -> Sequence[Mapping[str, Any]]:
    """The points of a result of ``latency``; none if its vectors are not the model's, which may be the fastest."""
    return cell.get("by_concurrency", ()) if cell.get("cosine", 1.0) >= LEAST_COSINE else ()


def precision_of(cell: Mapping[str, Any]) -> str:
    """``fp16``, ``tf32`` or ``fp32`` of a session that was measured; empty if it failed."""
    return "tf32" if cell.get("setting", {}).get("tf32") else str(cell.get("precision", ""))


def _cells(results: Results, name: str) -> Iterator[Mapping[str, Any]]:
    yield from results.get(name, {}).get("cells", {}).values()


def _measured_peak(found: Result, precision: str) -> dict[str, float]:
    """FLOP/s and bytes/s from a result of ``peak_throughput``."""
    return {"flop_s": found["product_gflops"][precision]["best"] * 1e9, "byte_s": found["memory_gb_s"]["best"] * 1e9}


def _where(result: Result) -> tuple[Any, ...]:
    return tuple(result["environment"][key] for key in ("cpu", "cores"))
