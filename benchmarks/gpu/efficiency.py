"""How much of a card is used, and where the rest went: arithmetic on what the parts measured.

Peaks are dense tensor-core rates with fp32 accumulation, in TFLOP/s, at the boost clock that the maker states; sheets
that only give rates "with sparsity" are halved. A card whose name is not here has no roofline.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.experiments.serving.operators import FLOP_PER_IMAGE
from benchmarks.harness.rounds import LEAST_COSINE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Cells = Mapping[str, Mapping[str, Any]]

GOALS: Final = {"throughput_224": 20_000.0, "throughput_256": 6_000.0}
"""Images per second, for one H200 with 16 cores."""
SINGLE_GOALS_MS: Final = {"p50": 4.0, "encoder": 2.5, "encoder with CUDA graphs": 1.0}


@dataclass(frozen=True, kw_only=True)
class Card:
    """A card's peaks in TFLOP/s, and where they are stated."""

    fp16: float
    tf32: float
    fp32: float
    """Of the plain cores: what fp32 without TF32 runs on."""
    memory: float
    """Bandwidth in TB/s."""
    source: str


CARDS: Final[Mapping[str, Card]] = {
    # The first whose words are all in the name counts.
    "H200": Card(
        fp16=989.4, tf32=494.7, fp32=66.9, memory=4.8, source="NVIDIA H200 Tensor Core GPU data sheet (halved)"
    ),
    "H100 PCIe": Card(fp16=756.0, tf32=378.0, fp32=51.2, memory=2.0, source="NVIDIA H100 PCIe data sheet (halved)"),
    "H100 NVL": Card(fp16=835.5, tf32=417.5, fp32=60.0, memory=3.9, source="NVIDIA H100 NVL data sheet (halved)"),
    "H100": Card(
        fp16=989.4, tf32=494.7, fp32=66.9, memory=3.35, source="NVIDIA H100 Tensor Core GPU Architecture, table 2"
    ),
    "A100 80GB": Card(fp16=312.0, tf32=156.0, fp32=19.5, memory=1.935, source="NVIDIA A100 data sheet (PCIe)"),
    "A100": Card(fp16=312.0, tf32=156.0, fp32=19.5, memory=1.555, source="NVIDIA A100 data sheet (40 GB)"),
    "L40S": Card(fp16=362.1, tf32=183.0, fp32=91.6, memory=0.864, source="NVIDIA L40S data sheet"),
    "L4": Card(fp16=121.0, tf32=60.0, fp32=30.3, memory=0.3, source="NVIDIA L4 data sheet (halved)"),
    "A10": Card(fp16=125.0, tf32=62.5, fp32=31.2, memory=0.6, source="NVIDIA A10 data sheet"),
    "T4": Card(fp16=65.0, tf32=8.1, fp32=8.1, memory=0.32, source="NVIDIA T4 data sheet"),
}


def card(name: str | None) -> Card | None:
    """The card whose words are all in ``name``, as nvidia-smi gives it."""
    words = (name or "").replace(",", " ").replace("-", " ").split()
    return next((known for key, known in CARDS.items() if set(key.split()) <= set(words)), None)


def peak_rate(known: Card, precision: str) -> float:
    """Images per second if the card did nothing but ViT-B-32's products; ``precision`` is fp16, tf32 or fp32."""
    peak: float = getattr(known, precision)
    return peak * 1e12 / FLOP_PER_IMAGE


