"""Rows of all calls, packed into requests, sent, and their answers handed back row by row."""

from __future__ import annotations

import asyncio
import copy
import random
import uuid
from collections import deque
from typing import TYPE_CHECKING, Final

from clip_client._balancing.retry import RetryBudget, is_retried
from clip_client._client_stats import ClientStats, Counters, ServerStats
from clip_client._errors import ClipError, DeadlineExceeded, ImageError, Overloaded, ProtocolMismatch, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from clip_client._balancing.balancer import Balancer, Server
    from clip_client._config import ClientConfig
    from clip_client._image_source import ImageSource
    from clip_client._model import ModelInfo
    from clip_client._transports.base import Answer

_CLOSED: Final = "The client was closed before the image was sent."


class Row:
    """One image on its way."""

    __slots__ = ("abandoned", "deadline", "index", "model", "on_done", "outcome", "payload", "source", "submitted_at")

    def __init__(
        self, index: int, source: ImageSource, model: ModelInfo, deadline: float | None, on_done: Callable[[Row], None]
    ) -> None:
        self.index = index
        self.source = source
        self.model = model
        """The vector must be of this model."""
        self.deadline = deadline
        """Loop time; None until the row is first sent, where the call has no deadline of its own."""
        self.on_done = on_done
        self.payload = b""
        self.submitted_at = 0.0
        self.outcome: NDArray[np.float32] | ClipError | None = None
        """A vector is a read-only view of the whole answer: whoever hands it out makes a copy."""
        self.abandoned = False

    @property
    def open(self) -> bool:
        """True while somebody waits for the outcome."""
        return self.outcome is None and not self.abandoned

    def settle(self, outcome: NDArray[np.float32] | ClipError) -> None:
        """Record the one outcome and tell the owner. What comes later, or for an abandoned row, is dropped."""
        if self.outcome is None and not self.abandoned:
            self.outcome = outcome
            self.on_done(self)
            self.payload = b""


