"""How fast and how exact is each precision and provider?

Every row is the whole ensemble on a server of its own: images per second, and the least cosine to the fp32 vectors. A
row below the required cosine of its precision is marked, not hidden.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.fixtures.repository_variants import variant
from benchmarks.harness.experiment import MODEL, REPOSITORY, Experiment, Run, option, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import cosine_to_first, of_rounds, spread
from benchmarks.harness.venvs import openvino_python
from benchmarks.harness.worker import start_together
from preprocess_ensemble.export.parity import REQUIRED_COSINE
from preprocess_ensemble.model_repository.config import installed_passport
from preprocess_ensemble.testing.server import QUIET, serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROWS: Final[Mapping[str, str]] = {
    "fp32": "ONNX Runtime CPU, fp32",
    "int8": "ONNX Runtime CPU, int8 (dynamic)",
    "openvino-fp32": "OpenVINO, fp32",
    "openvino-bf16": "OpenVINO, bf16",
}
"""fp16 is for GPUs: on a CPU, ONNX Runtime computes it in fp32, with casts."""
BATCH: Final = 32


@contextmanager
def openvino_serving(repository: Path, precision: str) -> Iterator[str]:
    """The ensemble with the encoder on OpenVINO, in an environment of its own; gives the gRPC address."""

    def change(config: Any) -> None:
        accelerator = config.optimization.execution_accelerators.cpu_execution_accelerator.add(name="openvino")
        accelerator.parameters["precision"] = precision.upper()

    with (
        variant(repository, change) as changed,
        serving(changed, *QUIET, python=openvino_python().absolute()) as server,
    ):
        yield server.grpc_url


@contextmanager
def row_serving(row: str, repository: Path, model: str | None) -> Iterator[str]:
    """The server of one row; gives its gRPC address."""
    if row.startswith("openvino"):
        with openvino_serving(repository, row.removeprefix("openvino-")) as url:
            yield url
        return
    with tempfile.TemporaryDirectory() as scratch:
        served = repository
        if row != "fp32":
            served = Path(scratch) / "triton_models"
            export(served, repository, model, row)
        with serving(served, *QUIET) as server:
            yield server.grpc_url


def export(directory: Path, repository: Path, model: str | None, precision: str) -> None:
    """Export the model of ``repository`` in another precision into ``directory``, with ``clip-export``."""
    passport = installed_passport(repository)
    assert passport is not None  # Run.passport has read it.
    which = ("--model", model or passport.model, "--pretrained", passport.pretrained, "--precision", precision)
    command = (sys.executable, "-m", "preprocess_ensemble.export.command", *which, "--repository", str(directory))
    subprocess.run(command, check=True, stdout=sys.stderr)


def measure(run: Run) -> dict[str, Any]:
    """Measure every row on a server of its own, all in turn."""
    rows = run.options.rows
    checkpoint = run.checkpoint(total=2 * run.options.rounds * len(rows))
    starting = {row: row_serving(row, run.options.repository, run.options.model) for row in rows}
    workers = {row: run.load("transport", url, name=row) for row, url in start_together(run.stack, starting).items()}
    cosines = cosine_to_first({row: worker.ready["vectors"] for row, worker in workers.items()})
    for number in run.rounds:
        for concurrency in (1, BATCH):
            for row, worker in workers.items():
                order = {"seconds": run.options.seconds, "concurrency": concurrency}
                checkpoint.cell(f"{row} x{concurrency} round {number}", partial(worker.ask, order))
    summary: dict[str, Any] = {}
    lines = []
    for row in rows:
        required = REQUIRED_COSINE["int8" if row == "int8" else "fp32"]
        rates = {
            size: spread([one["rate"] for one in of_rounds(checkpoint.cells, f"{row} x{size}")]) for size in (1, BATCH)
        }
        cosine = cosines[row]
        passed = cosine >= required
        summary[row] = {"label": ROWS[row], "rates": rates, "cosine": cosine, "required": required, "valid": passed}
        medians = (f"{rates[size]['median']:.1f}" for size in (1, BATCH))
        lines.append((ROWS[row], *medians, f"{cosine:.6f}", f"{required} {'passed' if passed else 'FAILED'}"))
    headings = ("", "images/s, x1", f"images/s, x{BATCH}", "least cosine", "required")
    show(f"The ensemble by precision, median of {run.options.rounds} interleaved rounds", headings, lines)
    return {"summary": summary}


EXPERIMENT: Final = Experiment(
    "precision",
    __doc__,
    measure,
    (
        REPOSITORY,
        MODEL,
        option("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="of the table (default: all)"),
        rounds(3),
        seconds(6.0, "per row, concurrency and round"),
    ),
)
