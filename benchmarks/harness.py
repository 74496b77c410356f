"""What every benchmark shares: workers in processes of their own, interleaved rounds, and a record of the machine.

The machine is noisy, so no system is measured alone: in every round each system runs once, in turn, and a figure is the
median over rounds. Ratios compare systems of the same run only.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

RESULTS: Final = Path(__file__).parent / "results"
PACKAGES: Final = (
    "numpy",
    "pillow",
    "onnxruntime",
    "torch",
    "open_clip_torch",
    "grpcio",
    "tritonclient",
    "nvidia-pytriton",
)


class WorkerFailed(RuntimeError):
    """A worker process ended before it gave its result."""


class Worker:
    """One system under test, in a process of its own that loads once and measures on request.

    The process runs ``python -m <module> <arguments>`` and speaks lines of JSON: ``{"ready": ...}`` once it is warm,
    then one object for each line that it reads, which holds the seconds to measure.
    """

    def __init__(self, name: str, module: str, *arguments: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ready = self._read()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.communicate()

    def measure(self, seconds: float) -> dict[str, Any]:
        """Let the worker run for about ``seconds`` and return what it counted."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"{self.name}: ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def interleave(workers: Iterable[Worker], *, rounds: int, seconds: float) -> dict[str, list[dict[str, Any]]]:
    """Measure each worker once per round, in turn; return name -> its results in order of the rounds."""
    workers = list(workers)
    results: dict[str, list[dict[str, Any]]] = {worker.name: [] for worker in workers}
    for number in range(1, rounds + 1):
        for worker in workers:
            result = worker.measure(seconds)
            results[worker.name].append(result)
            print(f"round {number}/{rounds}  {worker.name:<28} {result['rate']:8.1f} images/s", file=sys.stderr)
    return results


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum of ``values``."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def percentiles(latencies_ms: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 of ``latencies_ms``; all equal where there is only one."""
    if len(latencies_ms) < 2:
        return dict.fromkeys(("p50", "p95", "p99"), latencies_ms[0])
    cuts = statistics.quantiles(latencies_ms, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


def environment() -> dict[str, Any]:
    """Describe the machine, the versions and the commit, so that a number can be judged later."""
    cpu_lines = _read_text("/proc/cpuinfo").splitlines()
    described = dict(line.split(":", 1) for line in cpu_lines if ":" in line)
    cpu = {key.strip(): value.strip() for key, value in described.items()}
    flags = set(cpu.get("flags", "").split())
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu.get("model name", platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "cpu_flags": sorted(flags & {"avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8"}),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "gpu": _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": _output("git", "rev-parse", "--short", "HEAD"),
        "modified": bool(_output("git", "status", "--porcelain", "--untracked-files=no")),
    }


def write_result(experiment: str, result: Mapping[str, Any], directory: Path = RESULTS) -> Path:
    """Keep ``result`` with the environment as ``<experiment>-<date>-<commit>.json`` and return the path."""
    record = {"experiment": experiment, "environment": environment(), **result}
    day = record["environment"]["time"][:10]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{experiment}-{day}-{record['environment']['commit'] or 'unknown'}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
