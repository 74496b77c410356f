"""The Ray cluster that a job runs on: an existing cluster, or Ray on this machine."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from clip_client._errors import require
from preprocess_ensemble.errors import ReportedError, first_line

EXTRA: Final = "ray"

_LOOK_S: Final = 5.0
"""If no task ends for this long, the driver checks whether the running tasks still fit any machine."""
_TASKS_PER_CPU: Final = 3
"""Tasks that wait or run: enough to keep a CPU busy, and few enough that results need little memory."""
ATTEMPTS: Final = 3
"""Workers that may die with one task. Machines go away, but a task that kills every worker must be named."""

_Call = tuple[int, tuple[Any, ...]]  # number of a call, and its own arguments


class DistributedError(ReportedError):
    """A job on a cluster cannot continue; the message names the partition. Finished partitions stay."""


@contextmanager
def cluster(address: str | None = None) -> Iterator[None]:
    """Connect to the cluster at ``address``; ``"auto"`` is the cluster that this machine belongs to.

    Without an address, Ray runs on this machine until the block ends, and sends no usage statistics. If the program is
    already connected, nothing changes. Raises ImportError without Ray, and DistributedError if Ray does not answer.
    """
    require("ray.data", EXTRA)
    if address is None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray's C++ code writes notes to standard error, such as restarts of actors. They are also in Ray's log files.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray

    if ray.is_initialized():
        yield
        return
    try:
        # Ray would try for minutes to reach a HOST:PORT at which nothing answers.
        host, _, port = (address or "").removeprefix("ray://").rpartition(":")
        if port.isdigit():
            socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
        with _hushed():
            ray.init(
                address=address or "local",
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except Exception as error:  # Ray raises a plain Exception if a node did not start in time
        where = f"there is no Ray cluster at {address}" if address else "Ray cannot be started on this machine"
        raise DistributedError(f"{where}: {first_line(error)}") from error
    try:
        yield
    finally:
        with _hushed():
            ray.shutdown()


@contextmanager
def _hushed() -> Iterator[None]:
    """Drop the output of Ray's C++ code, also of daemons that start here: the program's must be JSON, or empty."""
    with ExitStack() as stack, open(os.devnull, "wb") as nowhere:
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            kept = os.dup(number)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, number)
            os.dup2(nowhere.fileno(), number)
        yield


def in_tasks(
    function: Callable[..., Any],
    calls: Iterable[tuple[Any, ...]],
    *shared: Any,
    cpus: int = 1,
    workers: int | None = None,
    on_death: Callable[[int], Any] | None = None,
) -> Generator[tuple[int, Any], None, None]:
    """Call ``function(*call, *shared)`` in a Ray task for each of ``calls``; yield the number and result of each call.

    The values of a generator function come one by one. A task takes ``cpus``, or all CPUs of the largest machine if
    that has fewer. At most ``workers`` tasks run at a time, by default as many as the cluster has room for, also on
    machines that join later. If a worker or machine dies, its call is repeated after the other calls have ended, and
    the second time it runs alone. If that worker dies as well, ``on_death(number)`` is the result; without
    ``on_death``, the job ends.

    ``Dataset.map`` takes seconds to begin and end each step of a search, and turns errors of a task into text. The
    actors of a pool may need more CPUs than remain when a machine has died: then the job never ends.

    Raises the error of a task if it is a :class:`.ReportedError`, and DistributedError for other errors.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    def values(*arguments: Any) -> Iterator[Any]:
        result = function(*arguments)
        if isinstance(result, Iterator):
            yield from result
        else:
            yield result

    # Ray's own retries never end if a task needs more memory than there is.
    task = ray.remote(max_retries=0, num_returns="streaming", name=function.__name__)(values)
    arguments = [ray.put(one) for one in shared]
    left: Iterable[_Call] = enumerate(calls)
    try:
        for attempt in range(1, ATTEMPTS + 1):
            is_last = attempt == ATTEMPTS
            died = []
            for call, result in _results(task, left, arguments, cpus, 1 if is_last else workers):
                if not isinstance(result, RayError):
                    yield call[0], result
                elif not is_last:
                    died.append(call)
                elif on_death is not None:
                    yield call[0], on_death(call[0])
                else:
                    raise DistributedError(f"{ATTEMPTS} workers died on one task: {first_line(result)}") from result
            left = died
    except RayTaskError as error:
        if isinstance(error.cause, ReportedError):
            raise error.cause from None
        raise DistributedError(f"a task failed: {first_line(error.cause)}") from error


def _results(
    task: Any, calls: Iterable[_Call], shared: Sequence[Any], cpus: int, workers: int | None
) -> Iterator[tuple[_Call, Any]]:
    import ray
    from ray.exceptions import RayError, RayTaskError

    running: dict[Any, tuple[_Call, int]] = {}  # task -> call, and CPUs that the task takes

    def next_results() -> Iterator[tuple[_Call, Any]]:
        ready, _ = ray.wait(list(running), timeout=_LOOK_S)
        for reference in ready:
            call, _ = running[reference]
            try:
                yield call, ray.get(next(reference))
            except StopIteration:
                del running[reference]
            except RayTaskError:
                raise
            except RayError as error:
                del running[reference]
                yield call, error
        if not ready:
            # Otherwise Ray would look forever for a machine as large as the lost one.
            largest = max([1, *_cpus_of_machines()])
            for reference in [reference for reference, (_, taken) in running.items() if taken > largest]:
                ray.cancel(reference)

    try:
        for call in calls:
            machines = _cpus_of_machines()
            taken = max(1, min(cpus, max(machines, default=1)))
            running[task.options(num_cpus=taken).remote(*call[1], *shared)] = call, taken
            while len(running) >= (workers or max(1, _TASKS_PER_CPU * sum(machines) // taken)):
                yield from next_results()
        while running:
            yield from next_results()
    finally:
        for reference in running:
            ray.cancel(reference)


def _cpus_of_machines() -> list[int]:
    import ray

    return [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
