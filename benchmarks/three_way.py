"""PyTorch, PyTorch behind a port, tensors to Triton, JPEG to Triton, infinity: ``python -m benchmarks.three_way``.

The question: what do callers get from each way of serving one model? All embed the same 256-pixel JPEG files with the
same weights, one image a request, and their vectors are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.float_models import write_float_model
from benchmarks.harness import LEAST_COSINE, RESULTS, Journal, Worker, cosine_to_first, spread
from benchmarks.sample_photos import write_thumbnails
from benchmarks.server import QUIET, serving
from benchmarks.services import infinity, plain_service
from preprocess_ensemble.repository import installed_passport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
OUTSIDE: Final = frozenset({"infinity", "openvino-bf16"})
"""They need an environment of their own."""
IN_PROCESS: Final[Mapping[str, str]] = {"pytorch": "fp32", "pytorch-bf16": "bf16"}
RATIOS: Final = (
    ("ensemble", "plain-batched", 1.05),
    ("ensemble", "plain", 1.5),
    ("openvino-bf16", "infinity", 1.8),
    ("plain-batched", "pytorch", 0.9),
)
"""(one, other, the least ratio of their images per second at the highest concurrency). The last says whether the
baseline is an honest one."""


def start(
    system: str, repository: Path, model: str | None, photos: Path, batch: int, stack: ExitStack, urls: dict[str, str]
) -> Worker:
    """Start what ``system`` needs, unless it runs already, and the worker that loads it."""
    common = ("--photos", str(photos), "--repository", str(repository))
    if system in IN_PROCESS:
        options = ("pytorch", "--batch", str(batch), "--precision", IN_PROCESS[system])
        named = ("--model", model) if model else ()
        return stack.enter_context(Worker(system, "benchmarks.systems", *options, *named, *common))
    passport = installed_passport(repository)
    assert passport is not None
    weights = (model or passport.model, passport.pretrained)
    if system == "infinity":
        target, url = "infinity", stack.enter_context(infinity(*weights))
    elif system.startswith("plain"):
        limit = 32 if system == "plain-batched" else 1
        target, url = "plain", stack.enter_context(plain_service(*weights, max_batch=limit))
    elif system == "openvino-bf16":
        from benchmarks.precision import openvino_serving

        target, url = "transport", stack.enter_context(openvino_serving(repository, "bf16"))
    else:
        if "grpc" not in urls:
            overlay = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            write_float_model(repository, overlay)
            server = stack.enter_context(serving(repository, *QUIET, "--", f"--model-repository={overlay}"))
            urls.update({"grpc": server.grpc_url, "http": server.http_url})
        target = {"ensemble": "transport"}.get(system, system)
        url = urls["http" if system in ("triton-json", "triton-http") else "grpc"]
    return stack.enter_context(Worker(system, "benchmarks.load", target, "--url", url, *common))


def measure(
    journal: Journal,
    repository: Path,
    *,
    model: str | None,
    systems: Sequence[str],
    concurrencies: Sequence[int],
    rounds: int,
    seconds: float,
) -> dict[str, float]:
    """Fill the journal; return system -> least cosine to the first system's vectors."""
    with ExitStack() as stack:
        photos = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_thumbnails(photos)
        urls: dict[str, str] = {}
        # A worker in process has one batch size; it stands for a caller who sends as many images at once.
        workers = {
            (system, size): start(system, repository, model, photos, size, stack, urls)
            for system in systems
            for size in (concurrencies if system in IN_PROCESS else concurrencies[:1])
        }
        cosines = cosine_to_first({system: workers[system, concurrencies[0]].ready["vectors"] for system in systems})
        for concurrency in concurrencies:
            for number in range(1, rounds + 1):
                for system in systems:
                    worker = workers.get((system, concurrency), workers[system, concurrencies[0]])
                    order = {"seconds": seconds, "concurrency": concurrency}
                    name = f"{system} x{concurrency} round {number}"
                    journal.cell(name, partial(worker.ask, order))
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
    parser.add_argument("--seconds", type=float, default=6.0, help="per system, concurrency and round")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    plan = {
        "systems": arguments.systems,
        "concurrency": arguments.concurrency,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
    }
    passport = installed_passport(arguments.repository)
    journal = Journal("three_way", {**plan, "model": passport and passport.id})
    cosines = measure(
        journal,
        arguments.repository,
        model=arguments.model,
        systems=arguments.systems,
        concurrencies=arguments.concurrency,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
    )
    summary = summarise(journal.cells, cosines, arguments.systems, arguments.concurrency, arguments.rounds)
    show(summary, arguments.concurrency, arguments.rounds)
    print(f"kept in {journal.finish({'summary': summary}, arguments.results)}")


if __name__ == "__main__":
    main()
