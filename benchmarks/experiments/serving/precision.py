"""How fast and how exact is each precision and runtime?

Every row is the whole ensemble on a server of its own: images per second, and the least cosine to the fp32 vectors. A
row below the required cosine of its precision is marked, not hidden. Rows in bf16 need a processor that has it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.fixtures.server_setting import variant
from benchmarks.harness.experiment import MODEL, REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import cosine_to_first, ratios, spread
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
        return serving(run.options.repository, *QUIET, "--precision", row, "--log-file", str(log_of(run, row)))
    provider, _, precision = row.rpartition("-")
    return openvino_serving(run.options.repository, precision) if provider else exported_serving(run, precision)


def log_of(run: Run, row: str) -> Path:
    """The server's log in one of the rows ``fp32`` and ``auto``."""
    return run.scratch / f"{row}.log"


def runtime_in(log: Path) -> str:
    """What runs the model, as the server said when it loaded it; empty if the log does not say."""
    found = _RUNS_ON.search(log.read_bytes()) if log.exists() else None
    return found[1].decode() if found else ""


@experiment(
    REPOSITORY,
    MODEL,
    option("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="of the table (default: all)"),
    rounds(3),
    seconds(6.0, "per row, concurrency and round"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure every row on a server of its own, all in turn."""
    rows = [row for row in run.options.rows if has_bf16() or not row.endswith("bf16")]
    for row in run.options.rows:
        if row not in rows:
            print(f"{row} is left out: {NO_BF16}", file=sys.stderr)
    servers = start_together(run.stack, {row: row_serving(run, row) for row in rows})
    workers = {row: run.load("transport", server.grpc_url, name=row) for row, server in servers.items()}
    cosines = cosine_to_first({row: worker.ready["vectors"] for row, worker in workers.items()})
    found = run.in_rounds(
        {
            f"{row} x{size}": partial(worker.ask, {"seconds": run.options.seconds, "concurrency": size})
            for size in SIZES
            for row, worker in workers.items()
        }
    )
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
        summary["auto"]["times_fp32"] = {}
        for size in SIZES:
            times = spread(ratios(found[f"auto x{size}"], found[f"fp32 x{size}"]))
            summary["auto"]["times_fp32"][size] = times
            print(f"auto / fp32 at {size} callers: {times['median']:.2f} ({times['min']:.2f} to {times['max']:.2f})")
    return {"summary": summary}
