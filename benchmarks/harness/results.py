"""Makes results from measurements, and keeps them with the machine, versions and commit to judge them by.

Machines are noisy, so no system is measured alone: in every round each system runs once, in turn, and a result is the
median over rounds. Ratios compare systems of the same run, within each round. That helps against noise that affects
all systems alike; it does not help if other work takes the same cores (see ``BUSY`` in ``experiment``).
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness.meters import nvml_card

LEAST_COSINE: Final = 0.9999
"""A system is valid if each of its vectors reaches this cosine to the first system's vector of the same image."""
RESULTS: Final = Path(__file__).parents[1] / "results"
PACKAGES: Final = """
    numpy pillow onnxruntime onnxruntime-gpu openvino torch open_clip_torch grpcio tritonclient nvidia-pytriton fastapi
    uvicorn
""".split()
FLAGS: Final = frozenset({"avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8"})
"""CPU flags that decide which precision is fast."""
LOAD_BEFORE: Final = round(os.getloadavg()[0], 2)
"""Other load on the machine when this program started; at its end most of the load is its own."""
CARRIED_COMMIT: Final = Path(__file__).parents[2] / "COMMIT"
"""Written by ``gpu_kit``, because the tree of a kit has no git."""


def environment() -> dict[str, Any]:
    described = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    cpu = {key.strip(): value.strip() for key, _, value in described}
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu.get("model name", platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "cpu_flags": sorted(FLAGS & set(cpu.get("flags", "").split())),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load_average_before": LOAD_BEFORE,
        "load_average": round(os.getloadavg()[0], 2),
        "gpu": card_name(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {one.name: one.version for one in metadata.distributions() if one.name in PACKAGES},
        "commit": commit(),
        "modified": bool(output("git", "status", "--porcelain", "--untracked-files=no")),
    }


def commit() -> str | None:
    """The short name of this tree's commit; None if it has neither git nor the file of a kit."""
    carried = CARRIED_COMMIT.read_text().strip() if CARRIED_COMMIT.exists() else None
    return carried or output("git", "rev-parse", "--short", "HEAD")


def output(*command: str) -> str | None:
    """Return what a command prints, stripped; None if it fails or is not installed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def card_name() -> str | None:
    """Name and driver of the first GPU; None without a GPU."""
    with nvml_card() as (nvml, card):
        return None if nvml is None else f"{nvml.nvmlDeviceGetName(card)}, {nvml.nvmlSystemGetDriverVersion()}"


def write_result(experiment: str, result: Mapping[str, Any], directory: Path = RESULTS) -> Path:
    """Keep ``result`` with the environment as ``<experiment>-<date>-<commit>.json`` and return the path."""
    record = {"experiment": experiment, "environment": environment(), **result}
    day = record["environment"]["time"][:10]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{experiment}-{day}-{record['environment']['commit'] or 'unknown'}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def show(title: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a table with a row for each name and a column for each key of the rows."""
    table = Table("", title=title)
    columns = dict.fromkeys(column for row in rows.values() for column in row)
    for column in columns:
        table.add_column(str(column), justify="right")
    for name, row in rows.items():
        table.add_row(name, *(_figure(row.get(column, "")) for column in columns))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _figure(value: Any) -> str:
    """Four digits of a number; six places of one about 1, such as a cosine."""
    if isinstance(value, bool | str):
        return str(value)
    if abs(value) >= 1000 or isinstance(value, int):
        return f"{value:,.0f}"
    return f"{value:.6f}" if 0.9 < value < 1.1 else f"{value:.4g}"


def cosine_to_first(vectors: Mapping[str, Any]) -> dict[str, float]:
    """Name -> the least cosine of any of its vectors (N, D) to the first system's vector of the same image."""
    exact = {name: np.asarray(rows, dtype=np.float64) for name, rows in vectors.items()}
    unit = {name: rows / np.linalg.norm(rows, axis=1, keepdims=True) for name, rows in exact.items()}
    first = next(iter(unit.values()))
    return {name: float((first * rows).sum(axis=1).min()) for name, rows in unit.items()}


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def percentiles(latencies_ms: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 of ``latencies_ms``; all equal if there is only one."""
    if len(latencies_ms) < 2:
        return dict.fromkeys(("p50", "p95", "p99"), latencies_ms[0])
    cuts = statistics.quantiles(latencies_ms, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


def ratios(of: Iterable[Mapping[str, Any]], to: Iterable[Mapping[str, Any]], key: str = "rate") -> list[float]:
    """Results of two systems -> the ratio of a figure in each round, in which both met the same machine."""
    return [one[key] / other[key] for one, other in zip(of, to, strict=True)]


def of_rounds(cells: Mapping[str, dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The results of the cells ``"NAME round 1"``, ``"NAME round 2"`` and so on."""
    keys = (f"{name} round {number}" for number in itertools.count(1))
    return [cells[key] for key in itertools.takewhile(cells.__contains__, keys)]


def median_of(results: Iterable[Mapping[str, Any]], key: str) -> float:
    return float(statistics.median(result[key] for result in results))
