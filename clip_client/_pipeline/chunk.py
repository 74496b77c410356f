"""The items of a call on their way: its chunks, the requests that carry them, and the collector of the results."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from clip_client._balancing.balancer import Server
from clip_client._deadline import Deadline
from clip_client._errors import MORE_TIME, ClipError, ItemError, Shed
from clip_client._model import ModelInfo, Tower
from clip_client._results import EmbeddingBatch


class Call(Protocol):
    tower: Tower
    model: ModelInfo
    deadline: Deadline | None  # without one, a chunk has the client's time from the moment it is first sent
    pending: dict[Chunk, None]  # not delivered

    def on_result(self, chunk: Chunk) -> None: ...


@dataclass(slots=True, eq=False)
class Chunk:
    """Consecutive items of one call that were submitted together. It is split if a request has no room for all."""

    call: Call
    first: int  # index of the first item
    sources: list[Any]
    deadline: Deadline | None  # the call's; without one, None until the chunk is first sent
    payloads: list[bytes] = field(default_factory=list)  # empty before the chunk is submitted and once it is finished
    size: int = 0  # bytes of the payloads
    submitted_at: float = 0.0
    is_open: bool = True  # False once the chunk has its results or was given up
    vectors: NDArray[np.float32] | None = None
    """Rows of any numbers for the items in ``errors``; None if no item has a vector. It is a read-only view of the
    whole answer: copy it before you hand it out."""
    truncated: Sequence[bool] = ()  # for each vector, whether only the beginning of its text was embedded
    errors: Mapping[int, ClipError] = field(default_factory=dict)  # row -> error

    def __len__(self) -> int:
        return len(self.sources)

    def head(self, most: int, most_bytes: int, *, least: int) -> Chunk | None:
        """Return the first items, as many as fit, but at least ``least``; None if that is no item.

        The chunk returns itself if all its items fit, and else keeps the others.
        """
        count = len(self)
        if count > most or self.size > most_bytes:
            sizes = itertools.accumulate(map(len, self.payloads[:most]))
            count = max(least, sum(size <= most_bytes for size in sizes))
        if not count or count == len(self):
            return self if count else None
        head = Chunk(self.call, self.first, self.sources[:count], self.deadline, self.payloads[:count])
        head.size, head.submitted_at = sum(map(len, head.payloads)), self.submitted_at
        self.call.pending[head] = None
        self.first += count
        self.size -= head.size
        del self.sources[:count], self.payloads[:count]
        return head


@dataclass(slots=True, eq=False)
class Request:
    server: Server
    chunks: list[Chunk]
    started_at: float
    count: int  # of items
    size: int  # bytes of their payloads
    timeout_s: float
    task: asyncio.Task[Any] | None = None
    is_cancelled: bool = False

    def cancel(self) -> None:
        if self.task is not None and not self.is_cancelled:
            self.is_cancelled = self.task.cancel()


class Collector:
    """Collects the results of a stream, in any order, into one batch."""

    def __init__(self, model: ModelInfo, tower: Tower, *, expected: int | None, keeps_late: bool) -> None:
        """``keeps_late``: items that ran out of time are not a failure of the service."""
        self._model, self._tower, self._keeps_late = model, tower, keeps_late
        # Without a number, the matrix is doubled as needed: one large copy at the end would block the event loop.
        self._matrix = np.empty((1024 if expected is None else expected, model.dimension), np.float32)
        self._errors: dict[int, ItemError] = {}
        self._truncated: list[int] = []
        self._late: ClipError | None = None
        self._paths: dict[int, str] = {}
        self._count = 0

    def add(self, chunk: Chunk, paths: Sequence[str | None]) -> None:
        """Copy the results of a chunk; call this once for each. Raises errors of the service."""
        first, vectors, errors = chunk.first, chunk.vectors, chunk.errors
        end = first + len(paths)
        self._count += len(paths)
        self._paths.update((index, path) for index, path in enumerate(paths, first) if path is not None)
        if end > len(self._matrix):
            more = max(end - len(self._matrix), len(self._matrix))
            self._matrix = np.concatenate([self._matrix, np.empty((more, self._matrix.shape[1]), np.float32)])
        self._matrix[first:end] = np.nan if vectors is None else vectors
        self._truncated += [first + row for row, is_cut in enumerate(chunk.truncated) if is_cut and row not in errors]
        for row, error in errors.items():
            index = first + row
            self._matrix[index] = np.nan
            if isinstance(error, ItemError):
                error.index, error.source = index, paths[row]
            elif not self._keeps_late or not error.ran_out_of_time:
                raise error
            else:
                self._late = self._late or error
                item = self._tower.value
                why = f"ran out before this {item} was embedded"
                if isinstance(error, Shed):
                    why = f"left too little time for an answer, so this {item} was not sent"
                error = self._tower.error(
                    f"timeout_s {why}; {MORE_TIME}.",
                    code="TIMEOUT",
                    index=index,
                    source=paths[row],
                    request_id=error.request_id,
                )
            self._errors[index] = error

    def batch(self) -> EmbeddingBatch:
        """Return all results that were added. If no item has a vector, raise the first error of the service."""
        if self._late is not None and len(self._errors) == self._count:
            raise self._late
        return EmbeddingBatch(
            vectors=self._matrix[: self._count],
            errors=dict(sorted(self._errors.items())) if self._errors else {},
            model_id=self._model.id,
            vector_id=self._model.vector_id_of(self._tower),
            sources=tuple(map(self._paths.get, range(self._count))) if self._paths else (None,) * self._count,
            truncated=tuple(sorted(self._truncated)) if self._truncated else (),
        )
