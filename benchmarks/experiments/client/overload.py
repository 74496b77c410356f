"""Does goodput hold at ten times the capacity?

The server's model sleeps, so its capacity is known and the cores stay free. Four independent client processes first
measure the peak in a closed loop, then offer ten times as much for a minute, then half of it. After that a client
without limit or deadline sends ten times the capacity, as any other program might; the supervisor's health is recorded.
"""

from __future__ import annotations

import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import psutil

from benchmarks.fixtures.null_repository import write_null_repository
from benchmarks.harness.experiment import Run, experiment, option, seconds
from benchmarks.harness.meters import sampling
from preprocess_ensemble.testing.server import free_port, serving

if TYPE_CHECKING:
    from benchmarks.harness.worker import Worker

CLIENTS: Final = 4
CALLERS: Final = 64
CAPACITY: Final = 200.0
"""Images per second of the model."""
SHORT_S: Final = 10.0
"""Of the closed loop that finds the peak, and of the half load after the overload."""
SAMPLE_S: Final = 0.5


@contextmanager
def watch(processes: Mapping[str, Sequence[psutil.Process]], health_url: str) -> Iterator[list[dict[str, Any]]]:
    """Until the end of the block, twice a second: memory of processes with all their children, and the health.

    Gives the samples, to which more are added: seconds, ``status``, and the MiB of each of ``processes``.
    """
    samples: list[dict[str, Any]] = []
    start = time.monotonic()

    def sample() -> None:
        memory = {name: sum(map(_family_mb, members)) for name, members in processes.items()}
        samples.append({"s": time.monotonic() - start, "status": health(health_url), **memory})

    with sampling(sample, SAMPLE_S):
        yield samples


def _family_mb(process: psutil.Process) -> float:
    total = 0
    for member in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += member.memory_info().rss
    return total / 2**20


def health(url: str) -> str:
    """What the supervisor reports: ready, overloaded, failing or restarting."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return str(json.load(response)["status"])
    except urllib.error.HTTPError as error:
        with error:
            return str(json.load(error)["status"])


def ask_all(workers: Sequence[Worker], order: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Send all workers the same order at the same time; return their answers."""
    with ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(lambda worker: worker.ask(order), workers))


def growth(samples: Sequence[Mapping[str, Any]], name: str, settled_s: float) -> float:
    """Megabytes between the first sample after ``settled_s`` and the largest of the last quarter."""
    settled = [sample for sample in samples if sample["s"] >= settled_s]
    return float(max(sample[name] for sample in settled[3 * len(settled) // 4 :]) - settled[0][name])


def measure_clients(
    workers: Sequence[Worker], server: psutil.Process, health_url: str, *, seconds: float
) -> dict[str, Any]:
    """The peak, then ten times the peak, then half of it, from all workers together."""
    ask_all(workers, {"callers": CALLERS, "seconds": 2.0})
    peak = sum(answer["rate"] for answer in ask_all(workers, {"callers": CALLERS, "seconds": SHORT_S}))
    share = peak / len(workers)
    clients = [child for child in psutil.Process().children() if child.pid != server.pid]
    with watch({"server_mb": [server], "clients_mb": clients}, health_url) as samples:
        answers = ask_all(workers, {"phases": [[10 * share, seconds], [0.5 * share, SHORT_S]]})
    loud, calm = ([answer["phases"][number] for answer in answers] for number in (0, 1))
    during = [sample for sample in samples if sample["s"] <= seconds]
    calm_per_second = [sum(counts) for counts in zip(*(phase["good_per_second"] for phase in calm), strict=True)]
    return {
        "peak": peak,
        "offered": sum(phase["offered_rate"] for phase in loud),
        "goodput": sum(phase["good_rate"] for phase in loud),
        "goodput_to_peak": sum(phase["good_rate"] for phase in loud) / peak,
        "goodput_of_each": [phase["good_rate"] for phase in loud],
        "latest_ms": max(phase["latest_ms"] for phase in loud + calm),
        "growth_mb": {name: growth(during, name, seconds / 6) for name in ("server_mb", "clients_mb")},
        "calm_offered": sum(phase["offered_rate"] for phase in calm),
        "calm_good_per_second": calm_per_second,
        "answers": answers,
        "samples": samples,
    }


def measure_unlimited(worker: Worker, server: psutil.Process, health_url: str, *, seconds: float) -> dict[str, Any]:
    """Ten times the capacity from a client without a limit; then wait until the supervisor reports ready again."""
    pids = {child.pid for child in server.children(recursive=True)}
    with watch({"server_mb": [server]}, health_url) as samples:
        answer = worker.ask({"unlimited": True, "phases": [[10 * CAPACITY, seconds]]})
        deadline = time.monotonic() + 30 * seconds
        while time.monotonic() < deadline and not _recovered(samples):
            time.sleep(SAMPLE_S)
    statuses = [(sample["s"], sample["status"]) for sample in samples]
    changes = [entry for before, entry in itertools.pairwise(statuses) if entry[1] != before[1]]
    return {
        "answer": answer,
        "statuses": changes,
        "same_processes": pids <= {child.pid for child in server.children(recursive=True)},
        "works_again": worker.ask({"phases": [[0.5 * CAPACITY, 3.0]]})["phases"][0]["outcomes"],
        "samples": samples,
    }


def _recovered(samples: Sequence[Mapping[str, Any]]) -> bool:
    seen = [sample["status"] for sample in list(samples)]
    return any(status != "ready" for status in seen) and seen[-1] == "ready"


@experiment(
    seconds(60.0, "of overload"),
    option("--unlimited-seconds", "--flood-seconds", type=float, default=8.0, help="of the client without a limit"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure our clients, then the client without a limit."""
    repository = write_null_repository(run.scratch / "models", seconds_per_image=1 / CAPACITY)
    port = free_port()
    # Not Run.serve: here the supervisor's canary is part of the question.
    options = ("--health-port", str(port), "--canary-interval-s", "1")
    server = run.stack.enter_context(serving(repository, *options))
    process, health_url = psutil.Process(server.process.pid), f"http://127.0.0.1:{port}/healthz"
    clients = [f"client {number}" for number in range(CLIENTS)]
    workers = [run.worker(name, "benchmarks.load.offered_load", server.grpc_url) for name in clients]
    ours = measure_clients(workers, process, health_url, seconds=run.options.seconds)
    others = measure_unlimited(workers[0], process, health_url, seconds=run.options.unlimited_seconds)
    print(f"model's capacity {CAPACITY:.0f} images/s; peak of {CLIENTS} clients in a closed loop {ours['peak']:.0f}")
    print(f"offered {ours['offered']:.0f}: goodput {ours['goodput']:.0f}, {ours['goodput_to_peak']:.3f} of the peak")
    print(f"answers came at most {ours['latest_ms']:.0f} ms after their deadline")
    print(f"memory grew by {', '.join(f'{mb:.0f} MB ({name})' for name, mb in ours['growth_mb'].items())}")
    print(f"then offered {ours['calm_offered']:.0f}: good in each second {ours['calm_good_per_second']}")
    print(f"a client without a limit: supervisor said {others['statuses']}, then {others['works_again']}")
    return {"capacity": CAPACITY, "overload": ours, "flood": others}
