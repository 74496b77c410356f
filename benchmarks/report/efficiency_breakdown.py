"""How much of a machine the service uses, and where the rest goes, from the kept results: a card's, and a CPU's.

Every image counts as the whole tower's ``FLOP_PER_IMAGE``, though the export leaves out 7 % of it that nobody reads: a
share says how near a machine is to the most images that the tower allows, and is so much above how busy its units are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.experiments.serving.operators import FLOP_PER_IMAGE
from benchmarks.gpu.efficiency import card, ladder, precision_of, rungs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Result = Mapping[str, Any]
    Results = Mapping[str, Result]

PARAMETERS: Final = 87.85e6
"""Of ViT-B-32's image tower. All are read once a run, so small batches wait for the memory that they lie in."""
BYTES: Final[Mapping[str, int]] = {"fp32": 4, "tf32": 4, "fp16": 2}
SERVED: Final = ("session", "ensemble")
PRODUCTS: Final = frozenset({"MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Conv", "FusedConv"})
"""Nodes that are products of matrices, which is what a roof is measured with."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """What one picture shows, all in images per second."""

    machine: str
    """In whose name: cores and CPU, or card."""
    steps: Sequence[Mapping[str, Any]]
    """From the roof down to the service, as of :func:`benchmarks.gpu.efficiency.ladder`."""
    compute: float
    """What bare products would give."""
    memory: float
    """What reading the weights would give, for each image of a batch."""
    curves: Mapping[str, Sequence[tuple[int, float]]]
    """Label -> (images in a run, images per second)."""
    precision: str
    """Of both roofs."""


def of_cpu(results: Results) -> Roofline | None:
    """Of the CPU's own experiments, at fp32; None before ``operators`` has measured roofs for ViT-B-32 there."""
    operators = results.get("operators")
    if operators is None or "roofs" not in operators or not _is_fp32_vit(operators["model"]):
        return None
    compute = operators["roofs"]["product_gflops"]["fp32"]["best"] * 1e9 / FLOP_PER_IMAGE
    most = max(operators["summary"], key=int)
    found = operators["summary"][most]
    products_ms = sum(row["ms"] for row in found["operators"] if row["operator"] in PRODUCTS)
    steps = [
        ("bare matrix products, measured", compute),
        (f"the model's products, batch {most}", 1e3 * int(most) / products_ms),
        ("all of the model's nodes", 1e3 * int(most) / found["total_ms"]),
    ]
    curves = {
        "the model's nodes": [(int(rows), 1e3 * int(rows) / one["total_ms"]) for rows, one in _by_rows(operators)]
    }
    served = results.get("end_to_end")
    if served is not None and _compares(served, operators, compute, most):
        at = served["summary"]
        steps += [
            ("a bare session, another run", at[most]["images_per_second"]["session"]["median"]),
            ("the ensemble, JPEG in", at[most]["images_per_second"]["ensemble"]["median"]),
        ]
        curves["the ensemble, by callers"] = [
            (int(rows), one["images_per_second"]["ensemble"]["median"]) for rows, one in _by_rows(served)
        ]
    where = operators["environment"]
    return Roofline(
        machine=f"{where['cores']} cores of {where['cpu']}, no GPU used, fp32",
        steps=rungs(steps),
        compute=compute,
        memory=operators["roofs"]["memory_gb_s"]["best"] * 1e9 / (PARAMETERS * BYTES["fp32"]),
        curves=curves,
        precision="fp32",
    )


def of_gpu(results: Results) -> Roofline | None:
    """Of a card's parts, at fp16; None where its kernels or its roofs are not known."""
    session = results.get("gpu_session")
    if session is None:
        return None
    known = card(session["environment"]["gpu"])
    roofs = next((cell for cell in results.get("gpu_roofs", {}).get("cells", {}).values() if "side" in cell), None)
    if roofs is not None:
        flops, bytes_a_second = roofs["product_gflops"]["fp16"]["best"] * 1e9, roofs["memory_gb_s"]["best"] * 1e9
    elif known is not None:
        flops, bytes_a_second = known.fp16 * 1e12, known.memory * 1e12
    else:
        return None
    curves = {
        name: [(int(rows), 1e3 * int(rows) / one["kernels_ms"]["p50"]) for rows, one in cell["batches"].items()]
        for name, cell in (
            (_label(cell), cell) for cell in session["cells"].values() if precision_of(cell) and cell.get("batches")
        )
    }
    if not curves:
        return None
    return Roofline(
        machine=f"{session['environment']['gpu']}, fp16",
        steps=ladder(results),
        compute=flops / FLOP_PER_IMAGE,
        memory=bytes_a_second / (PARAMETERS * BYTES["fp16"]),
        curves=curves,
        precision="fp16",
    )


def _label(cell: Mapping[str, Any]) -> str:
    return f"kernels, {precision_of(cell)}{', CUDA graphs' if cell['setting']['graphs'] else ''}"


def _is_fp32_vit(model: str) -> bool:
    return model.startswith("ViT-B-32/") and "+" not in model


def _by_rows(result: Result) -> list[tuple[str, Mapping[str, Any]]]:
    return sorted(result["summary"].items(), key=lambda pair: int(pair[0]))


def _compares(served: Result, operators: Result, compute: float, most: str) -> bool:
    """Whether two runs can stand in one picture: the same machine, as busy. What is above the roof met a faster one."""
    if _where(served) != _where(operators) or most not in served["summary"]:
        return False
    rates = (one["images_per_second"][name]["median"] for one in served["summary"].values() for name in SERVED)
    return all(rate <= compute for rate in rates)


def _where(result: Result) -> tuple[Any, ...]:
    """Results of other machines do not stand in one picture."""
    return tuple(result["environment"][key] for key in ("cpu", "cores"))
