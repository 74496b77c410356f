"""Rows of all calls, packed into requests, sent, and their answers handed back row by row."""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections import deque
from typing import TYPE_CHECKING

from clip_client._errors import ClipError, DeadlineExceeded, ImageError, ProtocolMismatch, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from clip_client._config import ClientConfig
    from clip_client._images import ImageSource
    from clip_client._model import ModelInfo
    from clip_client._transport import Answer, Transport


class Row:
    """One image on its way."""

    __slots__ = ("abandoned", "deadline", "index", "on_done", "outcome", "payload", "source")

    def __init__(self, index: int, source: ImageSource, on_done: Callable[[Row], None]) -> None:
        self.index = index
        self.source = source
        self.on_done = on_done
        self.payload: bytes | None = None
        self.deadline: float | None = None
        """Loop time; None until the row is first sent, where the call has no deadline of its own."""
        self.outcome: NDArray[np.float32] | ClipError | None = None
        self.abandoned = False

    def settle(self, outcome: NDArray[np.float32] | ClipError) -> None:
        """Record the one outcome and tell the owner. What comes later, or for an abandoned row, is dropped."""
        if self.outcome is None and not self.abandoned:
            self.outcome = outcome
            self.on_done(self)
            self.payload = None

    @property
    def open(self) -> bool:
        """True while somebody waits for the outcome."""
        return self.outcome is None and not self.abandoned


class Sender:
    """Packs waiting rows into requests as soon as there is room for them in flight.

    It never waits to fill a batch: rows that become ready while nothing may be sent are what fills the next one.
    Rows of different calls may share a request; each has its own outcome.
    """

    def __init__(self, transport: Transport, config: ClientConfig, on_mismatch: Callable[[ModelInfo], None]) -> None:
        self._transport = transport
        self._config = config
        self._on_mismatch = on_mismatch
        self._waiting: deque[tuple[Row, ModelInfo]] = deque()
        self._requests: dict[asyncio.Task[None], list[Row]] = {}
        self._rows_in_flight = 0
        self._dispatch_scheduled = False
        self._loop = asyncio.get_running_loop()

    @property
    def rows_in_flight(self) -> int:
        """Images that are in a request just now."""
        return self._rows_in_flight

    def submit(self, row: Row, model: ModelInfo) -> None:
        """Queue a row whose payload is there; its vector must be of ``model``."""
        self._waiting.append((row, model))
        self._schedule()

    def abandon(self, rows: Sequence[Row]) -> None:
        """Nobody waits for these any more; a request that carries no other row is cancelled."""
        for row in rows:
            row.abandoned = True
        for task, carried in self._requests.items():
            if not any(row.open for row in carried):
                task.cancel()

    async def aclose(self) -> None:
        """Cancel every request."""
        tasks = list(self._requests)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        waiting, self._waiting = self._waiting, deque()
        self._settle_all((row for row, _ in waiting), Unavailable("The client was closed before the image was sent."))

    def _schedule(self) -> None:
        # At the end of this turn of the loop, so that a burst of rows travels together.
        if not self._dispatch_scheduled:
            self._dispatch_scheduled = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_scheduled = False
        while self._waiting and self._rows_in_flight < self._config.max_in_flight:
            rows, model = self._take(self._config.max_in_flight - self._rows_in_flight)
            if not rows:
                continue
            task = asyncio.create_task(self._request(rows, model), name="clip_client request")
            self._requests[task] = rows
            self._rows_in_flight += len(rows)
            task.add_done_callback(self._request_done)

    def _take(self, room: int) -> tuple[list[Row], ModelInfo]:
        """Rows for one request: of one model, within its batch size, the byte limit and the room in flight."""
        model = self._waiting[0][1]
        rows: list[Row] = []
        size = 0
        now = self._loop.time()
        while self._waiting and len(rows) < min(room, model.max_batch_size):
            row, row_model = self._waiting[0]
            if row_model is not model:
                break
            if row.open and row.payload is not None:
                size += len(row.payload)
                if rows and size > self._config.max_request_bytes:
                    break
                if row.deadline is None:
                    row.deadline = now + self._config.timeout_s
                rows.append(row)
            self._waiting.popleft()
        return rows, model

    def _request_done(self, task: asyncio.Task[None]) -> None:
        rows = self._requests.pop(task)
        self._rows_in_flight -= len(rows)
        if task.cancelled():
            self._settle_all(rows, Unavailable("The client was closed while the image was on its way."))
        elif (error := task.exception()) is not None:
            # A defect of this package. Nobody may be left waiting for it.
            self._settle_all(rows, ClipError(f"Sending failed in an unforeseen way ({type(error).__name__})."))
            raise error
        if self._waiting:
            self._schedule()

    def _settle_all(self, rows: Iterable[Row], error: ClipError) -> None:
        for row in rows:
            # A copy each: a traceback grows onto an exception wherever it is raised.
            row.settle(copy.copy(error))

    async def _request(self, rows: list[Row], model: ModelInfo) -> None:
        request_id = uuid.uuid4().hex
        payloads = [row.payload for row in rows if row.payload is not None]
        timeout_s = max(row.deadline or 0.0 for row in rows) - self._loop.time()
        try:
            if timeout_s <= 0:
                raise DeadlineExceeded("The time for this call was over before the request was sent.")
            answer = await self._transport.infer(payloads, request_id=request_id, timeout_s=timeout_s)
            self._check(answer, model, request_id)
        except ClipError as error:
            self._settle_all(rows, error)
        else:
            for number, row in enumerate(rows):
                row.settle(_outcome(answer, number, row, request_id))

    def _check(self, answer: Answer, model: ModelInfo, request_id: str) -> None:
        if (answer.fingerprints != model.fingerprint).any():
            self._on_mismatch(model)
            raise ProtocolMismatch(
                f"The server does not serve {model.id} any more; call again to use the model that it serves now.",
                request_id=request_id,
            )
        if answer.vectors.shape[1] != model.dimension:
            raise ProtocolMismatch(
                f"The server answered with {answer.vectors.shape[1]} numbers per vector, and {model.id} has "
                f"{model.dimension}; export the model again.",
                request_id=request_id,
            )


def _outcome(answer: Answer, number: int, row: Row, request_id: str) -> NDArray[np.float32] | ClipError:
    status = int(answer.statuses[number])
    if status == 0:
        # A copy, because a view would keep the answer of the whole request alive.
        vector: NDArray[np.float32] = answer.vectors[number].copy()
        return vector
    from preprocess_ensemble.decode import ImageStatus

    try:
        code = ImageStatus(status).name
    except ValueError:
        code = "INTERNAL"
    return ImageError(answer.errors[number], code=code, index=row.index, request_id=request_id)