def ladder(results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """From the card's peak down to the service, fp16: each step's images per second, and its share of the one above.

    ``results`` are the records of the parts by name, such as ``gpu_session``.
    """
    steps: list[tuple[str, float]] = []
    session = results.get("gpu_session")
    known = card(session["environment"]["gpu"]) if session else None
    if known is not None:
        steps.append((f"peak of the card ({known.source})", peak_rate(known, "fp16")))
    if (products := _bare_products(results, "fp16")) is not None:
        steps.append(("bare matrix products, measured", products))
    if session:
        best = [
            (int(rows), point)
            for cell in session["cells"].values()
            if precision_of(cell) == "fp16" and cell["canary_cosine"] >= LEAST_COSINE
            for rows, point in cell["batches"].items()
        ]
        if best:
            steps.append(("the model's kernels", max(1e3 * rows / point["kernels_ms"]["p50"] for rows, point in best)))
            steps.append(("with copies to the card and back", max(point["rate"] for _, point in best)))
    for part, what in (("gpu_throughput_224", "served, from 224 px"), ("gpu_throughput_256", "served, from 256 px")):
        rates = [cell["rate"] for cell in rated(results.get(part, {}).get("cells", {})).values()]
        if rates:
            steps.append((what, max(rates)))
    return rungs(steps)


def rated(cells: Cells) -> Cells:
    """The cells with a rate that counts: a setting that gives other vectors may be the fastest of all."""
    return {name: cell for name, cell in cells.items() if "rate" in cell and cell.get("cosine", 1.0) >= LEAST_COSINE}


def rungs(steps: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    """Steps of a ladder with the share that each has of the one above it, and of the first."""
    return [
        {
            "what": what,
            "rate": rate,
            "of_above": rate / steps[number - 1][1] if number else 1.0,
            "of_first": rate / steps[0][1],
        }
        for number, (what, rate) in enumerate(steps)
    ]


def _bare_products(results: Mapping[str, Mapping[str, Any]], kind: str) -> float | None:
    """Images per second if the card did nothing but products as large as fit it best."""
    cells = results.get("gpu_roofs", {}).get("cells", {})
    rates = [cell["product_gflops"][kind]["best"] for cell in cells.values() if kind in cell.get("product_gflops", {})]
    return max(rates) * 1e9 / FLOP_PER_IMAGE if rates else None


def precision_of(cell: Mapping[str, Any]) -> str:
    """``fp16``, ``tf32`` or ``fp32`` of a cell that was measured; empty for one that failed."""
    setting = cell.get("setting", {})
    return "tf32" if setting.get("tf32") else str(setting.get("precision", ""))


def summarise(part: str, cells: Cells, gpu: str | None) -> dict[str, Any]:
    """The figures by which one part is judged; ``gpu`` is the card's name. What failed is there with its reason."""
    known = card(gpu)
    summary: dict[str, Any] = {
        name: cell.get("unproved") or cell["error"].strip().splitlines()[-1]
        for name, cell in cells.items()
        if "error" in cell or "unproved" in cell
    }
    good = {name: cell for name, cell in cells.items() if name not in summary}
    shown = {
        "roofs": _roofs,
        "options": _options,
        "session": _session,
        "throughput_224": _throughput,
        "throughput_256": _throughput,
        "operators": _operators,
    }.get(part, _callers)
    summary.update(shown(good, known))
    if part in GOALS and "best images per second" in summary:
        summary["goal"] = GOALS[part]
        summary["goal reached"] = summary["best images per second"] >= GOALS[part]
    return summary


def _roofs(cells: Cells, known: Card | None) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for cell in cells.values():
        for kind, rate in cell["product_gflops"].items():
            rows[f"bare products, {kind}, TFLOP/s"] = rate["best"] / 1e3
            if known is not None:
                rows[f"bare products, {kind}, share of the data sheet's peak"] = (
                    rate["best"] / 1e3 / getattr(known, kind)
                )
        rows["memory, read and written, GB/s"] = cell["memory_gb_s"]["best"]
    return rows


def _options(cells: Cells, known: Card | None) -> dict[str, Any]:
    """Which options do what they say; see ``benchmarks.experiments.serving.provider_options``."""
    rows: dict[str, Any] = {}
    for cell in cells.values():
        for name, found in cell.items():
            read = ", ".join(f"{key}={value}" for key, value in found.get("read_back", {}).items())
            tried = {True: "; its effect shows", False: "; WITHOUT EFFECT"}.get(found.get("effect"), "")
            rows[name] = found.get("unproved") or found.get("error") or f"{read}{tried}"
            if not found.get("ok", True) and "error" not in found:
                rows[name] += f"; expected {found['expected']}"
    return rows


def _session(cells: Cells, known: Card | None) -> dict[str, Any]:
    rows = {}
    for name, cell in cells.items():
        first, last = (cell["batches"][size] for size in (min(cell["batches"], key=int), max(cell["batches"], key=int)))
        most = max(map(int, cell["batches"]))
        kernels = 1e3 * most / last["kernels_ms"]["p50"]
        rows[name] = {
            "provider": cell["providers"][0],
            "canary's cosine": cell["canary_cosine"],
            "seconds to the first vector": cell["ready_s"],
            "one image, ms": first["latency_ms"]["p50"],
            "one image, kernels, ms": first["kernels_ms"]["p50"],
            f"batch {most}, images per second": last["rate"],
            f"batch {most}, kernels alone": kernels,
        }
        if known is not None:
            rows[name]["kernels, share of peak"] = kernels / peak_rate(known, precision_of(cell))
    return rows


def _throughput(cells: Cells, known: Card | None) -> dict[str, Any]:
    counted = rated(cells)
    wrong = {name: "other vectors" for name, cell in cells.items() if "rate" in cell and name not in counted}
    if not counted:
        return wrong
    name, best = max(counted.items(), key=lambda pair: pair[1]["rate"])
    cosines = [cell["cosine"] for cell in cells.values() if "cosine" in cell]
    summary: dict[str, Any] = {
        **wrong,
        "best images per second": best["rate"],
        "with": name,
        "latency p50 there, ms": best["latency_ms"]["p50"],
        "server": best["server"],
    }
    if cosines:
        summary["least cosine"] = min(cosines)
    if best["gpu"]:
        samples = best["gpu"]["samples"]
        summary["images per joule"] = best["gpu"]["images_per_joule"]
        for key in ("watts", "gpu_percent", "memory_mb"):
            values = [sample[key] for sample in samples if key in sample]
            if values:
                summary[f"{key}, median"] = statistics.median(values)
    if known is not None:
        summary["share of the card's fp16 peak"] = best["rate"] / peak_rate(known, "fp16")
    return summary


def _callers(cells: Cells, known: Card | None) -> dict[str, Any]:
    return {
        name: {
            "seconds to ready": cell["ready_s"],
            "least cosine": cell["cosine"],
            **{f"{count} callers": _point(point) for count, point in cell["callers"].items()},
        }
        for name, cell in cells.items()
    }


def _point(point: Mapping[str, Any]) -> dict[str, Any]:
    encoder = point["server"].get("clip_encoder", {})
    return {
        "images per second": point["rate"],
        **{f"{quantile}, ms": value for quantile, value in point["latency_ms"].items()},
        "encoder, ms": encoder.get("compute_infer"),
        "share batched": encoder.get("share_batched"),
    }


def _operators(cells: Cells, known: Card | None) -> dict[str, Any]:
    return {
        name: {
            # On a card a node's time is that of its launch.
            "ms of launches a run": cell["total_ms"],
            "nodes by provider": cell["nodes_by_provider"],
            "on the CPU all the same": ", ".join(cell["cpu_fallbacks"]) or "none",
            "fused attention": ", ".join(cell["fused_attention"]) or "none",
            "largest": ", ".join(f"{row['operator']} {row['share']:.0%}" for row in cell["operators"][:5]),
        }
        for name, cell in cells.items()
    }
