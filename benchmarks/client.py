"""What the client costs: ``python -m benchmarks.client``.

ClipClient, tritonclient's asyncio class and perf_analyzer load the same server in a closed loop, each from a process of
its own, one after the other in every round. With a model that does no work the clients are what is measured; with the
real encoder all of them should be as fast as it is. CPU time is the load generator's own, without the server's.
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
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tritonclient.grpc.aio as tritonclient
from rich.console import Console
from rich.table import Table

from benchmarks.harness import RESULTS, Worker, percentiles, write_result
from benchmarks.null_repository import write_null_repository
from benchmarks.perf_analyzer import UNSTABLE, find_or_install, run, write_input
from benchmarks.sample_photos import write_thumbnails
from benchmarks.server import QUIET, serving
from clip_client import ClipClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

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


def analyze(url: str, data: Path, order: dict[str, Any]) -> dict[str, Any]:
    """perf_analyzer with the same load; its CPU time over what it achieved in all the time that it ran."""
    binary, environment = find_or_install()
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
        )
    except RuntimeError as error:
        if UNSTABLE not in str(error):
            raise
        # The round then has none of it.
        return {"offered_in_flight": order["rows"] * order["concurrency"], "rate": None}
    after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    rate = figures["images_per_second"]
    return {
        "offered_in_flight": order["rows"] * order["concurrency"],
        "rate": rate,
        "latency_ms": {"p50": figures["p50_ms"], "p99": figures["p99_ms"]},
        "cpu_us_per_image": 1e6 * cpu / (rate * took),
    }


def measure(url: str, scratch: Path, photos: Path, *, cells: list[tuple[int, int]], arguments: Any) -> dict[str, Any]:
    """All systems in turn, round after round; returns ``"system, concurrency, rows"`` -> the results of its rounds."""
    data = scratch / "input.json"
    write_input(data, [path.read_bytes() for path in sorted(photos.iterdir())])
    runs: dict[str, Any] = {}
    with ExitStack() as stack:
        common = ("--photos", str(photos), "--url", url)
        workers = {
            name: stack.enter_context(Worker(name, "benchmarks.client", "--worker", name, *common)) for name in OPEN
        }
        for number in range(1, arguments.rounds + 1):
            for concurrency, rows in cells:
                order = {"concurrency": concurrency, "rows": rows, "seconds": arguments.seconds}
                for system in SYSTEMS:
                    result = workers[system].ask(order) if system in workers else analyze(url, data, order)
                    runs.setdefault(f"{system}, {concurrency}, {rows}", []).append(result)
                    rate = "not stable" if result["rate"] is None else f"{result['rate']:9.1f} images/s"
                    print(f"round {number}  {system:<14} {concurrency:>3} x {rows:<3} {rate}", file=sys.stderr)
    return runs


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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each client in each round")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--worker", choices=OPEN, help=argparse.SUPPRESS)
    parser.add_argument("--photos", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        images = [path.read_bytes() for path in sorted(arguments.photos.iterdir())]
        asyncio.run(work(arguments.worker, arguments.url, images))
        return

    cells = [(concurrency, rows) for rows in arguments.rows for concurrency in arguments.concurrency]
    results: dict[str, Any] = {}
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as name:
            scratch = Path(name)
            photos = scratch / "photos"
            write_thumbnails(photos)
            repository = write_null_repository(scratch / "models") if model == "null" else arguments.repository
            with serving(repository, *QUIET, "--open-statistics") as server:  # perf_analyzer asks for them
                runs = measure(server.grpc_url, scratch, photos, cells=cells, arguments=arguments)
        results[model] = {"summary": summarize(runs, cells), "runs": runs}
        show(f"{model} model, medians of {arguments.rounds} rounds", results[model]["summary"])
    print(f"kept in {write_result('client', results, arguments.results)}")


if __name__ == "__main__":
    main()
