"""Pack the pending items of all calls into requests, send them, and hand out the answers item by item."""

from __future__ import annotations

import asyncio
import copy
import itertools
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from clip_client._balancing.balancer import RETRIED, RetryBudget
from clip_client._deadline import Deadline
from clip_client._errors import ClipError, DeadlineExceeded, ProtocolMismatch, Shed, Unavailable
from clip_client._results import ClientStats
from preprocess_ensemble.contract import ImageStatus

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client._balancing.balancer import Balancer, Server
    from clip_client._config import ClientConfig
    from clip_client._model import ModelInfo, Tower
    from clip_client._transports.base import Answer

Result: TypeAlias = tuple["NDArray[np.float32]", bool] | ClipError
"""(vector (D,), whether the text was too long, so that the vector is that of its beginning); or an error. The vector is
a read-only view of the whole answer: copy it before you hand it out."""

_CLOSED: Final = "The client was closed before this was sent."

_HELD_REQUESTS: Final = 8
"""Number of full requests for which items are encoded ahead; it bounds memory when photos are large."""

_CODES: Final = {status.value: status.name for status in ImageStatus if status is not ImageStatus.OK}
"""Number of a status -> its name. A newer server may send further numbers, and a vector that is not finite has none."""


@dataclass(slots=True, eq=False)
class PendingItem:
    index: int
    source: Any
    tower: Tower
    model: ModelInfo
    deadline: Deadline | None
    """Deadline of the call; without one, None until the item is first sent."""
    on_result: Callable[[PendingItem], None]
    payload: bytes = b""
    """The bytes to send; empty before the item is submitted and once it is finished."""
    submitted_at: float = 0.0
    is_open: bool = True
    """False once the item has its result or was given up."""
    result: Result = field(init=False)


class _Request(NamedTuple):
    server: Server
    items: list[PendingItem]
    deadlines: dict[Deadline, float]
    """Deadline -> time at which the last of its items was submitted."""
    started_at: float


