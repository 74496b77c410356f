"""What a part of ``python -m benchmarks gpu`` found, as rows of names and values, and whether it reached the goals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchmarks.report.efficiency_breakdown import card, points_that_count, precision_of
from benchmarks.report.markdown_tables import ENVIRONMENT

Result = Mapping[str, Any]

RATE_GOALS: Final = {"throughput_224": 20_000.0, "throughput_256": 6_000.0}
"""Part -> images per second that one H200 with 16 cores should reach."""
SINGLE_GOALS_MS: Final = {"p50": 4.0, "encoder": 2.5, "encoder with CUDA graphs": 1.0}
"""Milliseconds that one image should take at most, for one caller, at fp16, on one H200 with 16 cores."""


def rows_of(result: Result) -> list[tuple[str, str]]:
    """Rows for one result ``gpu_<part>``: of a run that failed or was cut, the reason and the rates until then."""
    known = card(result["environment"]["gpu"])
    rows = list(_goals(result["experiment"].removeprefix("gpu_"), result["cells"]))
    for label, cell in {**result["cells"], **result.get("cut", {})}.items():
        text = ENVIRONMENT.get_template("gpu_rows.txt").render(
            label=label, cell=cell, card=known, precision=precision_of(cell), counts=bool(points_that_count(cell))
        )
        for line in filter(None, text.splitlines()):
            name, _, value = line.partition(" | ")
            rows.append((name, value))
    return rows


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
