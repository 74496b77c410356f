"""What the client costs: ``python -m benchmarks client``.

ClipClient, tritonclient's asyncio class and perf_analyzer load the same server in a closed loop, each from a process of
its own, one after the other in every round. All send the same photos as they are, in calls of the same number of rows,
and read the same four outputs; no process is pinned, so each shares the cores with the server as the others do. A call
of the other two is a request. ClipClient packs what several callers ask for at one time into requests of up to 32 rows:
with callers of one image each, that is most of what sets it apart, and with 32 rows a call the requests are alike.
perf_analyzer builds its requests before it measures, and does not look at the answers; the other two start from the
files' bytes and end with arrays. With a model that does no work the clients are what is measured; with the real encoder
all of them should be as fast as it is. CPU time is the load generator's own, without the server's.

A run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tritonclient.grpc.aio as tritonclient
from rich.console import Console
from rich.table import Table

from benchmarks.experiments.serving.perf_analyzer import UNSTABLE, find_or_install, run, write_input
from benchmarks.fixtures.null_repository import write_null_repository
from benchmarks.harness.checkpoint import Checkpoint
from benchmarks.harness.results import RESULTS
from benchmarks.harness.rounds import percentiles
from benchmarks.harness.worker import Worker
from clip_client import ClipClient
from preprocess_ensemble.testing.sample_photos import write_thumbnails
from preprocess_ensemble.testing.server import QUIET, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    Send = Callable[[Sequence[bytes]], Awaitable[None]]

SYSTEMS: Final = ("ClipClient", "tritonclient", "perf_analyzer")
OUTPUTS: Final = ("embedding", "status", "error", "fingerprint")


async def closed_loop(send: Send, images: list[bytes], order: dict[str, Any]) -> dict[str, Any]:
    """Keep ``concurrency`` calls of ``rows`` images under way for ``seconds``."""
    rows, seconds = order["rows"], order["seconds"]
    batches = [[images[(first + row) % len(images)] for row in range(rows)] for first in range(len(images))]
    latencies_ms: list[float] = []
    cpu, start = time.process_time(), time.perf_counter()

    async def caller(number: int) -> None:
        while (then := time.perf_counter()) < start + seconds:
            await send(batches[(number + len(latencies_ms)) % len(batches)])
            latencies_ms.append(1e3 * (time.perf_counter() - then))

    await asyncio.gather(*(caller(number) for number in range(order["concurrency"])))
    took, cpu = time.perf_counter() - start, time.process_time() - cpu
    done = rows * len(latencies_ms)
    return {
        "offered_in_flight": rows * order["concurrency"],
        "rate": done / took,
        "latency_ms": percentiles(latencies_ms),
        "cpu_us_per_image": 1e6 * cpu / done,
    }


@asynccontextmanager
async def clip_client(url: str) -> AsyncIterator[Send]:
    """The library, as programs use it."""
    async with ClipClient(url, timeout_s=600, transfer="original") as clip:

        async def send(images: Sequence[bytes]) -> None:
            (await clip.embed(images)).raise_for_errors()

        yield send


@asynccontextmanager
async def triton_client(url: str) -> AsyncIterator[Send]:
    """tritonclient's asyncio class, as its examples use it, with all that the library reads of an answer."""
    outputs = [tritonclient.InferRequestedOutput(name) for name in OUTPUTS]
    async with tritonclient.InferenceServerClient(url) as client:

        async def send(images: Sequence[bytes]) -> None:
            rows = np.array(images, dtype=object).reshape(-1, 1)
            tensor = tritonclient.InferInput("image", list(rows.shape), "BYTES")
            tensor.set_data_from_numpy(rows)
            answer = await client.infer("clip_image", [tensor], outputs=outputs)
            read = {name: answer.as_numpy(name) for name in OUTPUTS}
            if read["status"].any():
                raise RuntimeError(f"an image failed: {read['error']}")

        yield send