class Sender:
    """Packs waiting rows into requests as soon as a server has slots for them.

    It never waits to fill a batch: rows that become ready while nothing may be sent are what fills the next one.
    Rows of different calls may share a request; each has its own deadline and its own outcome.
    """

    def __init__(self, balancer: Balancer, config: ClientConfig, on_mismatch: Callable[[ModelInfo], None]) -> None:
        self._balancer = balancer
        self._config = config
        self._on_mismatch = on_mismatch
        self._waiting: deque[Row] = deque()
        self._requests: dict[asyncio.Task[None], _Request] = {}
        self._abandoned = 0
        self._closed = False
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._counters = Counters()
        self._loop = asyncio.get_running_loop()
        self._budget = RetryBudget(self._loop.time())
        self._randomness = random.Random()

    def submit(self, rows: Sequence[Row]) -> None:
        """Queue rows whose payloads are there; after the end they get Unavailable at once."""
        if self._closed:
            _settle_all(rows, Unavailable(_CLOSED))
            return
        now = self._loop.time()
        for row in rows:
            row.submitted_at = now
        self._waiting.extend(rows)
        self._schedule()

    def abandon(self, rows: Collection[Row]) -> None:
        """Nobody waits for these any more; a request that carries no other row is cancelled."""
        for row in rows:
            row.abandoned = True
            row.payload = b""
        self._abandoned += len(rows)
        if self._abandoned > max(64, len(self._waiting) // 2):
            # Seldom enough to cost little per row, often enough that the queue never holds mostly dead rows.
            self._drop_closed()
        for task, request in self._requests.items():
            if not any(row.open for row in request.rows):
                task.cancel()
        self._schedule()

    def stats(self) -> ClientStats:
        """Counts so far."""
        counters = self._counters
        servers = tuple(
            ServerStats(
                url=str(server.endpoint),
                images_in_flight=server.limit.in_flight,
                limit=server.limit.limit,
                latency_s=server.limit.latency_s,
                is_down=server.is_down,
            )
            for server in self._balancer.servers
        )
        return ClientStats(
            images_waiting=len(self._waiting),
            images_in_flight=sum(len(request.rows) for request in self._requests.values()),
            images_embedded=counters.images_embedded,
            images_failed=counters.images_failed,
            images_shed=counters.images_shed,
            requests_sent=counters.requests_sent,
            requests_retried=counters.requests_retried,
            requests_failed=counters.requests_failed,
            bytes_sent=counters.bytes_sent,
            servers=servers,
        )

    async def aclose(self) -> None:
        """Cancel every request; whoever still waits gets Unavailable."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._requests)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        waiting, self._waiting = self._waiting, deque()
        _settle_all(waiting, Unavailable(_CLOSED))

    def _schedule(self) -> None:
        # At the end of this turn of the loop, so that a burst of rows travels together.
        if not self._scheduled and self._waiting and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._scheduled = False
        while self._waiting and not self._closed:
            model = self._waiting[0].model
            choice = self._balancer.choose(len(self._waiting), model.max_batch_size)
            if choice is None:
                self._wake_at(self._balancer.next_chance())
                return
            server, available_slots = choice
            rows = self._take(server, available_slots, model)
            if rows:
                request = _Request(server, rows, self._loop.time())
                server.limit.started(len(rows))
                task = asyncio.create_task(self._send(request), name="clip_client request")
                self._requests[task] = request
                task.add_done_callback(self._request_done)

    def _wake_at(self, when: float | None) -> None:
        """Dispatch again when a server has rested, and when the first waiting row runs out of time.

        The first is enough: rows of a call with a deadline are given up by their call, and rows that have one of their
        own were sent before, so they wait in front of all others.
        """
        while self._waiting and not self._waiting[0].open:
            self._waiting.popleft()
        deadline = self._waiting[0].deadline if self._waiting else None
        times = [time for time in (when, deadline) if time is not None]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if times:
            self._timer = self._loop.call_at(min(times), self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        now = self._loop.time()
        # No look at the others: under overload there are thousands, and one of them expires every other millisecond.
        while self._waiting and (deadline := self._waiting[0].deadline) is not None and deadline <= now:
            row = self._waiting.popleft()
            row.settle(DeadlineExceeded("timeout_s ran out before a server took the image."))
        self._schedule()

    def _drop_closed(self) -> None:
        self._waiting = deque(row for row in self._waiting if row.open)
        self._abandoned = 0

    def _take(self, server: Server, available_slots: int, model: ModelInfo) -> list[Row]:
        """Rows for one request: of one model, within the available slots and the byte limit."""
        waiting = self._waiting
        rows: list[Row] = []
        size = 0
        now = self._loop.time()
        # Where a server is down that is the reason why rows are late, and no sign of too much work.
        latency = None if server.is_down else server.limit.latency_s
        while waiting and len(rows) < available_slots:
            row = waiting[0]
            if row.model is not model:
                break
            if row.open and (latency is None or not self._shed(row, server, latency, now)):
                size += len(row.payload)
                if rows and size > self._config.max_request_bytes:
                    break
                if row.deadline is None:
                    row.deadline = now + self._config.timeout_s
                rows.append(row)
            waiting.popleft()
        return rows

    def _shed(self, row: Row, server: Server, latency: float, now: float) -> bool:
        """Give a row up that has waited for more than half of its time and cannot be back in the rest.

        The server would work on it all the same and answer nobody: sent anyway, such rows are how goodput falls to
        nothing under overload. Twice the usual latency, because half of all answers take longer than that.
        """
        if row.deadline is None:
            return False
        remaining = row.deadline - now
        if remaining > min(2 * latency, now - row.submitted_at):
            return False
        self._counters.images_shed += 1
        row.settle(
            Overloaded(
                f"More was asked for than {server.endpoint} can do: the image waited {now - row.submitted_at:.2f} s, "
                f"{max(0.0, remaining):.2f} s are left, and an answer takes {latency:.2f} s."
            )
        )
        return True

    async def _send(self, request: _Request) -> None:
        server, rows, count = request.server, request.rows, len(request.rows)
        request_id = uuid.uuid4().hex
        payloads = [row.payload for row in rows]
        self._counters.requests_sent += 1
        self._counters.bytes_sent += sum(map(len, payloads))
        # The longest deadline of the rows; a row that has less time is given up by its own call.
        timeout_s = max(0.001, max(request.deadlines) - self._loop.time())
        try:
            answer = await server.transport.infer(payloads, request_id=request_id, timeout_s=timeout_s)
        except ClipError as error:
            now = self._loop.time()
            server.failed(count, error, started_at=request.started_at, now=now, randomness=self._randomness)
            self._retry_or_fail(rows, error)
        else:
            now = self._loop.time()
            given = min(deadline - row.submitted_at for deadline, row in zip(request.deadlines, rows, strict=True))
            server.succeeded(count, started_at=request.started_at, now=now, time_given_s=given)
            self._budget.success()
            self._deliver(answer, rows, server, request_id)

    def _retry_or_fail(self, rows: list[Row], error: ClipError) -> None:
        if is_retried(error) and self._budget.spend(self._loop.time()):
            self._counters.requests_retried += 1
            # To the front, in their order: whoever waits for results in order waits for these.
            self._waiting.extendleft(row for row in reversed(rows) if row.open)
        else:
            self._counters.requests_failed += 1
            _settle_all(rows, error)

    def _deliver(self, answer: Answer, rows: list[Row], server: Server, request_id: str) -> None:
        model = rows[0].model
        # Python's own numbers, all at once: taken one by one out of an array they cost more than the rest.
        good = [tuple(fingerprint) == model.fingerprint for fingerprint in answer.fingerprints.tolist()]
        statuses = answer.statuses.tolist()
        if all(good) and not any(statuses) and answer.vectors.shape[1] == model.dimension:
            self._counters.images_embedded += len(rows)
            for row, vector in zip(rows, answer.vectors, strict=True):
                row.settle(vector)
            return
        for number, row in enumerate(rows):
            if good[number]:
                outcome = self._outcome(answer, number, statuses[number], row, server, request_id)
            else:
                outcome = self._mismatch(model, server, request_id)
            if isinstance(outcome, ClipError):
                self._counters.images_failed += isinstance(outcome, ImageError)
            else:
                self._counters.images_embedded += 1
            row.settle(outcome)

    def _mismatch(self, model: ModelInfo, server: Server, request_id: str) -> ProtocolMismatch:
        self._on_mismatch(model)
        return ProtocolMismatch(
            f"{server.endpoint} does not serve {model.id}, which it or another server named before; all servers of "
            "one client must serve one model, and after a change of model the call must be made again.",
            request_id=request_id,
        )

    def _outcome(
        self, answer: Answer, number: int, status: int, row: Row, server: Server, request_id: str
    ) -> NDArray[np.float32] | ClipError:
        model = row.model
        if answer.vectors.shape[1] != model.dimension:
            return ProtocolMismatch(
                f"{server.endpoint} answered with {answer.vectors.shape[1]} numbers per vector, and {model.id} has "
                f"{model.dimension}; export the model again.",
                request_id=request_id,
            )
        if status:
            return ImageError(answer.errors[number], code=_code(status), index=row.index, request_id=request_id)
        vector: NDArray[np.float32] = answer.vectors[number]
        return vector

    def _request_done(self, task: asyncio.Task[None]) -> None:
        request = self._requests.pop(task)
        self._schedule()
        if task.cancelled():
            self._cancelled(request)
        elif (error := task.exception()) is not None:
            # A defect of this package; the loop's exception handler reports it, and nobody is left waiting.
            request.server.limit.release(len(request.rows))
            _settle_all(request.rows, ClipError(f"The request failed unforeseen ({type(error).__name__})."))
            raise error

    def _cancelled(self, request: _Request) -> None:
        now = self._loop.time()
        limit = request.server.limit
        if min(request.deadlines) <= now:
            # A call gives its rows up a moment before gRPC ends the request; it is a deadline all the same.
            limit.expired(len(request.rows), started_at=request.started_at, now=now)
        else:
            # The server does not drop what it was sent: others would wait behind it there, so they wait here.
            self._loop.call_at(
                limit.cancelled(started_at=request.started_at, now=now), self._cancelled_is_done, request
            )
        _settle_all(request.rows, Unavailable("The client was closed while the image was on its way."))

    def _cancelled_is_done(self, request: _Request) -> None:
        request.server.limit.release(len(request.rows))
        self._schedule()


class _Request:
    """Rows that travel together."""

    __slots__ = ("deadlines", "rows", "server", "started_at")

    def __init__(self, server: Server, rows: list[Row], started_at: float) -> None:
        self.server = server
        self.rows = rows
        self.deadlines = [row.deadline for row in rows if row.deadline is not None]
        self.started_at = started_at


def _settle_all(rows: Iterable[Row], error: ClipError) -> None:
    for row in rows:
        # A copy each: a traceback grows onto an exception wherever it is raised.
        row.settle(copy.copy(error))


def _code(status: int) -> str:
    from preprocess_ensemble.contract import ImageStatus

    try:
        return ImageStatus(status).name
    except ValueError:
        # A newer server may know more reasons than this client.
        return "INTERNAL"
