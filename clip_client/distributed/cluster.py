"""The Ray cluster that a job runs on: one that exists, or one on this machine."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from clip_client._errors import require
from preprocess_ensemble.errors import ReportedError, first_line

EXTRA: Final = "clip-triton[ray]"

_CPUS_PER_WORKER: Final = 4
"""A worker is one process whose threads decode; its client serves about this many cores."""

_CONNECT_S: Final = 10.0

_TASKS_PER_CPU: Final = 3
"""Tasks that wait or run at a time: enough for all CPUs, and few enough that their results need little memory."""

ATTEMPTS: Final = 3
"""Workers that may die with one task: machines go away, but a task that kills each worker must be named."""


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
        with _hushed():
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
        yield
    finally:
        with _hushed():
            ray.shutdown()


def _connect_once(address: str) -> None:
    """Raise OSError if nothing answers at ``HOST:PORT``, which Ray would try to reach for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()


@contextmanager
def _hushed() -> Iterator[None]:
    """Drop what Ray's C++ code, and for as long as they run its daemons, print: the output is for JSON, or nothing."""
    with ExitStack() as stack, open(os.devnull, "wb") as nowhere:
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            kept = os.dup(number)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, number)
            os.dup2(nowhere.fileno(), number)
        yield


def worker_cpus() -> int:
    """Return how many CPUs a worker that embeds asks for: four, or all of the largest machine if that has fewer."""
    import ray

    cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    return max(1, min(_CPUS_PER_WORKER, max(cpus, default=1)))


def gpu_share() -> float:
    """Return which share of a GPU falls to each CPU of the cluster; 0 if it has no GPU, or PyTorch is missing here."""
    import ray

    resources = ray.cluster_resources()
    has_torch = importlib.util.find_spec("torch") is not None
    return min(1.0, resources.get("GPU", 0) / resources.get("CPU", 1)) if has_torch else 0


def in_tasks(
    function: Callable[..., Any],
    calls: Iterable[tuple[Any, ...]],
    *shared: Any,
    cpus: int = 1,
    gpu_share: float = 0,
    workers: int | None = None,
    on_death: Callable[[int], Any] | None = None,
) -> Generator[tuple[int, Any], None, None]:
    """Call ``function(*call, *shared)`` in a Ray task for each of ``calls``; yield number and result of each that ends.

    The values of a generator function come one by one. A task takes ``cpus``, and ``gpu_share`` of a GPU; at most
    ``workers`` run at a time, by default as many as have room, also if the cluster grows. A call whose worker or
    machine has died is repeated when the others have ended, and the second time as the only one. If that worker dies as
    well, ``on_death(number)`` is the result; without it, the job ends.

    ``Dataset.map`` would take seconds to begin and end each step of a search, and turn what a task raises into text.
    Ray Data's pools of actors are not used: after a machine has died, a pool whose actors need more CPUs than remain
    gets no work, and the job never ends.

    Raises what a task raises, if that is a :class:`.ReportedError`, and DistributedError for whatever else ends it.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    # Without limit, Ray would repeat a task that needs more memory than there is.
    task = ray.remote(num_cpus=cpus, num_gpus=gpu_share, max_retries=0)(function)
    arguments = [ray.put(one) for one in shared]
    left: Iterable[tuple[int, tuple[Any, ...]]] = enumerate(calls)
    try:
        for attempt in range(1, ATTEMPTS + 1):
            is_last = attempt == ATTEMPTS
            died = []
            for number, call, result in _results(task, left, arguments, cpus, 1 if is_last else workers):
                if not isinstance(result, RayError):
                    yield number, result
                elif not is_last:
                    died.append((number, call))
                elif on_death is not None:
                    yield number, on_death(number)
                else:
                    raise DistributedError(f"{ATTEMPTS} workers died with one task: {first_line(result)}") from result
            left = died
    except RayTaskError as error:
        if isinstance(error.cause, ReportedError):
            raise error.cause from None
        raise DistributedError(f"a task failed: {first_line(error.cause)}") from error


def _results(
    task: Any, calls: Iterable[tuple[int, tuple[Any, ...]]], arguments: Sequence[Any], cpus: int, workers: int | None
) -> Iterator[tuple[int, tuple[Any, ...], Any]]:
    """Yield number, call and result of each task that ends; the result is a RayError if its worker has died."""
    import ray
    from ray import ObjectRefGenerator
    from ray.exceptions import RayError, RayTaskError

    running: dict[Any, tuple[int, tuple[Any, ...]]] = {}

    def next_result() -> Iterator[tuple[int, tuple[Any, ...], Any]]:
        (first,), _ = ray.wait(list(running))
        number, call = running.pop(first)
        try:
            if isinstance(first, ObjectRefGenerator):
                result = ray.get(next(first))
                running[first] = number, call
            else:
                result = ray.get(first)
        except StopIteration:
            return
        except RayTaskError:
            raise
        except RayError as error:
            result = error
        yield number, call, result

    try:
        for number, call in calls:
            running[task.remote(*call, *arguments)] = number, call
            room = _TASKS_PER_CPU * ray.cluster_resources().get("CPU", 0) // cpus
            while len(running) >= (workers or max(1, room)):
                yield from next_result()
        while running:
            yield from next_result()
    finally:
        for reference in running:
            ray.cancel(reference)
