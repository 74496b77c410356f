"""What do more servers give? ``python -m benchmarks scaling``: N servers behind the client's own balancer.

Each server has cores of its own (or, on a machine with GPUs, a GPU of its own), and one client spreads its images over
all of them. Efficiency is the rate of N over N times the rate of one. On a CPU this shows the balancer and the client,
not GPUs: what more than the cores or GPUs of this machine would give is listed as unproved. The load generator shares
the cores, so the efficiency is a lower bound.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.harness.checkpoint import Checkpoint
from benchmarks.harness.results import RESULTS
from benchmarks.harness.rounds import cosine_to_first
from benchmarks.harness.worker import Worker, start_together
from preprocess_ensemble.model_repository.config import installed_passport
from preprocess_ensemble.testing.sample_photos import write_thumbnails
from preprocess_ensemble.testing.server import QUIET, serving

if TYPE_CHECKING:
    from collections.abc import Sequence

WANTED: Final = (1, 2, 4, 8)
"""Numbers of servers that one would like to know about."""
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


def measure(
    checkpoint: Checkpoint, repository: Path, counts: Sequence[int], rounds: int, seconds: float
) -> dict[str, Any]:
    """Fill the checkpoint; every server serves all the time, and each load uses the first N of them."""
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        photos = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_thumbnails(photos)
        starting = {
            str(number): serving(repository, *QUIET, cores=share, gpu=number if on_gpus() else None)
            for number, share in enumerate(shares(cores, max(counts)))
        }
        servers = list(start_together(stack, starting).values())
        workers = {}
        for count in counts:
            url = ",".join(server.grpc_url for server in servers[:count])
            options = ("client", "--url", url, "--photos", str(photos), "--concurrency", str(CONCURRENCY))
            workers[count] = stack.enter_context(Worker(f"{count} servers", "benchmarks.load.worker", *options))
        cosines = cosine_to_first({worker.name: worker.ready["vectors"] for worker in workers.values()})
        for number in range(1, rounds + 1):
            for count, worker in workers.items():
                checkpoint.cell(f"{count} servers round {number}", partial(worker.measure, seconds))
    rates = {
        count: statistics.median(checkpoint.cells[f"{count} servers round {n}"]["rate"] for n in range(1, rounds + 1))
        for count in counts
    }
    return {
        "device": f"{'GPU each' if on_gpus() else 'CPU'}, {len(cores) // max(counts)} core(s) to a server",
        "least_cosine": min(cosines.values()),
        "rates": rates,
        "efficiency": efficiency(rates),
        "unproved": [count for count in WANTED if count not in counts],
    }


def main() -> None:
    """Measure, print, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=Path("triton_models"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="per number of servers and round")
    parser.add_argument("--price-per-hour", type=float, help="of the machine, for the cost of 1,000 images")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    places = min(on_gpus() or cores, cores)
    counts = [count for count in WANTED if count <= places]
    passport = installed_passport(arguments.repository)
    plan = {"counts": counts, "rounds": arguments.rounds, "seconds": arguments.seconds}
    checkpoint = Checkpoint(
        "scaling", {**plan, "model": passport and passport.id}, total=len(counts) * arguments.rounds
    )
    summary = measure(checkpoint, arguments.repository, counts, arguments.rounds, arguments.seconds)
    if arguments.price_per_hour is not None:
        best = max(summary["rates"].values())
        summary["cost_per_1000_images"] = arguments.price_per_hour / 3.6 / best
    table = Table(title=f"{summary['device']}; {CONCURRENCY} callers of one client")
    for heading in ("servers", "images/s", "efficiency"):
        table.add_column(heading, justify="right")
    for count in counts:
        table.add_row(str(count), f"{summary['rates'][count]:.1f}", f"{summary['efficiency'][count]:.0%}")
    for count in summary["unproved"]:
        table.add_row(str(count), "unproved", "")
    Console().print(table)
    if "cost_per_1000_images" in summary:
        print(f"1,000 images cost {summary['cost_per_1000_images']:.4f} at {arguments.price_per_hour} an hour")
    print(f"kept in {checkpoint.finish({'summary': summary}, arguments.results)}")


if __name__ == "__main__":
    main()
