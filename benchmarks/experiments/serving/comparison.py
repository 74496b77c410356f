"""Systems that embed the same files under the same load, in turn: what three_way and gateway have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.fixtures.server import Server
from benchmarks.harness.meters import tree_s
from benchmarks.harness.results import LEAST_COSINE, median_of, spread
from benchmarks.load.worker import Worker, start_load
from benchmarks.peers.services import Service

if TYPE_CHECKING:
    from benchmarks.harness.experiment import Run
    from benchmarks.load.adapters import Adapter

Found = Mapping[str, Sequence[Mapping[str, Any]]]
"""``SYSTEM xSIZE`` -> its results, one a round."""


@dataclass(frozen=True)
class System:
    """One of the systems that are compared."""

    words: str
    adapter: Adapter
    service: str = ""
    """Service that the system asks. Empty if the model runs in the process of the load; then there are batches in place
    of callers."""
    least_cosine: float = LEAST_COSINE
    """Least cosine to the vectors of the first system; below it, a system does not do the same work."""


def start(run: Run, systems: Mapping[str, System], services: Mapping[str, Server | Service]) -> dict[str, Worker]:
    """Start a load on each system, or the system itself if it runs in process."""
    urls = {"": "", **{name: address(service).url for name, service in services.items()}}
    return {name: start_load(run, one.adapter, urls[one.service], name=name) for name, one in systems.items()}


def address(service: Server | Service) -> Service:
    return Service(service.grpc_url, service.process.pid) if isinstance(service, Server) else service


def measure(
    run: Run,
    systems: Mapping[str, System],
    workers: Mapping[str, Worker],
    orders: Mapping[int, Mapping[str, int]],
    services: Mapping[str, Service] | None = None,
) -> Found:
    cells = {}
    for size, order in orders.items():
        for name, worker in workers.items():
            shape = order if systems[name].service else {"rows": size}
            order_s = {"seconds": run.options.seconds, **shape}
            cells[f"{name} x{size}"] = partial(_timed, worker, order_s, services or {})
    return run.in_rounds(cells)


def _timed(worker: Worker, order: Mapping[str, Any], services: Mapping[str, Service]) -> dict[str, Any]:
    every = {"callers": worker.process_id, **{name: service.process_id for name, service in services.items()}}
    before = {name: tree_s(process) for name, process in every.items()}
    answer = worker.ask(order)
    spent_ms = {name: 1e3 * (tree_s(process) - before[name]) / answer["images"] for name, process in every.items()}
    return {**answer, **({"processor_ms": spent_ms} if services else {})}


def summarise(
    systems: Mapping[str, System], sizes: Sequence[int], found: Found, cosines: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """Medians over the rounds, with their spread, by system and size; ``p50_ms`` is that of one request."""
    return {
        name: {
            "cosine": cosines[name],
            "valid": cosines[name] >= system.least_cosine,
            "at": {str(size): _at(found[f"{name} x{size}"]) for size in sizes if f"{name} x{size}" in found},
        }
        for name, system in systems.items()
    }


def _at(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    parts = results[0].get("processor_ms", ())
    return {
        "images_per_second": spread([one["rate"] for one in results]),
        "p50_ms": median_of((one["latency_ms"] for one in results), "p50"),
        "processor_ms": {part: median_of((one["processor_ms"] for one in results), part) for part in parts},
    }


def rows_of(systems: Mapping[str, System], summary: Mapping[str, Mapping[str, Any]], what: str) -> dict[str, Any]:
    return {
        f"{systems[name].words} x{size}{'' if about['valid'] else ', INVALID'}": {
            f"{what} a second": at["images_per_second"]["median"],
            "p50, ms": at["p50_ms"],
            "least cosine": about["cosine"],
            **({"of odd texts": about["odd"]} if "odd" in about else {}),
            **{f"{part}, CPU ms": spent_ms for part, spent_ms in at["processor_ms"].items()},
        }
        for name, about in summary.items()
        for size, at in about["at"].items()
    }