class Sender:
    """Packs waiting items into requests as soon as a server has slots for them; a request is a task.

    It never waits to fill a batch: items that become ready while nothing may be sent fill the next batch. Items of
    different calls may share a request if they belong to one tower; each has its own deadline and its own result.
    """

    def __init__(self, balancer: Balancer, config: ClientConfig, on_mismatch: Callable[[ModelInfo], None]) -> None:
        self._balancer = balancer
        self.why_down = balancer.why_down
        self.config = config
        self._on_mismatch = on_mismatch
        self._loop = asyncio.get_running_loop()
        self._budget = RetryBudget(self._loop.time())
        self._id, self._numbers = os.urandom(12).hex(), itertools.count()  # the parts of a request's id
        self._counts = ClientStats()
        """:meth:`stats` adds the current numbers."""

        # A submitted item is in _waiting or in a request of _requests, until it has its result or is given up.
        self._waiting: OrderedDict[PendingItem, None] = OrderedDict()
        self._requests: dict[asyncio.Task[None], _Request] = {}
        self._held_bytes = 0
        self._most_bytes = _HELD_REQUESTS * config.max_request_bytes
        self._room = asyncio.Event()
        self._is_starting = False
        """True if a task has been made that has not yet taken its items."""
        self._started_at = 0.0  # time at which it was made, for all items that it will take
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False
        self.open_streams: set[Callable[[], None]] = set()
        """Functions with which :meth:`aclose` ends the open streams."""

    @property
    def is_full(self) -> bool:
        return self._held_bytes >= self._most_bytes

    async def has_room(self) -> None:
        while self.is_full:
            self._room.clear()
            await self._room.wait()

    def submit(self, item: PendingItem, payload: bytes) -> None:
        """Queue an item to be sent as ``payload``. After :meth:`aclose` the result is Unavailable at once."""
        if self.closed:
            self.finish(item, Unavailable(_CLOSED))
            return
        item.payload = payload
        self._held_bytes += len(payload)
        self._waiting[item] = None
        if not self._is_starting:
            self._start()
        item.submitted_at = self._started_at

    def give_up(self, items: Iterable[PendingItem]) -> None:
        """Forget items whose results are not needed any more, and cancel requests that only have such items."""
        for item in items:
            if item.is_open:
                item.is_open = False
                self._held_bytes -= len(item.payload)
                item.payload = b""
                self._waiting.pop(item, None)
        for task, request in self._requests.items():
            if not any(item.is_open for item in request.items):
                task.cancel()
        self._start()

    def stats(self) -> ClientStats:
        return replace(
            self._counts,
            images_waiting=len(self._waiting),
            images_in_flight=sum(item.is_open for request in self._requests.values() for item in request.items),
            servers=tuple(server.stats() for server in self._balancer.servers),
        )

    async def aclose(self) -> None:
        """End every stream and cancel every request; callers that still wait get Unavailable."""
        self.closed = True
        for end in list(self.open_streams):
            end()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._requests:
            task.cancel()
        if self._requests:
            await asyncio.wait(list(self._requests))
        self._fail(self._waiting, Unavailable(_CLOSED))
        self._waiting.clear()

    def finish(self, item: PendingItem, result: Result) -> None:
        if item.is_open:
            item.is_open = False
            self._held_bytes -= len(item.payload)
            item.payload = b""
            item.result = result
            item.on_result(item)

    def _fail(self, items: Iterable[PendingItem], error: ClipError) -> None:
        for item in items:
            self.finish(item, copy.copy(error))  # a copy for each, because raising an exception adds to its traceback
        self._room.set()

    def _start(self) -> None:
        """Tell those who wait for room, and send a request at the end of this iteration, so that bursts share it."""
        if not self.is_full:
            self._room.set()
        if self._waiting and not self._is_starting and not self.closed:
            self._is_starting = True
            self._started_at = self._loop.time()
            self._loop.create_task(self._send_waiting(), name="clip_client request")

    async def _send_waiting(self) -> None:
        """Send all requests that servers have slots for: the first in this task, others in tasks of their own."""
        self._is_starting = False
        first: _Request | None = None
        while self._waiting and not self.closed:
            item = next(iter(self._waiting))
            choice = self._balancer.choose(len(self._waiting), item.model.max_batch_size)
            if choice is None:
                self._wake_at(self._balancer.next_attempt_at())
                break
            request = self._take(*choice, item)
            if request.items:
                request.server.limit.started(len(request.items))
                if first is None:
                    first = request
                else:
                    self._loop.create_task(self._send(request), name="clip_client request")
        if first is not None:
            await self._send(first)

    def _wake_at(self, when: float | None) -> None:
        """Start again at ``when``, and when the first waiting item runs out of time.

        The first item is enough: a call with a deadline gives up its own items, and items with their own deadlines were
        sent before, so they wait in front of all others.
        """
        deadline = next(iter(self._waiting)).deadline
        times = [time for time in (when, None if deadline is None else deadline.at) if time is not None]
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(min(times), self._on_timer) if times else None

    def _on_timer(self) -> None:
        self._timer = None
        # Check only the front: under overload the queue holds thousands of items, and one expires every millisecond.
        for item in list(itertools.takewhile(lambda item: item.deadline and item.deadline.expired, self._waiting)):
            del self._waiting[item]
            message = f"timeout_s ran out before a server took the {item.tower.value}.{self.why_down()}"
            self.finish(item, DeadlineExceeded(message))
        self._start()

    def _take(self, server: Server, available_slots: int, first: PendingItem) -> _Request:
        """Remove the items of one request from the queue: those like ``first``, within the slots and byte limit.

        Other items keep their places, so images and texts that alternate also fill requests. The search ends when it
        has passed more than a batch of others.
        """
        items: list[PendingItem] = []
        deadlines: dict[Deadline, float] = {}
        late: dict[PendingItem, Deadline] = {}
        size = others = 0
        tower, model, most_bytes = first.tower, first.model, self.config.max_request_bytes
        own = ample = None  # the deadline of items without a call's, and the last one that leaves time for an answer
        # If a server is down, items are late for that reason, not because of overload.
        latency = None if server.is_down else server.limit.latency_s
        for item in self._waiting:
            if len(items) == available_slots or others > model.max_batch_size:
                break
            if item.tower is not tower or item.model is not model:
                others += 1
                continue
            deadline = item.deadline
            if deadline is None:
                deadline = own = own or Deadline(self.config.timeout_s)
            elif latency is not None and deadline is not ample:
                # Twice the mean latency, because half of all answers take longer than the mean. If late items are sent,
                # goodput falls to zero under overload, because servers work for callers that have left.
                if not deadline.ends_within(2 * latency):
                    ample = deadline
                elif deadline.remaining <= deadline.waited(item.submitted_at):  # half of its time is over
                    late[item] = deadline
                    continue
            size += len(item.payload)
            if size > most_bytes and items:
                break
            item.deadline = deadline
            # The last item of a deadline was submitted last: items that are sent again keep their order.
            deadlines[deadline] = item.submitted_at
            items.append(item)
        for item in (*items, *late):
            del self._waiting[item]
        for item, deadline in late.items():
            self._counts.images_shed += 1
            error = Shed(
                f"{server.endpoint} is overloaded: the {item.tower.value} waited "
                f"{deadline.waited(item.submitted_at):.2f} s, {deadline.remaining:.2f} s are left, and an answer takes "
                f"{latency or 0:.2f} s."
            )
            self._fail([item], error)
        return _Request(server, items, deadlines, self._loop.time())

    async def _send(self, request: _Request) -> None:
        server, items, deadlines, started_at = request
        count, task = len(items), asyncio.current_task(self._loop)
        if task is None or self.closed or not any(item.is_open for item in items):  # given up before the task began
            self._fail(items, Unavailable(_CLOSED))
            self._release(request)
            return
        self._requests[task] = request
        request_id = f"{self._id}{next(self._numbers):08x}"
        payloads = [item.payload for item in items]
        self._counts.bytes_sent += sum(map(len, payloads))
        # The longest time of all items, because the call of an item that has less time gives it up.
        timeout_s = max(deadline.of_request for deadline in deadlines)
        try:
            answer = await server.transport.infer(
                payloads, tower=items[0].tower, request_id=request_id, timeout_s=timeout_s
            )
            now = self._loop.time()
            given = min(deadline.given(submitted_at) for deadline, submitted_at in deadlines.items())
            server.succeeded(count, started_at=started_at, now=now, time_given_s=given)
            self._budget.success()
            self._deliver(answer, items, server, request_id)
        except ClipError as error:
            self._retry_or_fail(request, error)
        except asyncio.CancelledError:
            self._on_cancelled(request)
            raise
        except Exception as error:
            # This is a bug in this package. The loop's exception handler reports it, and all callers get an error.
            message = f"The request failed: internal error ({type(error).__name__})."
            server.limit.release(count)
            self._fail(items, ClipError(message))
            self._loop.call_exception_handler({"message": message, "exception": error, "task": task})
        finally:
            del self._requests[task]
            self._start()

    def _retry_or_fail(self, request: _Request, error: ClipError) -> None:
        server, items, _, started_at = request
        now, has_other = self._loop.time(), self._balancer.has_other(server)
        server.failed(len(items), error, started_at=started_at, now=now, has_other=has_other)
        if isinstance(error, ProtocolMismatch):
            self._on_mismatch(items[0].model)
        if isinstance(error, DeadlineExceeded):
            # Send items again if their call got results meanwhile: a slow server had too much, or a server hangs.
            again = [item for item in items if item.deadline and item.deadline.since > started_at]
        else:
            # A failure inside a server may be the server's fault, so try another server. If the request is the reason,
            # the other server fails as well, and then no server is left.
            elsewhere = type(error) is ClipError and self._balancer.has_other(server)
            again = items if elsewhere or isinstance(error, RETRIED) else []
        if again and self._budget.spend(now):
            self._counts.requests_retried += 1
            # Put them in front, in their order, because an ordered stream waits for them.
            for item in reversed(again):
                if item.is_open:
                    self._waiting[item] = None
                    self._waiting.move_to_end(item, last=False)
        else:
            again = []
        if len(again) < len(items):
            self._counts.requests_failed += 1
            self._fail((item for item in items if item not in again), error)

    def _deliver(self, answer: Answer, items: list[PendingItem], server: Server, request_id: str) -> None:
        tower, model = items[0].tower, items[0].model
        expected, dimension = model.fingerprint_of(tower), answer.vectors.shape[1]
        numbers = answer.vectors.reshape(-1)
        # A sum of squares is finite only if all numbers are, and is made in one pass.
        is_finite = math.isfinite(numbers.dot(numbers))
        for item, vector, status, sentence, fingerprint, truncated in zip(items, *answer, strict=True):
            if fingerprint != expected:
                self._on_mismatch(model)
                result: Result = ProtocolMismatch(
                    f"{server.endpoint} does not serve {model.id}, which it or another server named before; all "
                    "servers of one client must serve one model, and after a change of model call again.",
                    request_id=request_id,
                )
            elif dimension != model.dimension:
                result = ProtocolMismatch(
                    f"{server.endpoint} answered with {dimension} numbers per vector, and {model.id} has "
                    f"{model.dimension}; export the model again.",
                    request_id=request_id,
                )
            elif status or not (is_finite or np.isfinite(vector).all()):
                self._counts.images_failed += 1
                code = _CODES.get(status, "INTERNAL")
                message = sentence or "The server's vector has numbers that are not finite."
                result = tower.error(message, code=code, request_id=request_id)
            else:
                self._counts.images_embedded += 1
                result = vector, truncated
            self.finish(item, result)

    def _on_cancelled(self, request: _Request) -> None:
        now, limit = self._loop.time(), request.server.limit
        if any(deadline.expired for deadline in request.deadlines):
            # Count it as an expired deadline: a call gives up its items a moment before gRPC ends the request.
            limit.expired(len(request.items), started_at=request.started_at, now=now)
        else:
            # Keep the slots taken while the server works on the cancelled request, so that later requests wait in the
            # client and not behind it.
            self._loop.call_at(limit.cancelled(started_at=request.started_at, now=now), self._release, request)
        self._fail(request.items, Unavailable("The client was closed while the request was in flight."))

    def _release(self, request: _Request) -> None:
        request.server.limit.release(len(request.items))
        self._start()
