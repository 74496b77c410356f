"""How fast and exact is each precision, and is the default the fastest?

Every row is the whole ensemble on a server of its own: images per second, and the least cosine to the fp32 vectors. A
row below the required cosine of its precision is marked, not hidden. Rows in bf16 need a processor that has it. The
default is compared with the fastest of its candidates within each round. Before that, it is started twice alone, with
an empty cache and with what it has timed, which shows what the timing costs.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.fixtures.server_setting import variant
from benchmarks.harness.experiment import MODEL, REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import cosine_to_first, median_interval, ratios, spread
from benchmarks.harness.worker import start_together
from preprocess_ensemble.contract import ENCODER
from preprocess_ensemble.export.parity import REQUIRED_COSINE
from preprocess_ensemble.runtimes.processor import has_bf16
from preprocess_ensemble.testing.server import QUIET, Server, serving

ROWS: Final[Mapping[str, str]] = {
    "fp32": "ONNX Runtime CPU, fp32",
    "auto": "the default, --precision auto",
    "int8": "ONNX Runtime CPU, int8 (dynamic)",
    "openvino-fp32": "OpenVINO, fp32",
    "openvino-bf16": "OpenVINO, bf16",
}
"""Without fp16, which is for GPUs: on a CPU, ONNX Runtime computes it in fp32, with casts."""
CANDIDATES: Final = ("fp32", "openvino-fp32", "openvino-bf16")
"""Rows from which the default chooses."""
ENOUGH: Final = 0.97
"""Ratio of the default to the fastest candidate that is good enough if it is certain not to be 1."""
SIZES: Final = (1, 8, 32)
"""Numbers of callers."""
NO_BF16: Final = "this processor has neither avx512_bf16 nor amx_bf16"
_RUNS_ON: Final = re.compile(rb'runs on (.+ \(.+\))"?$', re.MULTILINE)


@contextmanager
def openvino_serving(repository: Path, precision: str) -> Iterator[Server]:
    """The ensemble with the encoder on OpenVINO."""

    def change(config: Any) -> None:
        accelerator = config.optimization.execution_accelerators.cpu_execution_accelerator.add(name="openvino")
        accelerator.parameters["precision"] = precision.upper()

    with variant(repository, {ENCODER: change}) as changed, serving(changed, *QUIET, "--precision", "auto") as server:
        yield server


@contextmanager
def exported_serving(run: Run, precision: str) -> Iterator[Server]:
    """The model of ``run``, exported again in another precision."""
    with tempfile.TemporaryDirectory() as exported:
        which = ("--model", run.options.model or run.passport.model, "--pretrained", run.passport.pretrained)
        options = (*which, "--precision", precision, "--repository", exported)
        command = (sys.executable, "-m", "preprocess_ensemble.export.command", *options)
        subprocess.run(command, check=True, stdout=sys.stderr)
        with serving(Path(exported), *QUIET) as server:
            yield server


def row_serving(run: Run, row: str) -> AbstractContextManager[Server]:
    """The server of one row."""
    if row in ("fp32", "auto"):
        # The choice of the default is that of this run, not what an earlier one has left in the user's cache.
        cache = {"XDG_CACHE_HOME": str(run.scratch / "cache")} if row == "auto" else {}
        options = (*QUIET, "--precision", row, "--log-file", str(log_of(run, row)))
        return serving(run.options.repository, *options, environment=cache)
    provider, _, precision = row.rpartition("-")
    return openvino_serving(run.options.repository, precision) if provider else exported_serving(run, precision)


def log_of(run: Run, row: str) -> Path:
    """The server's log in one of the rows ``fp32`` and ``auto``."""
    return run.scratch / f"{row}.log"


def runtime_in(log: Path) -> str:
    """What runs the model, as the server said when it last loaded it; empty if the log does not say."""
    found: list[bytes] = _RUNS_ON.findall(log.read_bytes()) if log.exists() else []
    return found[-1].decode() if found else ""


def starts_of_auto(run: Run) -> dict[str, float]:
    """Seconds until the default is ready: at its first start, which times the candidates, and at the next."""
    seconds = {}
    for name in ("first", "next"):
        start = time.perf_counter()
        with row_serving(run, "auto"):
            seconds[name] = time.perf_counter() - start
    return seconds


