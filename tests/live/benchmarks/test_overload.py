"""Ten times what a real server can do, for five seconds, from two processes: nothing is lost, and it recovers."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psutil

from benchmarks.fixtures.null_repository import write_null_repository
from benchmarks.fixtures.server import free_port, serving
from benchmarks.harness.worker import Worker
from tests.live.benchmarks import offered_load

if TYPE_CHECKING:
    from pathlib import Path

CAPACITY = 100.0
LOUD_S, CALM_S = 5.0, 3.0
CLIENTS = 2


def health(port: int) -> str:
    """What the supervisor reports: ready, overloaded, failing or restarting."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as response:
            return str(json.load(response)["status"])
    except urllib.error.HTTPError as error:
        with error:
            return str(json.load(error)["status"])


def test_more_than_the_server_can_do(tmp_path: Path) -> None:
    repository = write_null_repository(tmp_path / "models", seconds_per_image=1 / CAPACITY)
    port = free_port()
    with ExitStack() as stack:
        server = stack.enter_context(serving(repository, "--health-port", str(port)))
        workers = [
            stack.enter_context(Worker(f"client {number}", offered_load.client, server.grpc_url))
            for number in range(CLIENTS)
        ]
        processes = psutil.Process(server.process.pid).children(recursive=True)
        rates = [10 * CAPACITY / CLIENTS, 0.2 * CAPACITY / CLIENTS]
        order = [(rates[0], LOUD_S), (rates[1], CALM_S)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(lambda worker: worker.ask(order), workers))
        loud, calm = ([answer["phases"][number] for answer in answers] for number in (0, 1))

        # Every call ended, and in one of three ways; anything else would have ended the worker.
        for phase in loud + calm:
            assert sum(phase["outcomes"].values()) == round(phase["offered_rate"] * phase["seconds"])
            assert set(phase["outcomes"]) <= {"good", "Overloaded", "DeadlineExceeded"}
        assert sum(phase["outcomes"].get("Overloaded", 0) for phase in loud) > 0
        # Without a limit of the clients next to nothing comes back in time. tests/fake_server/test_overload.py tests in
        # simulated time how much does with it, and the recovery.
        assert sum(phase["good_rate"] for phase in loud) > 0.1 * CAPACITY
        # In the last second, long after the noise, every client is served.
        assert all(phase["good_per_second"][-1] > 0 for phase in calm)

        # What the supervisor found amid the noise is true until it looks again.
        deadline = time.monotonic() + 120
        while health(port) != "ready":
            assert time.monotonic() < deadline, "it does not recover"
            time.sleep(0.1)
        assert psutil.Process(server.process.pid).children(recursive=True) == processes
