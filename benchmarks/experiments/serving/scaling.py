"""How much do more servers behind the client's balancer add?

Each server has cores of its own (or, on a machine with GPUs, a GPU of its own), and one client spreads its images over
all of them. Efficiency is the rate of N over N times the rate of one. On a CPU this shows the balancer and the client,
not GPUs. More servers than this machine has cores or GPUs are listed as not measured. The load generator shares the
cores, so the efficiency is a lower bound.
"""

from __future__ import annotations

import os
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness.experiment import REPOSITORY, Experiment, Run, option, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import cosine_to_first, median_of, of_rounds
from benchmarks.harness.worker import start_together
from preprocess_ensemble.testing.server import QUIET, serving

if TYPE_CHECKING:
    from collections.abc import Sequence

WANTED: Final = (1, 2, 4, 8)
"""Numbers of servers to compare."""
CONCURRENCY: Final = 32


def efficiency(rates: dict[int, float]) -> dict[int, float]:
    """Number of servers -> their rate over so many times the rate of one."""
    return {count: rate / (count * rates[1]) for count, rate in rates.items()}


def shares(cores: Sequence[int], count: int) -> list[Sequence[int]]:
    """``count`` parts of ``cores`` that are equally large, neighbours together; some are left over where it must be.

    A server with a core more than another one would make the efficiency that of the division.
    """
    each = len(cores) // count
    return [cores[number * each : (number + 1) * each] for number in range(count)]


def on_gpus() -> int:
    """How many GPUs there are for the servers: none where ONNX Runtime cannot use any, however many there are."""
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return 0
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def measure(run: Run) -> dict[str, Any]:
    """Start every server at once; each load uses the first N of them."""
    cores, gpus = sorted(os.sched_getaffinity(0)), on_gpus()
    counts = [count for count in WANTED if count <= min(gpus or len(cores), len(cores))]
    checkpoint = run.checkpoint(total=len(counts) * run.options.rounds)
    starting = {
        str(number): serving(run.options.repository, *QUIET, cores=share, gpu=number if gpus else None)
        for number, share in enumerate(shares(cores, max(counts)))
    }
    servers = list(start_together(run.stack, starting).values())
    workers = {}
    for count in counts:
        url = ",".join(server.grpc_url for server in servers[:count])
        workers[count] = run.load("client", url, "--concurrency", str(CONCURRENCY), name=f"{count} servers")
    cosines = cosine_to_first({worker.name: worker.ready["vectors"] for worker in workers.values()})
    for number in run.rounds:
        for count, worker in workers.items():
            checkpoint.cell(f"{count} servers round {number}", partial(worker.measure, run.options.seconds))
    rates = {count: median_of(of_rounds(checkpoint.cells, f"{count} servers"), "rate") for count in counts}
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


EXPERIMENT: Final = Experiment(
    "scaling",
    __doc__,
    measure,
    (
        REPOSITORY,
        rounds(3),
        seconds(6.0, "per number of servers and round"),
        option("--price-per-hour", type=float, help="price of the machine, to print the cost of 1,000 images"),
    ),
)
