"""PyTorch, PyTorch behind a port, tensors to Triton, JPEG to Triton, infinity: ``python -m benchmarks three_way``.

The question: what do callers get from each way of serving one model? All embed the same 256-pixel JPEG files with the
same weights, one image a request, and their vectors are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.experiments.serving.precision import openvino_serving
from benchmarks.fixtures.float_models import write_float_model
from benchmarks.harness.checkpoint import Checkpoint
from benchmarks.harness.results import RESULTS
from benchmarks.harness.rounds import LEAST_COSINE, cosine_to_first, spread
from benchmarks.harness.worker import Worker, start_together
from benchmarks.peers.services import infinity, plain_service
from preprocess_ensemble.model_repository.config import installed_passport
from preprocess_ensemble.testing.sample_photos import write_thumbnails
from preprocess_ensemble.testing.server import QUIET, Server, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

SYSTEMS: Final[Mapping[str, str]] = {
    "pytorch": "open_clip in process, fp32",
    "pytorch-bf16": "open_clip in process, bf16",
    "plain": "plain service, no batching",
    "plain-batched": "plain service, batching",
    "triton-json": "Triton, FP32 tensors as JSON",
    "triton-http": "Triton, FP32 tensors, HTTP",
    "triton-grpc": "Triton, FP32 tensors, gRPC",
    "ensemble": "ensemble, JPEG over gRPC",
    "client": "ensemble, through ClipClient",
    "openvino-bf16": "ensemble, OpenVINO bf16",
    "infinity": "infinity, fp32",
}
OWN_SERVICE: Final = frozenset({"plain", "plain-batched", "openvino-bf16", "infinity"})
"""The others in need of a server share one Triton."""
TARGET: Final[Mapping[str, str]] = {"ensemble": "transport", "openvino-bf16": "transport", "plain-batched": "plain"}
"""System -> its name in ``targets.TARGETS``, where that is another."""
IN_PROCESS: Final[Mapping[str, str]] = {"pytorch": "fp32", "pytorch-bf16": "bf16"}
RATIOS: Final = (
    ("ensemble", "plain-batched", 1.05),
    ("ensemble", "plain", 1.5),
    ("openvino-bf16", "infinity", 1.8),
    ("plain-batched", "pytorch", 0.9),
)
"""(one, other, the least ratio of their images per second at the highest concurrency). The last says whether the
baseline is an honest one."""


def services(systems: Sequence[str], repository: Path, model: str | None) -> dict[str, AbstractContextManager[Any]]:
    """What has to run for these systems, not yet started: infinity, the plain service twice, Triton, OpenVINO."""
    passport = installed_passport(repository)
    if passport is None:
        raise SystemExit(f"there is no model in {repository}: run clip-export")
    weights = (model or passport.model, passport.pretrained)
    known: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "plain": partial(plain_service, *weights, max_batch=1),
        "plain-batched": partial(plain_service, *weights, max_batch=32),
        "triton": partial(triton, repository),
        "openvino-bf16": partial(openvino_serving, repository, "bf16"),
        "infinity": partial(infinity, *weights),
    }
    wanted = {service_of(system) for system in systems if system not in IN_PROCESS}
    return {name: start() for name, start in known.items() if name in wanted}


def service_of(system: str) -> str:
    """Which of the services ``system`` talks to."""
    return system if system in OWN_SERVICE else "triton"


@contextmanager
def triton(repository: Path) -> Iterator[Server]:
    """The ensemble, and beside it a model that takes FP32 tensors."""
    with tempfile.TemporaryDirectory() as overlay:
        write_float_model(repository, Path(overlay))
        with serving(repository, *QUIET, "--", f"--model-repository={overlay}", http=True) as server:
            yield server


def worker(system: str, size: int, running: Mapping[str, Any], common: Sequence[str], model: str | None) -> Worker:
    """The load on ``system``, or the system itself where it is in process, with batches of ``size``."""
    if system in IN_PROCESS:
        options = ("pytorch", "--batch", str(size), "--precision", IN_PROCESS[system])
        named = ("--model", model) if model else ()
        return Worker(f"{system} {size}", "benchmarks.peers.in_process", *options, *named, *common)
    url = running[service_of(system)]
    if isinstance(url, Server):
        url = url.http_url if system in ("triton-json", "triton-http") else url.grpc_url
    return Worker(system, "benchmarks.load.worker", TARGET.get(system, system), "--url", url, *common)


def measure(
    checkpoint: Checkpoint,
    repository: Path,
    *,
    model: str | None,
    systems: Sequence[str],
    concurrencies: Sequence[int],
    rounds: int,
    seconds: float,
) -> dict[str, float]:
    """Fill the checkpoint; return system -> least cosine to the first system's vectors."""
    with ExitStack() as stack:
        photos = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_thumbnails(photos)
        running = start_together(stack, services(systems, repository, model))
        common = ("--photos", str(photos), "--repository", str(repository))
        # A worker in process has one batch size; it stands for a caller who sends as many images at once.
        workers = {
            (system, size): stack.enter_context(worker(system, size, running, common, model))
            for system in systems
            for size in (concurrencies if system in IN_PROCESS else concurrencies[:1])
        }
        for waited_for in workers.values():
            assert waited_for.ready
        cosines = cosine_to_first({system: workers[system, concurrencies[0]].ready["vectors"] for system in systems})
        for concurrency in concurrencies:
            for number in range(1, rounds + 1):
                for system in systems:
                    measured = workers.get((system, concurrency), workers[system, concurrencies[0]])
                    order = {"seconds": seconds, "concurrency": concurrency}
                    name = f"{system} x{concurrency} round {number}"
                    checkpoint.cell(name, partial(measured.ask, order))
    return cosines


