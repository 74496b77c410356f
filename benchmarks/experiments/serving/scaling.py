"""How much do more servers behind the client's balancer add?

Each server has cores of its own (or, on a machine with GPUs, a GPU of its own), and one client spreads its images over
all of them. Efficiency is the rate of N over N times the rate of one. On a CPU this shows the balancer and the client,
not GPUs. More servers than this machine has cores or GPUs are listed as not measured. The load generator shares the
cores, so the efficiency is a lower bound.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import onnxruntime

from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import cosine_to_first, median_of
from benchmarks.harness.worker import start_together
from preprocess_ensemble.serving.tensorrt import usable_gpus
from preprocess_ensemble.testing.server import QUIET, serving

WANTED: Final = (1, 2, 4, 8)
"""Numbers of servers to compare."""
CONCURRENCY: Final = 32


def efficiency(rates: dict[int, float]) -> dict[int, float]:
    """Number of servers -> their rate over that number times the rate of one."""
    return {count: rate / (count * rates[1]) for count, rate in rates.items()}


def shares(cores: Sequence[int], count: int) -> list[Sequence[int]]:
    """``count`` parts of ``cores``, equally large, neighbours together; up to ``count - 1`` cores are left over.

    If one server had a core more than another, the efficiency would be that of the division.
    """
    each = len(cores) // count
    return [cores[number * each : (number + 1) * each] for number in range(count)]


@experiment(
    REPOSITORY,
    rounds(3),
    seconds(6.0, "per number of servers and round"),
    option("--price-per-hour", type=float, help="price of the machine, to print the cost of 1,000 images"),
)
def measure(run: Run) -> dict[str, Any]:
    """Start every server at once; each load uses the first N of them."""
    cores = sorted(os.sched_getaffinity(0))
    gpus = usable_gpus() if "CUDAExecutionProvider" in onnxruntime.get_available_providers() else 0
    counts = [count for count in WANTED if count <= min(gpus or len(cores), len(cores))]
    starting = {
        str(number): serving(run.options.repository, *QUIET, cores=share, gpu=number if gpus else None)
        for number, share in enumerate(shares(cores, max(counts)))
    }
    servers = list(start_together(run.stack, starting).values())
    workers = {
        count: run.load("client", ",".join(server.grpc_url for server in servers[:count]), name=f"{count} servers")
        for count in counts
    }
    cosines = cosine_to_first({worker.name: worker.ready["vectors"] for worker in workers.values()})
    order = {"seconds": run.options.seconds, "concurrency": CONCURRENCY}
    found = run.in_rounds({worker.name: partial(worker.ask, order) for worker in workers.values()})
    rates = {count: median_of(found[worker.name], "rate") for count, worker in workers.items()}
    summary: dict[str, Any] = {
        "device": f"{'GPU each' if gpus else 'CPU'}, {len(cores) // max(counts)} core(s) per server",
        "least_cosine": min(cosines.values()),
        "rates": rates,
        "efficiency": efficiency(rates),
        "unproved": [count for count in WANTED if count not in counts],
    }
    rows = [(str(count), f"{rates[count]:.1f}", f"{summary['efficiency'][count]:.0%}") for count in counts]
    rows += [(str(count), "not measured", "") for count in summary["unproved"]]
    show(f"{summary['device']}; {CONCURRENCY} callers of one client", ("servers", "images/s", "efficiency"), rows)
    price = run.options.price_per_hour
    if price is not None:
        summary["cost_per_1000_images"] = price / 3.6 / max(rates.values())
        print(f"1,000 images cost {summary['cost_per_1000_images']:.4f} at {price} per hour")
    return {"summary": summary}
