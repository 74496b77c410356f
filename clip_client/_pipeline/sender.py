"""Pack the pending items of all calls into requests, send them, and hand out the answers item by item."""

from __future__ import annotations

import asyncio
import copy
import itertools
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from clip_client._balancing.balancer import RETRIED, Balancer, RetryBudget, Server
from clip_client._config import ClientConfig
from clip_client._deadline import Deadline
from clip_client._errors import ClipError, DeadlineExceeded, ProtocolMismatch, Shed, Unavailable
from clip_client._model import ModelInfo
from clip_client._pipeline.chunk import Call, Chunk, Request
from clip_client._results import ClientStats
from clip_client._transports.base import Answer
from preprocess_ensemble.contract import ImageStatus

_CLOSED: Final = "The client was closed before this was sent."
_HELD_REQUESTS: Final = 8
"""Number of full requests for which items are encoded ahead; it bounds memory when photos are large."""
_CLOCKS_S: Final = 0.05
"""Most seconds by which gRPC may end a request earlier than this side ends its call."""
_CODES: Final = {status.value: status.name for status in ImageStatus if status is not ImageStatus.OK}
"""Number of a status -> its name. A newer server may send further numbers, and a vector that is not finite has none."""


class Sender:
    """Packs waiting items into requests as soon as a server has slots for them.

    It never waits to fill a batch: items that become ready while nothing may be sent fill the next batch. Items of
    different calls may share a request if they belong to one tower; each call has its own deadline and results.
    """

    def __init__(self, balancer: Balancer, config: ClientConfig, on_mismatch: Callable[[ModelInfo], None]) -> None:
        self._balancer = balancer
        self.why_down = balancer.why_down
        self.config = config
        self._on_mismatch = on_mismatch
        self._loop = asyncio.get_running_loop()
        self._budget = RetryBudget(self._loop.time())
        self._id, self._numbers = os.urandom(12).hex(), itertools.count()  # the parts of a request's id
        self._counts = ClientStats()  # without the current numbers

        # A submitted chunk is in _waiting or in a request of _requests, until it has its results or is given up.
        self._waiting: OrderedDict[Chunk, None] = OrderedDict()
        self._requests: set[Request] = set()
        self.free_bytes = _HELD_REQUESTS * config.max_request_bytes  # may be negative; then calls wait for room
        self._room = asyncio.Event()
        self._is_starting = False  # True if a task has been made that has not yet taken its items
        self.latest: Chunk | None = None  # the last chunk that such a task will take, if it may grow to a full batch
        self._was_shared = True  # True if the last request had several chunks; calls that come together may come again
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False
        self.open_streams: set[Callable[[], None]] = set()  # functions that end them

    async def has_room(self) -> None:
        while self.free_bytes <= 0:
            self._room.clear()
            await self._room.wait()

    def submit(self, chunk: Chunk, payloads: list[bytes], *, starts: bool = True) -> None:
        """Queue a chunk whose last items are sent as ``payloads``. After :meth:`aclose` it is Unavailable at once."""
        if self.closed:
            self.fail([chunk], Unavailable(_CLOSED))
            return
        size = sum(map(len, payloads))
        chunk.payloads += payloads
        chunk.size += size
        chunk.submitted_at = self._loop.time()
        self.free_bytes -= size
        self._waiting[chunk] = None
        if starts:
            self._start()
            self.latest = chunk if len(chunk) < chunk.call.model.max_batch_size else None

    async def send_alone(self, chunk: Chunk, payloads: list[bytes]) -> None:
        """Submit the only chunk of a call, and send it in this task, the call's, if no others can share its request."""
        self.submit(chunk, payloads, starts=False)
        count, task, choice = len(payloads), asyncio.current_task(self._loop), None
        if (self._was_shared or self._requests) and count < chunk.call.model.max_batch_size:
            await asyncio.sleep(0)  # calls that begin together share requests
        is_alone = len(self._waiting) == 1 and chunk in self._waiting and not self._is_starting and not self.closed
        fits = count == 1 or chunk.size <= self.config.max_request_bytes
        if is_alone and fits and task is not None and not task.cancelling():
            choice = self._balancer.choose(count, count)
        if choice is None or choice[1] < count:
            self._start()
        else:
            del self._waiting[chunk]
            choice[0].limit.started(count)
            deadline = chunk.deadline = chunk.deadline or Deadline(self.config.timeout_s)
            # No other request can extend the deadline, so it is that of the request.
            timeout_s, started_at = deadline.remaining, self._balancer.chose_at
            await self._send(Request(choice[0], [chunk], started_at, count, chunk.size, timeout_s, task))

    def give_up(self, chunks: Iterable[Chunk]) -> None:
        """Forget chunks whose results are not needed any more, and cancel requests that only have such chunks."""
        for chunk in chunks:
            self._waiting.pop(chunk, None)
            self._finish(chunk, None)
        for request in self._requests:
            if not any(chunk.is_open for chunk in request.chunks):
                request.cancel()
        self._start()

    def stats(self) -> ClientStats:
        in_flight = (chunk for request in self._requests for chunk in request.chunks if chunk.is_open)
        return replace(
            self._counts,
            images_waiting=sum(map(len, self._waiting)),
            images_in_flight=sum(map(len, in_flight)),
            servers=tuple(server.stats() for server in self._balancer.servers),
        )

    async def aclose(self) -> None:
        """End every stream and cancel every request; callers that still wait get Unavailable."""
        self.closed = True
        for end in list(self.open_streams):
            end()
        if self._timer is not None:
            self._timer.cancel()
        for request in self._requests:
            request.cancel()
        while self._requests:  # the end of each makes room
            self._room.clear()
            await self._room.wait()
        self.fail(self._waiting, Unavailable(_CLOSED))
        self._waiting.clear()

    def fail(self, chunks: Iterable[Chunk], error: ClipError) -> None:
        for chunk in chunks:
            # A copy for each item, because raising an exception adds to its traceback.
            self._finish(chunk, {row: copy.copy(error) for row in range(len(chunk))})
        self._room.set()

    def _finish(self, chunk: Chunk, errors: Mapping[int, ClipError] | None) -> None:
        """Close an open chunk. Its call takes its results, unless ``errors`` is None."""
        if chunk.is_open:
            chunk.is_open, chunk.payloads = False, []
            self.free_bytes += chunk.size
            if errors is not None:
                chunk.errors = errors
                chunk.call.on_result(chunk)

    def _start(self) -> None:
        """Tell those who wait for room, and send a request at the end of this iteration, so that bursts share it."""
        if self.free_bytes > 0 or self.closed:
            self._room.set()
        if self._waiting and not self._is_starting and not self.closed:
            self._is_starting = True
            self._loop.create_task(self._send_waiting(), name="clip_client request")

    async def _send_waiting(self) -> None:
        """Send one request, if a server has slots for it. If items are left, another task sends the next request."""
        self._is_starting, self.latest = False, None
        if not self._waiting or self.closed:
            return
        call = next(iter(self._waiting)).call
        most = call.model.max_batch_size
        choice = self._balancer.choose(sum(map(len, itertools.islice(self._waiting, most))), most)
        if choice is None:
            self._wake_at(self._balancer.next_attempt_at())
            return
        request = self._take(*choice, call)
        self._start()
        if request.chunks:
            request.server.limit.started(request.count)
            await self._send(request)

    def _wake_at(self, when: float | None) -> None:
        """Start again at ``when``, and when the first waiting chunk runs out of time.

        The first chunk is enough: a call with a deadline gives up its own, and chunks with their own deadlines were
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
        for chunk in list(itertools.takewhile(lambda one: one.deadline and one.deadline.expired, self._waiting)):
            del self._waiting[chunk]
            message = f"timeout_s ran out before a server took the {chunk.call.tower.value}.{self.why_down()}"
            self.fail([chunk], DeadlineExceeded(message))
        self._start()

    def _take(self, server: Server, available_slots: int, first: Call) -> Request:
        """Remove the chunks of one request from the queue: those like ``first``'s, within the slots and byte limit.

        Others keep their places, so images and texts that alternate also fill requests, until a batch is passed.
        """
        taken: list[Chunk] = []
        late: dict[Chunk, Deadline] = {}
        count = size = others = 0
        timeout_s = 0.0  # the longest time of all chunks, because a call that has less time gives its own up
        tower, model, most_bytes = first.tower, first.model, self.config.max_request_bytes
        own = ample = None  # the deadline of chunks without a call's, and the last one that leaves time for an answer
        # If a server is down, items are late for that reason, not because of overload.
        latency = None if server.is_down else server.limit.latency_s
        for chunk in self._waiting:
            if count == available_slots or others > model.max_batch_size:
                break
            if chunk.call.tower is not tower or chunk.call.model is not model:
                others += len(chunk)
                continue
            deadline = chunk.deadline
            if deadline is None:
                deadline = own = own or Deadline(self.config.timeout_s)
            elif latency is not None and deadline is not ample:
                # Twice the mean latency, because half of all answers take longer than the mean. If late items are sent,
                # goodput falls to zero under overload, because servers work for callers that have left.
                if not deadline.ends_within(2 * latency):
                    ample = deadline
                elif deadline.remaining <= deadline.waited(chunk.submitted_at):  # half of its time is over
                    late[chunk] = deadline
                    continue
            if (part := chunk.head(available_slots - count, most_bytes - size, least=0 if taken else 1)) is None:
                break
            part.deadline = deadline
            taken.append(part)
            timeout_s = max(timeout_s, deadline.of_request)
            count += len(part)
            size += part.size
            if part is not chunk:
                break
        for chunk in (*taken, *late):
            self._waiting.pop(chunk, None)
        for chunk, deadline in late.items():
            self._counts.images_shed += len(chunk)
            error = Shed(
                f"{server.endpoint} is overloaded: the {tower.value} waited "
                f"{deadline.waited(chunk.submitted_at):.2f} s, {deadline.remaining:.2f} s are left, and an answer "
                f"may take {2 * (latency or 0):.2f} s, twice the mean."
            )
            self.fail([chunk], error)
        return Request(server, taken, self._balancer.chose_at, count, size, timeout_s)

    async def _send(self, request: Request) -> None:
        """Send a request and give its chunks their results. If it has a task, this is the task of its only call."""
        server, chunks, count, alone = request.server, request.chunks, request.count, request.task
        request.task = alone or asyncio.current_task(self._loop)
        self._requests.add(request)
        self._was_shared = len(chunks) > 1
        request_id = f"{self._id}{next(self._numbers)}"
        payloads = [payload for chunk in chunks for payload in chunk.payloads]
        self._counts.bytes_sent += request.size
        try:
            answer = await server.transport.infer(
                payloads, tower=chunks[0].call.tower, request_id=request_id, timeout_s=request.timeout_s
            )
            now = self._loop.time()
            given_s = min([chunk.deadline.given(chunk.submitted_at) for chunk in chunks if chunk.deadline])
            self._deliver(answer, request, request_id)
            server.succeeded(count, started_at=request.started_at, now=now, time_given_s=given_s)
            self._budget.success()
        except ClipError as error:
            self._retry_or_fail(request, error, is_alone=alone is not None)
        except asyncio.CancelledError:
            self._on_cancelled(request)
            # If this client was closed, the call's own task goes on, and says so.
            if not (alone and request.is_cancelled and alone.uncancel() == 0):
                raise
        except Exception as error:
            # This is a bug in this package. The loop's exception handler reports it, and all callers get an error.
            message = f"The request failed: internal error ({type(error).__name__})."
            server.limit.release(count)
            self.fail(chunks, ClipError(message))
            self._loop.call_exception_handler({"message": message, "exception": error, "task": request.task})
        finally:
            self._requests.discard(request)
            self._start()

    def _retry_or_fail(self, request: Request, error: ClipError, *, is_alone: bool) -> None:
        server, chunks, started_at = request.server, request.chunks, request.started_at
        now, has_other = self._loop.time(), self._balancer.has_other(server)
        server.failed(request.count, error, started_at=started_at, now=now, has_other=has_other)
        if isinstance(error, ProtocolMismatch):
            self._on_mismatch(chunks[0].call.model)
        if isinstance(error, DeadlineExceeded):
            # Send items again if their call got results meanwhile: a slow server had too much, or a server hangs.
            again = [chunk for chunk in chunks if chunk.deadline and chunk.deadline.since > started_at]
        else:
            # A failure inside a server may be the server's fault, so try another server. If the request is the reason,
            # the other server fails as well, and then no server is left.
            again = chunks if isinstance(error, RETRIED) or (has_other and type(error) is ClipError) else []
        if again and self._budget.spend(now):
            self._counts.requests_retried += 1
            # Put them in front, in their order, because an ordered stream waits for them.
            for chunk in reversed(again):
                if chunk.is_open:
                    self._waiting[chunk] = None
                    self._waiting.move_to_end(chunk, last=False)
        else:
            again = []
        failed = [chunk for chunk in chunks if chunk not in again]
        if is_alone and isinstance(error, DeadlineExceeded):
            # A call whose time is over, give or take the difference of two clocks, says more when it gives up its own.
            failed = [one for one in failed if not (one.call.deadline and one.call.deadline.ends_within(_CLOCKS_S))]
        if failed:
            self._counts.requests_failed += 1
            self.fail(failed, error)

    def _deliver(self, answer: Answer, request: Request, request_id: str) -> None:
        if {*map(len, answer)} != {request.count}:
            raise ValueError(f"{[*map(len, answer)]} rows for {request.count} items")
        call, vectors, start = request.chunks[0].call, answer.vectors, 0
        numbers = vectors.reshape(-1)
        # A sum of squares is finite only if all numbers are, and is made in one pass.
        is_finite = math.isfinite(numbers.dot(numbers))
        is_right = answer.fingerprints.count(call.model.fingerprint_of(call.tower)) == request.count
        has_dimension = vectors.shape[1] == call.model.dimension
        errors: dict[int, ClipError] = {}
        if not (is_finite and is_right and has_dimension) or any(answer.statuses):
            errors = self._errors_of(answer, call, request.server, request_id)
        self._counts.images_embedded += request.count - len(errors)
        for chunk in request.chunks:
            end = start + len(chunk)
            chunk.vectors = vectors[start:end] if has_dimension else None
            chunk.truncated = answer.truncated[start:end]
            own = {row - start: error for row, error in errors.items() if start <= row < end} if errors else {}
            self._finish(chunk, own)
            start = end

    def _errors_of(self, answer: Answer, call: Call, server: Server, request_id: str) -> dict[int, ClipError]:
        tower, model, dimension = call.tower, call.model, answer.vectors.shape[1]
        errors: dict[int, ClipError] = {}
        for row, (vector, status, sentence, fingerprint, _) in enumerate(zip(*answer, strict=True)):
            if fingerprint != model.fingerprint_of(tower):
                self._on_mismatch(model)
                errors[row] = ProtocolMismatch(
                    f"{server.endpoint} does not serve {model.id}, which it or another server named before; all "
                    "servers of one client must serve one model, and after a change of model call again.",
                    request_id=request_id,
                )
            elif dimension != model.dimension:
                errors[row] = ProtocolMismatch(
                    f"{server.endpoint} answered with {dimension} numbers per vector, and {model.id} has "
                    f"{model.dimension}; export the model again.",
                    request_id=request_id,
                )
            elif status or not np.isfinite(vector).all():
                self._counts.images_failed += 1
                code = _CODES.get(status, "INTERNAL")
                message = sentence or "The server's vector has numbers that are not finite."
                errors[row] = tower.error(message, code=code, request_id=request_id)
        return errors

    def _on_cancelled(self, request: Request) -> None:
        now, limit = self._loop.time(), request.server.limit
        if any(chunk.deadline and chunk.deadline.expired for chunk in request.chunks):
            # Count it as an expired deadline: a call gives up its items a moment before gRPC ends the request.
            limit.expired(request.count, started_at=request.started_at, now=now)
        else:
            # Keep the slots taken while the server works on the cancelled request, so that later requests wait in the
            # client and not behind it.
            self._loop.call_at(limit.cancelled(started_at=request.started_at, now=now), self._release, request)
        self.fail(request.chunks, Unavailable("The client was closed while the request was in flight."))

    def _release(self, request: Request) -> None:
        request.server.limit.release(request.count)
        self._start()
