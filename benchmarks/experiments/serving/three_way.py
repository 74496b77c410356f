"""Which way of serving the model is fastest for its callers?

Compares PyTorch in process, PyTorch behind HTTP, tensors to Triton, JPEG files to Triton, and infinity. All embed the
same 256-pixel JPEG files with the same weights, one image per request. Their vectors are compared before anything is
timed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.experiments.serving.precision import NO_BF16, openvino_serving
from benchmarks.fixtures.float_models import write_float_model
from benchmarks.harness.experiment import MODEL, REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import LEAST_COSINE, cosine_to_first, median_of, ratios, spread
from benchmarks.harness.worker import Worker, start_together
from benchmarks.peers.services import Service, infinity, plain_service
from preprocess_ensemble.runtimes.processor import has_bf16
from preprocess_ensemble.testing.server import QUIET, Server, serving

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
"""The other systems that need a server share one Triton."""
BY_TRANSPORT: Final = frozenset({"ensemble", "openvino-bf16", "plain", "plain-batched"})
"""Systems with the adapter ``transport``; the others have an adapter of their own name."""
IN_PROCESS: Final = frozenset({"pytorch", "pytorch-bf16"})
"""They get batches in place of callers."""
RATIOS: Final = (
    ("ensemble", "plain-batched", 1.05),
    ("ensemble", "plain", 1.5),
    ("openvino-bf16", "infinity", 1.8),
    ("plain-batched", "pytorch", 0.9),
)
"""(one, other, the least ratio of their images per second at the highest concurrency). The last says whether the
baseline is an honest one."""


def services(run: Run) -> dict[str, AbstractContextManager[Any]]:
    """The services that the systems need, not yet started: infinity, the plain service twice, Triton, OpenVINO."""
    repository = run.options.repository
    weights = (run.options.model or run.passport.model, run.passport.pretrained)
    known: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "plain": partial(plain_service, *weights, max_batch=1),
        "plain-batched": partial(plain_service, *weights, max_batch=32),
        "triton": partial(triton, repository),
        "openvino-bf16": partial(openvino_serving, repository, "bf16"),
        "infinity": partial(infinity, *weights),
    }
    wanted = {service_of(system) for system in run.options.systems if system not in IN_PROCESS}
    return {name: start() for name, start in known.items() if name in wanted}


def service_of(system: str) -> str:
    """The service that ``system`` talks to."""
    return system if system in OWN_SERVICE else "triton"


@contextmanager
def triton(repository: Path) -> Iterator[Server]:
    """The ensemble in fp32, as every system that names no precision, and a model that takes FP32 tensors."""
    with tempfile.TemporaryDirectory() as overlay:
        write_float_model(repository, Path(overlay))
        with serving(
            repository, *QUIET, "--precision=fp32", "--", f"--model-repository={overlay}", http=True
        ) as server:
            yield server


def worker(run: Run, system: str, running: Mapping[str, Any]) -> Worker:
    """The load on ``system``, or the system itself if it runs in process."""
    url = "" if system in IN_PROCESS else running[service_of(system)]
    if isinstance(url, Server):
        url = url.http_url if system in ("triton-json", "triton-http") else url.grpc_url
    elif isinstance(url, Service):
        url = url.url
    return run.load("transport" if system in BY_TRANSPORT else system, url, name=system)


@experiment(
    REPOSITORY,
    MODEL,
    option("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="default: all"),
    option("--concurrency", type=int, nargs="+", default=[1, 8, 32], help="callers, or images in a batch"),
    rounds(3),
    seconds(5.0, "per system, concurrency and round"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure every system at every concurrency, all in turn."""
    if not has_bf16() and "openvino-bf16" in run.options.systems:
        print(f"openvino-bf16 is left out: {NO_BF16}", file=sys.stderr)
        run.options.systems.remove("openvino-bf16")
    systems, concurrencies = run.options.systems, run.options.concurrency
    run.checkpoint(total=len(systems) * len(concurrencies) * run.options.rounds)
    running = start_together(run.stack, services(run))
    workers = {system: worker(run, system, running) for system in systems}
    cosines = cosine_to_first({system: one.ready["vectors"] for system, one in workers.items()})
    found: dict[str, list[dict[str, Any]]] = {}
    for size in concurrencies:
        orders = {system: "rows" if system in IN_PROCESS else "concurrency" for system in systems}
        found |= run.in_rounds(
            {
                f"{system} x{size}": partial(one.ask, {"seconds": run.options.seconds, orders[system]: size})
                for system, one in workers.items()
            }
        )
    summary = summarise(found, cosines, systems, concurrencies)
    print_summary(summary, concurrencies, run.options.rounds)
    return {"summary": summary}


def summarise(
    found: Mapping[str, Sequence[Mapping[str, Any]]],
    cosines: Mapping[str, float],
    systems: Sequence[str],
    concurrencies: Sequence[int],
) -> dict[str, Any]:
    """Medians with spread per system and concurrency, and the ratios that the README states."""
    rows = {
        system: {
            "cosine": cosines[system],
            # bf16 rounds, but has the same limit as the others; a system below it does not do the same work.
            "valid": cosines[system] >= LEAST_COSINE,
            "at": {
                str(size): {
                    "images_per_second": spread([one["rate"] for one in found[f"{system} x{size}"]]),
                    "p50_ms": median_of((one["latency_ms"] for one in found[f"{system} x{size}"]), "p50"),
                }
                for size in concurrencies
            },
        }
        for system in systems
    }
    most = max(concurrencies)
    compared: list[dict[str, Any]] = [
        {
            "of": one,
            "to": other,
            "at_concurrency": most,
            "required": required,
            **spread(ratios(found[f"{one} x{most}"], found[f"{other} x{most}"])),
        }
        for one, other, required in RATIOS
        if one in systems and other in systems
    ]
    honest = all(ratio["median"] >= ratio["required"] for ratio in compared if ratio["of"] == "plain-batched")
    return {"systems": rows, "ratios": compared, "valid": honest and all(row["valid"] for row in rows.values())}


def print_summary(summary: Mapping[str, Any], concurrencies: Sequence[int], count: int) -> None:
    """Print the table of the systems, and the ratios."""
    rows = []
    for system, row in summary["systems"].items():
        at = row["at"]
        rates = [f"{at[str(concurrency)]['images_per_second']['median']:.1f}" for concurrency in concurrencies]
        cosine = f"{row['cosine']:.6f}" + ("" if row["valid"] else " INVALID")
        rows.append((SYSTEMS[system], *rates, f"{at[str(concurrencies[0])]['p50_ms']:.0f}", cosine))
    headings = ("system", *(f"x{concurrency}" for concurrency in concurrencies), "p50 ms, x1", "least cosine")
    show(f"Images per second, median of {count} interleaved rounds", headings, rows)
    for ratio in summary["ratios"]:
        verdict = "holds" if ratio["median"] >= ratio["required"] else "DOES NOT HOLD"
        print(
            f"{ratio['of']} / {ratio['to']}: {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}), "
            f"at least {ratio['required']} expected: {verdict}"
        )
