"""The Ray cluster that a job runs on: one that exists, or one on this machine."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from clip_client._errors import require
from preprocess_ensemble.errors import ReportedError, first_line

if TYPE_CHECKING:
    from ray.data import ActorPoolStrategy

Result = TypeVar("Result")

EXTRA: Final = "clip-triton[ray]"

_CPUS_PER_WORKER: Final = 4
"""A worker is one process whose threads decode; its event loop serves about this many cores."""

_CONNECT_S: Final = 10.0

_TASKS_PER_CPU: Final = 3
"""Tasks that wait or run at a time: enough for all CPUs, and few enough that their results need little memory."""


class DistributedError(ReportedError):
    """A job on a cluster cannot go on; the message names the partition. Finished partitions stay."""


@contextmanager
def cluster(address: str | None = None) -> Iterator[None]:
    """Connect to the cluster at ``address``; ``"auto"`` is the one that this machine belongs to.

    Without an address, Ray runs on this machine until the block ends, and sends no usage statistics. If the program is
    connected already, nothing changes. Raises ImportError if Ray is missing, and DistributedError if there is no
    cluster at ``address``.
    """
    require("ray.data", EXTRA)
    if address is None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # What Ray's C++ code writes to standard error, such as notes about restarts of actors, is also in Ray's log files.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray

    if ray.is_initialized():
        yield
        return
    try:
        if address is not None:
            _connect_once(address)
        ray.init(
            address=address or "local",
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, RuntimeError, ValueError) as error:
        where = f"there is no Ray cluster at {address}" if address else "Ray cannot be started on this machine"
        raise DistributedError(f"{where}: {first_line(error)}") from error
    try:
        _quieten()
        yield
    finally:
        ray.shutdown()


def _connect_once(address: str) -> None:
    """Raise OSError if nothing answers at ``HOST:PORT``, which Ray would try to reach for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()


def _quieten() -> None:
    from ray.data import DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def pool(workers: int | None) -> tuple[int, ActorPoolStrategy]:
    """Return the CPUs of one worker and the pool of them: at most ``workers``, by default as many as have room.

    If the cluster grows by itself, so does the pool.
    """
    import ray
    from ray.data import ActorPoolStrategy

    cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    per_worker = max(1, min(_CPUS_PER_WORKER, max(cpus, default=1)))
    room = max(1, sum(own // per_worker for own in cpus))
    # Two partitions at a time, so that the end of one and the start of the next overlap.
    return per_worker, ActorPoolStrategy(
        min_size=1,
        max_size=workers,
        initial_size=min(room, workers or room),
        max_tasks_in_flight_per_actor=4,
        max_concurrent_calls_per_actor=2,
    )


def fed_pool(workers: int | None) -> tuple[int, ActorPoolStrategy]:
    """Return the CPUs of one worker that other tasks of a dataset feed, and the pool of them: at most ``workers``.

    A worker holds its CPU for as long as the dataset runs, and the tasks that read need one, too. With few CPUs, some
    of which other actors of the dataset may hold, workers share them with those tasks.
    """
    import ray
    from ray.data import ActorPoolStrategy

    cpus = int(ray.cluster_resources().get("CPU", 0))
    is_shared = 0 < cpus < _CPUS_PER_WORKER
    most = min(workers or cpus, cpus) if is_shared else workers
    return 0 if is_shared else 1, ActorPoolStrategy(min_size=1, max_size=most, max_concurrent_calls_per_actor=2)


def gpu_share() -> float:
    """Return which share of a GPU falls to each CPU of the cluster; 0 if it has no GPU, or PyTorch is missing here."""
    import ray

    resources = ray.cluster_resources()
    has_torch = importlib.util.find_spec("torch") is not None
    return min(1.0, resources.get("GPU", 0) / resources.get("CPU", 1)) if has_torch else 0


def in_tasks(
    function: Callable[..., Result], calls: Iterable[tuple[Any, ...]], *shared: Any, gpu_share: float = 0
) -> Iterator[tuple[int, Result]]:
    """Call ``function(*call, *shared)`` in a Ray task for each of ``calls``; yield number and result of each that ends.

    A task takes a CPU, and ``gpu_share`` of a GPU.

    Ray repeats a task whose worker or machine has died. Raises what a task raises, if that is a
    :class:`.ReportedError`, and DistributedError for whatever else ends it.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    task = ray.remote(num_cpus=1, num_gpus=gpu_share)(function)
    arguments = [ray.put(one) for one in shared]
    most = _TASKS_PER_CPU * max(1, int(ray.cluster_resources().get("CPU", 1)))
    running: dict[Any, int] = {}

    def ended() -> tuple[int, Result]:
        (first,), _ = ray.wait(list(running))
        number = running.pop(first)
        return number, ray.get(first)

    try:
        for number, call in enumerate(calls):
            if len(running) == most:
                yield ended()
            running[task.remote(*call, *arguments)] = number
        while running:
            yield ended()
    except RayTaskError as error:
        if isinstance(error.cause, ReportedError):
            raise error.cause from None
        raise DistributedError(f"a task failed: {first_line(error.cause)}") from error
    except RayError as error:
        raise DistributedError(f"Ray ended the job ({first_line(error)}); run the same again to continue") from error
    finally:
        for reference in running:
            ray.cancel(reference)
