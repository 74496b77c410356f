"""Pack the pending items of all calls into requests, send them, and hand out the answers item by item."""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client._balancing.balancer import RETRIED, RetryBudget
from clip_client._deadline import Deadline
from clip_client._errors import ClipError, DeadlineExceeded, ProtocolMismatch, Shed, Unavailable
from clip_client._pipeline.pending_item import PendingItem, Result
from clip_client._results import ClientStats
from preprocess_ensemble.contract import ImageStatus

if TYPE_CHECKING:
    from clip_client._balancing.balancer import Balancer, Server
    from clip_client._config import ClientConfig
    from clip_client._model import ModelInfo, Tower
    from clip_client._transports.base import Answer

_CLOSED: Final = "The client was closed before this was sent."

_HELD_REQUESTS: Final = 8
"""Number of full requests for which items are encoded ahead; it bounds memory when photos are large."""

_CODES: Final = {status.value: status.name for status in ImageStatus if status is not ImageStatus.OK}
"""Number of a status -> its name. A newer server may send further numbers, and a vector that is not finite has none."""


class Sender:
    """Packs waiting items into requests as soon as a server has slots for them.

    It never waits to fill a batch: items that become ready while nothing may be sent fill the next batch. Items of
    different calls may share a request if they belong to one tower; each has its own deadline and its own future.
    """

    def __init__(self, balancer: Balancer, config: ClientConfig, on_mismatch: Callable[[ModelInfo], None]) -> None:
        self._balancer = balancer
        self.config = config
        self._on_mismatch = on_mismatch
        self._loop = asyncio.get_running_loop()
        self._budget = RetryBudget(self._loop.time())
        self._counts = ClientStats()
        """Counts; :meth:`stats` adds the numbers of the present moment."""

        # A submitted item is in _waiting or in a request of _requests until it has its result. A cancelled item may
        # stay in _waiting for a while; _cancelled counts cancelled items since the last clean-up.
        self._waiting: deque[PendingItem] = deque()
        self._requests: dict[asyncio.Task[None], _Request] = {}
        self._cancelled = 0
        self._is_cleaning_up = False
        self._max_bytes = _HELD_REQUESTS * config.max_request_bytes
        self._held_bytes = 0
        """Bytes of the items in _waiting and _requests."""
        self._room = asyncio.Event()
        self._dispatch_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False
        self.open_streams: set[Callable[[], None]] = set()
        """Functions with which :meth:`aclose` ends the open streams."""

    @property
    def is_full(self) -> bool:
        """True if the unfinished items use up the memory for items."""
        return self._held_bytes >= self._max_bytes

    async def has_room(self) -> None:
        """Wait while the sender is full."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()

    def submit(self, payload: bytes, tower: Tower, model: ModelInfo, deadline: Deadline | None) -> PendingItem:
        """Queue an item; return the future of its result. After :meth:`aclose` the result is Unavailable at once."""
        item = PendingItem(payload, tower, model, deadline, self._loop.time(), self._on_item_cancelled, self._loop)
        self._held_bytes += len(payload)
        if self.closed:
            self._finish(item, Unavailable(_CLOSED))
        else:
            self._waiting.append(item)
            if not self._dispatch_scheduled:
                self._schedule()
        return item

    def stats(self) -> ClientStats:
        return replace(
            self._counts,
            images_waiting=sum(not item.done() for item in self._waiting),
            images_in_flight=sum(len(request.items) for request in self._requests.values()),
            servers=tuple(server.stats() for server in self._balancer.servers),
        )

    async def aclose(self) -> None:
        """End every stream and cancel every request; callers that still wait get Unavailable."""
        self.closed = True
        for end in list(self.open_streams):
            end()
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._requests)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._fail(self._waiting, Unavailable(_CLOSED))
        self._waiting.clear()

    # The end of an item.

    def _finish(self, item: PendingItem, result: Result) -> None:
        if not item.done():
            item.set_result(result)
            self._forget(item)

    def _fail(self, items: Iterable[PendingItem], error: ClipError) -> None:
        for item in items:
            # Copy the error for each item, because raising an exception adds to its traceback.
            self._finish(item, copy.copy(error))

    def _forget(self, item: PendingItem) -> None:
        self._held_bytes -= len(item.payload)
        item.payload = b""
        if self._held_bytes < self._max_bytes:  # not the property: this runs for every item
            self._room.set()

    def _on_item_cancelled(self, item: PendingItem) -> None:
        self._forget(item)
        self._cancelled += 1
        if not self._is_cleaning_up:
            # Clean up once for all items of a call.
            self._is_cleaning_up = True
            self._loop.call_soon(self._clean_up)

    def _clean_up(self) -> None:
        """Drop cancelled items, and cancel requests whose items are all cancelled or finished."""
        self._is_cleaning_up = False
        if self._cancelled > max(64, len(self._waiting) // 2):
            # Do this seldom, so that it costs little per item, but before most of the queue is cancelled.
            self._waiting = deque(item for item in self._waiting if not item.done())
            self._cancelled = 0
        for task, request in self._requests.items():
            if all(item.done() for item in request.items):
                task.cancel()
        self._schedule()

    # The choice of the next items.

    def _schedule(self) -> None:
        # Dispatch at the end of this iteration of the loop, so that a burst of items shares a request.
        if not self._dispatch_scheduled and self._waiting and not self.closed:
            self._dispatch_scheduled = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_scheduled = False
        while self._waiting and not self.closed:
            first = self._waiting[0]
            choice = self._balancer.choose(len(self._waiting), first.model.max_batch_size)
            if choice is None:
                self._wake_at(self._balancer.next_attempt_at())
                return
            server, available_slots = choice
            items = self._take(server, available_slots, first.tower, first.model)
            if items:
                request = _Request(server, items, self._loop.time())
                server.limit.started(len(items))
                task = asyncio.create_task(self._send(request), name="clip_client request")
                self._requests[task] = request
                task.add_done_callback(self._on_request_done)

    def _wake_at(self, when: float | None) -> None:
        """Dispatch again at ``when``, and when the first waiting item runs out of time.

        The first item is enough: a call with a deadline gives up its own items, and items with their own deadlines were
        sent before, so they wait in front of all others.
        """
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        deadline = self._waiting[0].deadline if self._waiting else None
        times = [time for time in (when, None if deadline is None else deadline.at) if time is not None]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if times:
            self._timer = self._loop.call_at(min(times), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        # Check only the front of the queue: under overload it holds thousands of items, and one expires every
        # millisecond.
        while self._waiting and (deadline := self._waiting[0].deadline) is not None and deadline.expired:
            item = self._waiting.popleft()
            error = DeadlineExceeded(f"timeout_s ran out before a server took the {item.tower.value}.")
            self._finish(item, error)
        self._schedule()

    def _take(self, server: Server, available_slots: int, tower: Tower, model: ModelInfo) -> list[PendingItem]:
        """Remove the items of one request from the queue: all of one tower, within the slots and the byte limit.

        Items of the other tower keep their places, so that images and texts in turn still share requests.
        """
        waiting = self._waiting
        items: list[PendingItem] = []
        others: list[PendingItem] = []
        size = 0
        of_item = Deadline(self.config.timeout_s, self._loop.time)
        # If a server is down, items are late for that reason, not because of overload.
        latency = None if server.is_down else server.limit.latency_s
        while waiting and len(items) < available_slots:
            item = waiting[0]
            if item.tower is not tower or item.model is not model:
                if len(others) == model.max_batch_size:
                    break
                others.append(waiting.popleft())
                continue
            deadline = item.deadline or of_item
            is_late = latency is not None and deadline.ends_within(2 * latency) and self._shed(item, server, latency)
            if not is_late and not item.done():
                size += len(item.payload)
                if items and size > self.config.max_request_bytes:
                    break
                item.deadline = deadline
                items.append(item)
            waiting.popleft()
        waiting.extendleft(reversed(others))
        return items

    def _shed(self, item: PendingItem, server: Server, latency: float) -> bool:
        """Fail an item that has waited for more than half of its time and cannot be answered in the rest.

        The server would still work on the item, for a caller that has left. If such items are sent, goodput falls to
        zero under overload. An item is late at twice the mean latency, because half of all answers take longer than the
        mean.
        """
        if item.deadline is None or item.done():
            return False
        remaining, waited = item.deadline.remaining, item.deadline.waited(item.submitted_at)
        if remaining > waited:
            return False
        self._counts.images_shed += 1
        error = Shed(
            f"{server.endpoint} is overloaded: the {item.tower.value} waited {waited:.2f} s, "
            f"{remaining:.2f} s are left, and an answer takes {latency:.2f} s."
        )
        self._finish(item, error)
        return True

    # The way of a request.

    async def _send(self, request: _Request) -> None:
        server, items, count = request.server, request.items, len(request.items)
        request_id = uuid.uuid4().hex
        payloads = [item.payload for item in items]
        self._counts.bytes_sent += sum(map(len, payloads))
        # Take the longest time of all items. If an item has less time, its call gives it up.
        deadlines = request.deadlines
        timeout_s = max(deadline.of_request for deadline in set(deadlines))
        try:
            answer = await server.transport.infer(
                payloads, tower=items[0].tower, request_id=request_id, timeout_s=timeout_s
            )
        except ClipError as error:
            now = self._loop.time()
            has_other = self._balancer.has_other(server)
            server.failed(count, error, started_at=request.started_at, now=now, has_other=has_other)
            if isinstance(error, ProtocolMismatch):
                self._on_mismatch(items[0].model)
            self._retry_or_fail(request, error, now)
        else:
            now = self._loop.time()
            given = min(deadline.given(item.submitted_at) for deadline, item in zip(deadlines, items, strict=True))
            server.succeeded(count, started_at=request.started_at, now=now, time_given_s=given)
            self._budget.success()
            self._deliver(answer, items, server, request_id)

    def _retry_or_fail(self, request: _Request, error: ClipError, now: float) -> None:
        items = request.items
        if isinstance(error, DeadlineExceeded):
            # Send items again if their call got results meanwhile: a slow server had too much, or a server hangs.
            again = [item for item in items if item.deadline is not None and item.deadline.since > request.started_at]
        else:
            # A failure inside a server may be the server's fault, so try another server. If the request is the reason,
            # the other server fails as well, and then no server is left.
            elsewhere = type(error) is ClipError and self._balancer.has_other(request.server)
            again = items if elsewhere or isinstance(error, RETRIED) else []
        if again and self._budget.spend(now):
            self._counts.requests_retried += 1
            # Put them in front, in their order, because an ordered stream waits for them.
            self._waiting.extendleft(item for item in reversed(again) if not item.done())
        else:
            again = []
        if len(again) < len(items):
            self._counts.requests_failed += 1
            self._fail((item for item in items if item not in again), error)

    def _deliver(self, answer: Answer, items: list[PendingItem], server: Server, request_id: str) -> None:
        tower, model = items[0].tower, items[0].model
        truncated = [False] * len(items) if answer.truncated is None else answer.truncated.tolist()
        results: list[Result] = list(zip(answer.vectors, truncated, strict=True))
        expected = model.fingerprint_of(tower)
        # Convert all numbers to Python's at once: indexing an array for each item would cost more than the rest.
        same_model = [tuple(fingerprint) == expected for fingerprint in answer.fingerprints.tolist()]
        statuses = answer.statuses.tolist()
        is_good = all(same_model) and not any(statuses) and answer.vectors.shape[1] == model.dimension
        if is_good and np.isfinite(answer.vectors).all():
            self._counts.images_embedded += len(items)
            for item, result in zip(items, results, strict=True):
                self._finish(item, result)
            return
        for row, item in enumerate(items):
            if not same_model[row]:
                self._on_mismatch(model)
                result = ProtocolMismatch(
                    f"{server.endpoint} does not serve {model.id}, which it or another server named before; all "
                    "servers of one client must serve one model, and after a change of model call again.",
                    request_id=request_id,
                )
            elif answer.vectors.shape[1] != model.dimension:
                result = ProtocolMismatch(
                    f"{server.endpoint} answered with {answer.vectors.shape[1]} numbers per vector, and {model.id} has "
                    f"{model.dimension}; export the model again.",
                    request_id=request_id,
                )
            elif statuses[row] or not np.isfinite(answer.vectors[row]).all():
                self._counts.images_failed += 1
                code = _CODES.get(statuses[row], "INTERNAL")
                message = answer.errors[row] or "The server's vector has numbers that are not finite."
                result = tower.error(message, code=code, request_id=request_id)
            else:
                self._counts.images_embedded += 1
                result = results[row]
            self._finish(item, result)

    def _on_request_done(self, task: asyncio.Task[None]) -> None:
        request = self._requests.pop(task)
        self._schedule()
        if task.cancelled():
            self._on_cancelled(request)
        elif (error := task.exception()) is not None:
            # This is a bug in this package. The loop's exception handler reports it, and all callers get an error.
            request.server.limit.release(len(request.items))
            self._fail(request.items, ClipError(f"The request failed: internal error ({type(error).__name__})."))
            raise error

    def _on_cancelled(self, request: _Request) -> None:
        now = self._loop.time()
        limit = request.server.limit
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
        self._schedule()


@dataclass(slots=True, eq=False)
class _Request:
    """Images, or texts, that share a request."""

    server: Server
    items: list[PendingItem]
    started_at: float

    @property
    def deadlines(self) -> list[Deadline]:
        return [item.deadline for item in self.items if item.deadline is not None]