OPEN: Final = {"ClipClient": clip_client, "tritonclient": triton_client}


async def work(client: str, url: str, images: list[bytes]) -> None:
    """Answer orders (see ``harness.Worker``) with what this client achieved."""
    async with OPEN[client](url) as send:
        await send(images[:1])
        print(json.dumps({"ready": True}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await closed_loop(send, images, json.loads(line))), flush=True)


def analyze(url: str, data: Path, order: dict[str, Any], rate: float) -> dict[str, Any]:
    """perf_analyzer with the same load; its CPU time over what it achieved in all the time that it ran.

    It measures in three windows or more until they agree; each is about half as long as the others measure, at
    ``rate``.
    """
    binary, environment = find_or_install()
    requests = max(1, round(rate * order["seconds"] / 2 / order["rows"]))
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    try:
        figures = run(
            binary,
            environment,
            model="clip_image",
            url=url,
            data=data,
            concurrency=order["concurrency"],
            rows=order["rows"],
            requests=requests,
            stability_percent=20,
        )
    except RuntimeError as error:
        if UNSTABLE not in str(error):
            raise
        # The round then has none of it.
        return {"offered_in_flight": order["rows"] * order["concurrency"], "rate": None}
    after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    achieved = figures["images_per_second"]
    return {
        "offered_in_flight": order["rows"] * order["concurrency"],
        "rate": achieved,
        "latency_ms": {"p50": figures["p50_ms"], "p99": figures["p99_ms"]},
        "cpu_us_per_image": 1e6 * cpu / (achieved * took),
    }


def measure(
    checkpoint: Checkpoint, model: str, repository: Path, scratch: Path, *, cells: list[tuple[int, int]], arguments: Any
) -> dict[str, Any]:
    """All systems in turn, round after round; returns ``"system, concurrency, rows"`` -> the results of its rounds."""
    rounds = range(1, (arguments.rounds if model == "null" else arguments.real_rounds) + 1)
    names = {
        (number, cell, system): f"{model}, round {number}, {cell[0]} x {cell[1]}, {system}"
        for number in rounds
        for cell in cells
        for system in SYSTEMS
    }
    with ExitStack() as stack:
        measured: Callable[[str, tuple[int, int]], dict[str, Any]] = _nothing_left
        if not checkpoint.has(*names.values()):
            measured = stack.enter_context(_systems(repository, scratch, arguments.seconds))
        runs: dict[str, Any] = {}
        for (_, cell, system), name in names.items():
            result = checkpoint.cell(name, partial(measured, system, cell))
            runs.setdefault(f"{system}, {cell[0]}, {cell[1]}", []).append(result)
    return runs


def _nothing_left(system: str, cell: tuple[int, int]) -> dict[str, Any]:
    raise AssertionError("the checkpoint had all of it")


@contextmanager
def _systems(
    repository: Path, scratch: Path, seconds: float
) -> Iterator[Callable[[str, tuple[int, int]], dict[str, Any]]]:
    """Start a server and the load generators; gives what measures a system in a cell."""
    photos, data = scratch / "photos", scratch / "input.json"
    if not photos.exists():
        write_thumbnails(photos)
        write_input(data, [path.read_bytes() for path in sorted(photos.iterdir())])
    with ExitStack() as stack:
        # perf_analyzer asks for statistics.
        url = stack.enter_context(serving(repository, *QUIET, "--open-statistics")).grpc_url
        common = ("--photos", str(photos), "--url", url)
        workers = {
            name: stack.enter_context(Worker(name, "benchmarks.experiments.client.client", "--worker", name, *common))
            for name in OPEN
        }
        rates: dict[tuple[int, int], float] = {}

        def measured(system: str, cell: tuple[int, int]) -> dict[str, Any]:
            order = {"concurrency": cell[0], "rows": cell[1], "seconds": seconds}
            if system not in workers:
                # A run that was stopped may go on with perf_analyzer: then the rate is asked for again.
                rate = rates.get(cell) or workers["ClipClient"].ask(order)["rate"]
                return analyze(url, data, order, rate)
            result = workers[system].ask(order)
            rates[cell] = result["rate"]
            return result

        yield measured


