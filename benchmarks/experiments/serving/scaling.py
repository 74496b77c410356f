"""How much do more servers behind the client's balancer add?

Each server has cores of its own or, with ``--device cuda``, a card of its own, and one client spreads its images over
all of them. Efficiency is the rate of N servers over N times that of one; beside it stands what each card did. The
load shares the cores, so on a CPU the efficiency is a lower bound, and shows the balancer and the client, not GPUs.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.fixtures.server import QUIET, serving
from benchmarks.fixtures.server_setting import ServerSetting
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.meters import gpu_meter
from benchmarks.harness.results import cosine_to_first, median_of, show
from benchmarks.load.adapters import clip_client
from benchmarks.load.worker import Worker, start_load


def measured(worker: Worker, order: dict[str, float], cards: int) -> dict[str, Any]:
    with ExitStack() as meters:
        gpus = [meters.enter_context(gpu_meter(number)) for number in range(cards)]
        answer = worker.ask(order)
    return {**answer, "gpus": gpus}


@experiment(
    REPOSITORY,
    option("--device", choices=("cpu", "cuda"), default="cpu", help="what each server gets one of"),
    option("--servers", type=int, nargs="+", default=[1, 2], help="how many; the first is the base of the efficiency"),
    option("--concurrency", type=int, default=64, help="callers of the one client"),
    rounds(3),
    seconds(6.0, "per number of servers and round"),
)
def measure(run: Run) -> dict[str, Any]:
    options, most = run.options, max(run.options.servers)
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // most
    if not share:
        raise SystemExit(f"{most} servers need {most} cores, and there are {len(cores)}: ask for fewer --servers")
    on_card = options.device == "cuda"
    repository = options.repository
    if on_card:
        repository = run.stack.enter_context(ServerSetting(device="cuda").applied_to(repository))
    urls = []
    for number in range(most):
        # A process inherits the cores of the one that starts it.
        os.sched_setaffinity(0, cores[number * share : (number + 1) * share])
        only = {"CUDA_VISIBLE_DEVICES": str(number)} if on_card else {}
        urls.append(run.stack.enter_context(serving(repository, *QUIET, environment=only)).grpc_url)
    os.sched_setaffinity(0, cores)
    workers = {count: start_load(run, clip_client, ",".join(urls[:count])) for count in options.servers}
    cosines = cosine_to_first({str(count): worker.ready for count, worker in workers.items()})
    order = {"seconds": options.seconds, "concurrency": options.concurrency}
    cards = most if on_card else 0
    cells = {f"{count} servers": partial(measured, worker, order, cards) for count, worker in workers.items()}
    found = run.in_rounds(cells)
    rates = {count: median_of(found[f"{count} servers"], "rate") for count in options.servers}
    first = options.servers[0]
    summary = {
        str(count): {"images_per_second": rate, "efficiency": rate * first / (count * rates[first])}
        for count, rate in rates.items()
    }
    show(f"{most if on_card else share} {'cards' if on_card else 'core(s) a server'}", summary)
    return {"model": run.passport.id, "cores_per_server": share, "cosines": cosines, "summary": summary}