def compared_with_fastest(found: Mapping[str, list[dict[str, Any]]], rows: Sequence[str], size: int) -> dict[str, Any]:
    """Compare the default with that of its candidates among ``rows`` which is fastest with ``size`` callers."""
    fastest = max(
        (row for row in rows if row in CANDIDATES),
        key=lambda row: statistics.median(one["rate"] for one in found[f"{row} x{size}"]),
    )
    values = ratios(found[f"auto x{size}"], found[f"{fastest} x{size}"])
    low, high = median_interval(values)
    ratio = statistics.median(values)
    holds = high >= 1 or ratio > ENOUGH
    return {"fastest": fastest, "ratio": ratio, "low": low, "high": high, "holds": holds}


@experiment(
    REPOSITORY,
    MODEL,
    option("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="of the table (default: all)"),
    rounds(6),
    seconds(4.0, "per row, concurrency and round"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure every row on a server of its own, all in turn."""
    rows = [row for row in run.options.rows if has_bf16() or not row.endswith("bf16")]
    for row in run.options.rows:
        if row not in rows:
            print(f"{row} is left out: {NO_BF16}", file=sys.stderr)
    starts = starts_of_auto(run) if "auto" in rows else {}
    servers = start_together(run.stack, {row: row_serving(run, row) for row in rows})
    workers = {row: run.load("transport", server.grpc_url, name=row) for row, server in servers.items()}
    cosines = cosine_to_first({row: worker.ready["vectors"] for row, worker in workers.items()})
    cells = {
        f"{row} x{size}": partial(worker.ask, {"seconds": run.options.seconds, "concurrency": size})
        for size in SIZES
        for row, worker in workers.items()
    }
    run.checkpoint(total=len(cells) * len(run.rounds))
    found: dict[str, list[dict[str, Any]]] = {}
    for number in run.rounds:
        # Back and forth, because a server still computes what it has received when its turn ends.
        turn = cells if number % 2 else dict(reversed(cells.items()))
        found = run.in_rounds(turn, range(number, number + 1))
    summary: dict[str, Any] = {}
    lines = []
    for row in rows:
        required = REQUIRED_COSINE["int8" if row == "int8" else "fp32"]
        rates = {size: spread([one["rate"] for one in found[f"{row} x{size}"]]) for size in SIZES}
        cosine = cosines[row]
        passed = cosine >= required
        summary[row] = {"label": ROWS[row], "rates": rates, "cosine": cosine, "required": required, "valid": passed}
        if row in ("fp32", "auto"):
            summary[row]["runtime"] = runtime_in(log_of(run, row))
        medians = (f"{rate['median']:.1f}" for rate in rates.values())
        lines.append((ROWS[row], *medians, f"{cosine:.6f}", f"{required} {'passed' if passed else 'FAILED'}"))
    headings = ("", *(f"images/s, x{size}" for size in SIZES), "least cosine", "required")
    show(f"The ensemble by precision, median of {run.options.rounds} interleaved rounds", headings, lines)
    if {"fp32", "auto"} <= set(rows):
        print(f"the default runs on {summary['auto']['runtime']}")
        print(f"ready after {starts['first']:.1f} s at its first start, and after {starts['next']:.1f} s at the next")
        summary["auto"] |= {"starts_s": starts, "times_fp32": {}, "times_fastest": {}}
        for size in SIZES:
            times = spread(ratios(found[f"auto x{size}"], found[f"fp32 x{size}"]))
            summary["auto"]["times_fp32"][size] = times
            print(f"auto / fp32 at {size} callers: {times['median']:.2f} ({times['min']:.2f} to {times['max']:.2f})")
            one = summary["auto"]["times_fastest"][size] = compared_with_fastest(found, rows, size)
            print(
                f"auto / fastest ({one['fastest']}) at {size} callers: {one['ratio']:.3f} ({one['low']:.3f} to "
                f"{one['high']:.3f}), {'holds' if one['holds'] else 'FAILED'}"
            )
    return {"summary": summary}
