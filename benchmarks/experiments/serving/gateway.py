"""What does HTTP cost beside gRPC?

Compares each dialect of clip-gateway with gRPC to the same Triton, with one connection of the library and with
ClipClient, and with infinity on request. All embed the same JPEG files. Their vectors are compared before anything is
timed. Beside images and requests per second is the processor time per image: of the callers, of the gateway, and of the
server. A small model shows the difference best.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness.experiment import MODEL, PHOTOS, REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.meters import tree_s
from benchmarks.harness.results import show
from benchmarks.harness.rounds import LEAST_COSINE, cosine_to_first, median_of, ratios, spread
from benchmarks.peers.services import gateway, infinity

if TYPE_CHECKING:
    from benchmarks.harness.worker import Worker

SYSTEMS: Final = {
    "grpc": ("triton", "transport", "gRPC, one connection"),
    "client": ("triton", "client", "ClipClient"),
    "openai": ("gateway", "openai", "gateway, OpenAI, vectors as numbers"),
    "openai-base64": ("gateway", "openai-base64", "gateway, OpenAI, vectors in base64"),
    "infinity-dialect": ("gateway", "infinity", "gateway, infinity's dialect"),
    "form": ("gateway", "transport", "gateway, plain form"),
    "immich": ("gateway", "immich", "gateway, Immich"),
    "infinity": ("infinity", "infinity", "infinity itself, fp32"),
}
"""Name -> the service that it asks, its adapter, and what a reader calls it."""
ONE_IMAGE: Final = frozenset({"immich"})
"""Their requests carry one image."""


@experiment(
    REPOSITORY,
    MODEL,
    PHOTOS,
    option(
        "--systems",
        nargs="+",
        choices=SYSTEMS,
        default=[name for name in SYSTEMS if name != "infinity"],
        help="what to measure",
    ),
    option("--concurrency", type=int, default=8, help="callers"),
    option("--rows", type=int, nargs="+", default=[1, 8], help="images in a request"),
    option("--workers", type=int, default=1, help="processes of the gateway"),
    rounds(3),
    seconds(4.0, "per system, size of a request and round"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure every system in turn."""
    options = run.options
    cells = [(name, rows) for name in options.systems for rows in options.rows if rows == 1 or name not in ONE_IMAGE]
    run.checkpoint(total=len(cells) * options.rounds)
    triton = run.serve(None, "--precision", "fp32")
    front = run.stack.enter_context(gateway(triton.grpc_url, workers=options.workers))
    services = {"triton": (triton.grpc_url, triton.process.pid), "gateway": (front.url, front.process_id)}
    if "infinity" in options.systems:
        weights = (options.model or run.passport.model, run.passport.pretrained)
        other = run.stack.enter_context(infinity(*weights))
        services["infinity"] = (other.url, other.process_id)
    workers = {name: run.load(SYSTEMS[name][1], services[SYSTEMS[name][0]][0], name=name) for name in options.systems}
    cosines = cosine_to_first({name: worker.ready["vectors"] for name, worker in workers.items()})
    processes = {name: process for name, (_, process) in services.items()}
    found = run.in_rounds(
        {
            f"{name} x{rows}": partial(
                timed,
                workers[name],
                processes,
                {"seconds": options.seconds, "concurrency": options.concurrency, "rows": rows},
            )
            for name, rows in cells
        }
    )
    summary = {
        f"{name} x{rows}": {
            "cosine": cosines[name],
            "valid": cosines[name] >= LEAST_COSINE,
            "images_per_second": spread([one["rate"] for one in found[f"{name} x{rows}"]]),
            "requests_per_second": median_of(found[f"{name} x{rows}"], "rate") / rows,
            "p50_ms": median_of((one["latency_ms"] for one in found[f"{name} x{rows}"]), "p50"),
            "to_first": spread(ratios(found[f"{name} x{rows}"], found[f"{options.systems[0]} x{rows}"])),
            "processor_ms": {
                part: median_of((one["processor_ms"] for one in found[f"{name} x{rows}"]), part)
                for part in ("callers", *services)
            },
        }
        for name, rows in cells
    }
    rows_of_table = [
        (
            f"{SYSTEMS[name][2]}, {rows} a request{'' if one['valid'] else ' INVALID'}",
            f"{one['images_per_second']['median']:.1f}",
            f"{one['requests_per_second']:.1f}",
            f"{one['p50_ms']:.1f}",
            f"{one['to_first']['median']:.2f}",
            *(f"{one['processor_ms'][part]:.2f}" for part in ("callers", *services)),
        )
        for (name, rows), one in zip(cells, summary.values(), strict=True)
    ]
    headings = (
        "",
        "images/s",
        "requests/s",
        "p50 ms",
        "to the first",
        *(f"{part} CPU ms" for part in ("callers", *services)),
    )
    show("Medians of the rounds; processor time per image", headings, rows_of_table, width=150)
    return {"model": run.passport.id, "summary": summary}


def timed(worker: Worker, processes: Mapping[str, int], order: Mapping[str, Any]) -> dict[str, Any]:
    """Carry an order out; add the processor time per image of the callers and of each service."""
    every = {"callers": worker.process_id, **processes}
    before = {name: tree_s(process) for name, process in every.items()}
    answer = worker.ask(order)
    return {
        **answer,
        "processor_ms": {
            name: 1e3 * (tree_s(process) - before[name]) / answer["images"] for name, process in every.items()
        },
    }
