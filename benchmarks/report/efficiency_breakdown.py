"""How much of a machine the service uses, and which step loses the rest: of a CPU, and of an NVIDIA card.

Every image counts as the whole tower's ``FLOP_PER_IMAGE``, though the export leaves out 7 % of it. A share therefore
says how near the machine is to the most images that the whole tower allows; its units are that much less busy.

The peaks of cards are from the maker's data sheets: dense tensor-core rates with fp32 accumulation, in TFLOP/s, at the
stated boost clock. Rates that a sheet gives only "with sparsity" are halved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from benchmarks.experiments.serving.operators import FLOP_PER_IMAGE
from benchmarks.harness.rounds import LEAST_COSINE


class Card(NamedTuple):
    """The peaks of one card in TFLOP/s, and where they are stated."""

    fp16: float
    tf32: float
    fp32: float
    """Of the plain cores, which run fp32 without TF32."""
    memory: float
    """Bandwidth in TB/s."""
    source: str


CARDS: Final[Mapping[str, Card]] = {
    # The first entry whose words all occur in the name is used.
    "H200": Card(989.4, 494.7, 66.9, 4.8, "NVIDIA H200 Tensor Core GPU data sheet (halved)"),
    "H100 PCIe": Card(756.0, 378.0, 51.2, 2.0, "NVIDIA H100 PCIe data sheet (halved)"),
    "H100 NVL": Card(835.5, 417.5, 60.0, 3.9, "NVIDIA H100 NVL data sheet (halved)"),
    "H100": Card(989.4, 494.7, 66.9, 3.35, "NVIDIA H100 Tensor Core GPU Architecture, table 2"),
    "A100 80GB": Card(312.0, 156.0, 19.5, 1.935, "NVIDIA A100 data sheet (PCIe)"),
    "A100": Card(312.0, 156.0, 19.5, 1.555, "NVIDIA A100 data sheet (40 GB)"),
    "L40S": Card(362.1, 183.0, 91.6, 0.864, "NVIDIA L40S data sheet"),
    "L4": Card(121.0, 60.0, 30.3, 0.3, "NVIDIA L4 data sheet (halved)"),
    "A10": Card(125.0, 62.5, 31.2, 0.6, "NVIDIA A10 data sheet"),
    "T4": Card(65.0, 8.1, 8.1, 0.32, "NVIDIA T4 data sheet"),
}


def card(name: str | None) -> Card | None:
    """Return the card that ``name`` (as nvidia-smi prints it) stands for; None if it is not in :data:`CARDS`."""
    words = (name or "").replace(",", " ").replace("-", " ").split()
    return next((known for key, known in CARDS.items() if set(key.split()) <= set(words)), None)


Result = Mapping[str, Any]
Results = Mapping[str, Result]

PRODUCTS: Final = frozenset({"MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Conv", "FusedConv"})
"""Nodes that are products of matrices, as the peak is."""


@dataclass(frozen=True)
class Breakdown:
    """From what a machine can do without a model down to the service; all rates in images per second."""

    machine: str
    """Cores and CPU, or card."""
    precision: str
    """Of the peak."""
    rates: Sequence[tuple[str, float]]
    """What was measured, and its rate, from the peak down."""

    @property
    def steps(self) -> list[dict[str, Any]]:
        """``what``, ``rate``, and its share ``of_above``: of the step before."""
        above = [self.rates[0], *self.rates]
        return [
            {"what": what, "rate": rate, "of_above": rate / before}
            for (what, rate), (_, before) in zip(self.rates, above, strict=False)
        ]


def of_cpu(results: Results) -> Breakdown | None:
    """Of the CPU's own experiments, at fp32; None before ``operators`` has measured the peak with ViT-B-32 there."""
    operators = results.get("operators")
    if operators is None or "roofs" not in operators:
        return None
    model = operators["model"]
    if not model.startswith("ViT-B-32/") or "+" in model:  # such as ...+fp16
        return None
    peak = _measured_peak(operators["roofs"], "fp32")
    profiles = {int(rows): profile for rows, profile in operators["summary"].items()}
    most = max(profiles)
    products_ms = sum(row["ms"] for row in profiles[most]["operators"] if row["operator"] in PRODUCTS)
    steps = [
        ("bare matrix products, measured", peak),
        (f"the model's products, batch {most}", 1e3 * most / products_ms),
        ("all of the model's nodes", 1e3 * most / profiles[most]["total_ms"]),
    ]
    if served := results.get("end_to_end"):
        rates = {
            int(rows): [one["images_per_second"][system]["median"] for system in ("session", "ensemble")]
            for rows, one in served["summary"].items()
        }
        # A rate above the peak means that the machine was busier when the peak was measured.
        if _where(served) == _where(operators) and most in rates and max(map(max, rates.values())) <= peak:
            session, ensemble = rates[most]
            steps += [("a bare session, another run", session), ("the ensemble, JPEG in", ensemble)]
    cpu, cores = _where(operators)
    return Breakdown(f"{cores} cores of {cpu}, no GPU used", "fp32", steps)


def of_gpu(results: Results) -> Breakdown | None:
    """Of the results ``gpu_...`` of one card, at fp16; None if they give no rate at all."""
    name = next((one["environment"]["gpu"] for one in results.values() if "environment" in one), None)
    known = card(name)
    steps: list[tuple[str, float]] = []
    if known is not None:
        steps.append((f"peak of the card ({known.source})", known.fp16 * 1e12 / FLOP_PER_IMAGE))
    steps += [
        ("bare matrix products, measured", _measured_peak(cell, "fp16"))
        for cell in _cells(results, "gpu_peak_throughput")
        if "fp16" in cell.get("product_gflops", {})
    ]
    good = [
        (int(rows), point)
        for cell in _cells(results, "gpu_session")
        if cell.get("batches") and precision_of(cell) == "fp16" and cell["canary_cosine"] >= LEAST_COSINE
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
    return Breakdown(name or "a card", "fp16", steps)


def points_that_count(cell: Result) -> Sequence[Mapping[str, Any]]:
    """The points of a result of ``latency``; none if its vectors are not the model's, which may be the fastest."""
    return cell.get("by_concurrency", ()) if cell.get("cosine", 1.0) >= LEAST_COSINE else ()


def precision_of(cell: Mapping[str, Any]) -> str:
    """``fp16``, ``tf32`` or ``fp32`` of a session that was measured; empty if it failed."""
    return "tf32" if cell.get("setting", {}).get("tf32") else str(cell.get("precision", ""))


def _cells(results: Results, name: str) -> Iterator[Mapping[str, Any]]:
    yield from results.get(name, {}).get("cells", {}).values()


def _measured_peak(found: Result, precision: str) -> float:
    """Images per second that bare matrix products allow, from a result of ``peak_throughput``."""
    return float(found["product_gflops"][precision]["best"]) * 1e9 / FLOP_PER_IMAGE


def _where(result: Result) -> tuple[Any, ...]:
    return tuple(result["environment"][key] for key in ("cpu", "cores"))