def summarize(runs: dict[str, Any], cells: list[tuple[int, int]]) -> dict[str, Any]:
    """Medians over the rounds, and ClipClient's rate over perf_analyzer's within each round."""
    found: dict[str, Any] = {}
    for concurrency, rows in cells:
        of = {system: runs[f"{system}, {concurrency}, {rows}"] for system in SYSTEMS}
        pairs = [pair for pair in zip(of["ClipClient"], of[SYSTEMS[-1]], strict=True) if pair[1]["rate"] is not None]
        stable = {name: [one for one in rounds if one["rate"] is not None] for name, rounds in of.items()}
        found[f"{concurrency} x {rows}"] = {
            "to_perf_analyzer": _median([ours["rate"] / theirs["rate"] for ours, theirs in pairs]),
            "images_per_second": {name: _median([one["rate"] for one in rounds]) for name, rounds in stable.items()},
            "cpu_us_per_image": {
                name: _median([one["cpu_us_per_image"] for one in rounds]) for name, rounds in stable.items()
            },
            "p50_ms": {name: _median([one["latency_ms"]["p50"] for one in rounds]) for name, rounds in stable.items()},
        }
    return found


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _text(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def show(title: str, summary: dict[str, Any]) -> None:
    """Print one table: rate and CPU of each system."""
    table = Table(title=title)
    for heading in ("callers x rows", *(f"{name}: images/s, CPU us" for name in SYSTEMS), "to perf_analyzer"):
        table.add_column(heading, justify="right")
    for cell, line in summary.items():
        rates, costs = line["images_per_second"], line["cpu_us_per_image"]
        pairs = (f"{_text(rates[name])}, {_text(costs[name])}" for name in SYSTEMS)
        table.add_row(cell, *pairs, _text(line["to_perf_analyzer"], 2))
    Console(width=140).print(table)


def main() -> None:
    """Measure, print, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=Path("triton_models"))
    parser.add_argument("--models", nargs="+", choices=("null", "real"), default=["null", "real"])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rounds", type=int, default=3, help="with the null encoder")
    parser.add_argument("--real-rounds", type=int, default=2, help="with the real one")
    parser.add_argument(
        "--real-in-flight",
        type=int,
        default=64,
        help="leave out what keeps more images under way with the real encoder: a CPU needs minutes for them",
    )
    parser.add_argument("--seconds", type=float, default=2.5, help="of each client in each round")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--worker", choices=OPEN, help=argparse.SUPPRESS)
    parser.add_argument("--photos", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        images = [path.read_bytes() for path in sorted(arguments.photos.iterdir())]
        asyncio.run(work(arguments.worker, arguments.url, images))
        return

    plan = {
        name: getattr(arguments, name)
        for name in ("models", "concurrency", "rows", "rounds", "real_rounds", "real_in_flight", "seconds")
    }
    checkpoint = Checkpoint("client", {**plan, "repository": str(arguments.repository)})
    cells = [(concurrency, rows) for rows in arguments.rows for concurrency in arguments.concurrency]
    summaries: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for model in arguments.models:
            if model == "null":
                repository, chosen = write_null_repository(scratch / "models"), cells
            else:
                repository = arguments.repository
                chosen = [cell for cell in cells if cell[0] * cell[1] <= arguments.real_in_flight]
            runs = measure(checkpoint, model, repository, scratch, cells=chosen, arguments=arguments)
            summaries[model] = summarize(runs, chosen)
            show(f"{model} encoder, medians of the rounds", summaries[model])
    print(f"kept in {checkpoint.finish({'summary': summaries}, arguments.results)}")


if __name__ == "__main__":
    main()
