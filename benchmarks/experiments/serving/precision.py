"""How fast and how exact is each precision and provider?

Every row is the whole ensemble on a server of its own: images per second, and the least cosine to the fp32 vectors. A
row below the required cosine of its precision is marked, not hidden.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.fixtures.repository_variants import variant
from benchmarks.harness.experiment import MODEL, REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import cosine_to_first, spread
from benchmarks.harness.venvs import venv_python
from benchmarks.harness.worker import start_together
from preprocess_ensemble.export.parity import REQUIRED_COSINE
from preprocess_ensemble.testing.server import QUIET, serving

ROWS: Final[Mapping[str, str]] = {
    "fp32": "ONNX Runtime CPU, fp32",
    "int8": "ONNX Runtime CPU, int8 (dynamic)",
    "openvino-fp32": "OpenVINO, fp32",
    "openvino-bf16": "OpenVINO, bf16",
}
"""Without fp16, which is for GPUs: on a CPU, ONNX Runtime computes it in fp32, with casts."""
SIZES: Final = (1, 32)
"""Numbers of callers."""


@contextmanager
def openvino_serving(repository: Path, precision: str) -> Iterator[str]:
    """The ensemble with the encoder on OpenVINO, in an environment of its own; gives the gRPC address."""

    def change(config: Any) -> None:
        accelerator = config.optimization.execution_accelerators.cpu_execution_accelerator.add(name="openvino")
        accelerator.parameters["precision"] = precision.upper()

    with (
        variant(repository, change) as changed,
        serving(changed, *QUIET, python=venv_python("openvino").absolute()) as server,
    ):
        yield server.grpc_url


@contextmanager
def exported_serving(run: Run, precision: str) -> Iterator[str]:
    """The model of ``run``, exported again in another precision; gives the gRPC address."""
    with tempfile.TemporaryDirectory() as exported:
        which = ("--model", run.options.model or run.passport.model, "--pretrained", run.passport.pretrained)
        options = (*which, "--precision", precision, "--repository", exported)
        command = (sys.executable, "-m", "preprocess_ensemble.export.command", *options)
        subprocess.run(command, check=True, stdout=sys.stderr)
        with serving(Path(exported), *QUIET) as server:
            yield server.grpc_url


def row_serving(run: Run, row: str) -> AbstractContextManager[str]:
    """The server of one row; gives its gRPC address."""
    if row == "fp32":
        return nullcontext(run.serve().grpc_url)
    provider, _, precision = row.rpartition("-")
    return openvino_serving(run.options.repository, precision) if provider else exported_serving(run, precision)


@experiment(
    REPOSITORY,
    MODEL,
    option("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="of the table (default: all)"),
    rounds(3),
    seconds(6.0, "per row, concurrency and round"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure every row on a server of its own, all in turn."""
    rows = run.options.rows
    urls = start_together(run.stack, {row: row_serving(run, row) for row in rows})
    workers = {row: run.load("transport", url, name=row) for row, url in urls.items()}
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
        medians = (f"{rate['median']:.1f}" for rate in rates.values())
        lines.append((ROWS[row], *medians, f"{cosine:.6f}", f"{required} {'passed' if passed else 'FAILED'}"))
    headings = ("", *(f"images/s, x{size}" for size in SIZES), "least cosine", "required")
    show(f"The ensemble by precision, median of {run.options.rounds} interleaved rounds", headings, lines)
    return {"summary": summary}