def summarise(
    cells: Mapping[str, Any],
    cosines: Mapping[str, float],
    systems: Sequence[str],
    concurrencies: Sequence[int],
    rounds: int,
) -> dict[str, Any]:
    """Medians with spread per system and concurrency, and the ratios that the README speaks of."""

    def rates(system: str, concurrency: int) -> list[float]:
        return [cells[f"{system} x{concurrency} round {number}"]["rate"] for number in range(1, rounds + 1)]

    rows: dict[str, Any] = {}
    for system in systems:
        # bf16 rounds, so it has the gate's limit as the others have; what is below it is not the same work.
        valid = cosines[system] >= LEAST_COSINE
        rows[system] = {"cosine": cosines[system], "valid": valid, "at": {}}
        for concurrency in concurrencies:
            p50 = [cells[f"{system} x{concurrency} round {n}"]["latency_ms"]["p50"] for n in range(1, rounds + 1)]
            rows[system]["at"][str(concurrency)] = {
                "images_per_second": spread(rates(system, concurrency)),
                "p50_ms": statistics.median(p50),
            }
    most = max(concurrencies)
    ratios: list[dict[str, Any]] = [
        {
            "of": one,
            "to": other,
            "at_concurrency": most,
            "required": required,
            **spread([a / b for a, b in zip(rates(one, most), rates(other, most), strict=True)]),
        }
        for one, other, required in RATIOS
        if one in systems and other in systems
    ]
    honest = all(ratio["median"] >= ratio["required"] for ratio in ratios if ratio["of"] == "plain-batched")
    return {"systems": rows, "ratios": ratios, "valid": honest and all(row["valid"] for row in rows.values())}


def show(summary: Mapping[str, Any], concurrencies: Sequence[int], rounds: int) -> None:
    """Print both tables."""
    table = Table(title=f"Images per second, median of {rounds} interleaved rounds")
    for heading in ("system", *(f"x{concurrency}" for concurrency in concurrencies), "p50 ms, x1", "least cosine"):
        table.add_column(heading, justify="left" if heading == "system" else "right")
    for system, row in summary["systems"].items():
        at = row["at"]
        rates = [f"{at[str(concurrency)]['images_per_second']['median']:.1f}" for concurrency in concurrencies]
        cosine = f"{row['cosine']:.6f}" + ("" if row["valid"] else " INVALID")
        table.add_row(SYSTEMS[system], *rates, f"{at[str(concurrencies[0])]['p50_ms']:.0f}", cosine)
    Console().print(table)
    for ratio in summary["ratios"]:
        verdict = "holds" if ratio["median"] >= ratio["required"] else "DOES NOT HOLD"
        print(
            f"{ratio['of']} / {ratio['to']}: {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}), "
            f"at least {ratio['required']} wanted: {verdict}"
        )


def main() -> None:
    """Measure, print, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=Path("triton_models"))
    parser.add_argument("--model", help="JSON file of a model that open_clip does not know by name")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="per system, concurrency and round")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    plan = {
        "systems": arguments.systems,
        "concurrency": arguments.concurrency,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
    }
    passport = installed_passport(arguments.repository)
    total = len(arguments.systems) * len(arguments.concurrency) * arguments.rounds
    checkpoint = Checkpoint("three_way", {**plan, "model": passport and passport.id}, total=total)
    cosines = measure(
        checkpoint,
        arguments.repository,
        model=arguments.model,
        systems=arguments.systems,
        concurrencies=arguments.concurrency,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
    )
    summary = summarise(checkpoint.cells, cosines, arguments.systems, arguments.concurrency, arguments.rounds)
    show(summary, arguments.concurrency, arguments.rounds)
    print(f"kept in {checkpoint.finish({'summary': summary}, arguments.results)}")


if __name__ == "__main__":
    main()
