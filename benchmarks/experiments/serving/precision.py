"""What each precision and provider gives on this machine: ``python -m benchmarks precision``.

The question: how many images a second does the encoder make, and how far are its vectors from PyTorch's in fp32? Every
row is the whole ensemble on its own server; a row below the gate of its precision is marked, not hidden.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.fixtures.repository_variants import variant
from benchmarks.harness.checkpoint import Checkpoint
from benchmarks.harness.results import RESULTS
from benchmarks.harness.rounds import cosine_to_first, spread
from benchmarks.harness.venvs import openvino_python
from benchmarks.harness.worker import Worker, start_together
from preprocess_ensemble.export.parity import REQUIRED_COSINE
from preprocess_ensemble.model_repository.config import installed_passport
from preprocess_ensemble.testing.sample_photos import write_thumbnails
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
    """Export what ``repository`` holds in another precision, by the command, into ``directory``."""
    passport = installed_passport(repository)
    if passport is None:
        raise SystemExit(f"there is no model in {repository}: run clip-export")
    which = ("--model", model or passport.model, "--pretrained", passport.pretrained, "--precision", precision)
    command = (sys.executable, "-m", "preprocess_ensemble.export.command", *which, "--repository", str(directory))
    subprocess.run(command, check=True, stdout=sys.stderr)


def main() -> None:
    """Measure, print, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=Path("triton_models"))
    parser.add_argument("--model", help="JSON file of a model that open_clip does not know by name")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="per row, concurrency and round")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rounds, seconds, rows = arguments.rounds, arguments.seconds, arguments.rows
    passport = installed_passport(arguments.repository)
    plan = {"rows": rows, "rounds": rounds, "seconds": seconds, "model": passport and passport.id}
    checkpoint = Checkpoint("precision", plan, total=2 * rounds * len(rows))
    with ExitStack() as stack:
        photos = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_thumbnails(photos)
        starting = {row: row_serving(row, arguments.repository, arguments.model) for row in rows}
        common = ("--photos", str(photos), "--repository", str(arguments.repository))
        workers = {
            row: stack.enter_context(Worker(row, "benchmarks.load.worker", "transport", "--url", url, *common))
            for row, url in start_together(stack, starting).items()
        }
        cosines = cosine_to_first({row: worker.ready["vectors"] for row, worker in workers.items()})
        for number in range(1, rounds + 1):
            for concurrency in (1, BATCH):
                for row, worker in workers.items():
                    order = {"seconds": seconds, "concurrency": concurrency}
                    checkpoint.cell(f"{row} x{concurrency} round {number}", partial(worker.ask, order))

    summary = {}
    table = Table(title=f"The ensemble by precision, median of {rounds} interleaved rounds")
    for heading in ("", "images/s, x1", f"images/s, x{BATCH}", "least cosine", "gate"):
        table.add_column(heading, justify="right")
    for row in rows:
        required = REQUIRED_COSINE["int8" if row == "int8" else "fp32"]
        rates = {
            size: spread([checkpoint.cells[f"{row} x{size} round {n}"]["rate"] for n in range(1, rounds + 1)])
            for size in (1, BATCH)
        }
        passed = cosines[row] >= required
        summary[row] = {
            "label": ROWS[row],
            "rates": rates,
            "cosine": cosines[row],
            "required": required,
            "valid": passed,
        }
        medians = (f"{rates[size]['median']:.1f}" for size in (1, BATCH))
        table.add_row(ROWS[row], *medians, f"{cosines[row]:.6f}", f"{required} {'passed' if passed else 'FAILED'}")
    Console().print(table)
    print(f"kept in {checkpoint.finish({'summary': summary}, arguments.results)}")


if __name__ == "__main__":
    main()
