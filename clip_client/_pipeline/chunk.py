"""The items of a call on their way to a server and back: a call's chunks, and the requests that carry them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clip_client._balancing.balancer import Server
    from clip_client._deadline import Deadline
    from clip_client._errors import ClipError
    from clip_client._model import ModelInfo, Tower


class Call(Protocol):
    tower: Tower
    model: ModelInfo
    deadline: Deadline | None
    """Deadline of the call; without one, a chunk has the client's ``timeout_s`` from the time it is first sent."""
    pending: dict[Chunk, None]
    """Chunks that have not been delivered."""

    def on_result(self, chunk: Chunk) -> None:
        """Take the results of a chunk of ``pending``."""


@dataclass(slots=True, eq=False)
class Chunk:
    """Consecutive items of one call that were submitted together. It is split if a request has no room for all."""

    call: Call
    first: int
    """Index of the first item."""
    sources: list[Any]
    deadline: Deadline | None
    """The call's; without one, None until the chunk is first sent."""
    payloads: list[bytes] = field(default_factory=list)
    """The bytes to send; empty before the chunk is submitted and once it is finished."""
    size: int = 0
    """Number of these bytes."""
    submitted_at: float = 0.0
    is_open: bool = True
    """False once the chunk has its results or was given up."""
    vectors: NDArray[np.float32] | None = None
    """The results, with rows of any numbers for the items in ``errors``; None if no item has a vector. It is a
    read-only view of the whole answer: copy it before you hand it out."""
    truncated: Sequence[bool] = ()
    """For each vector, whether the text was too long, so that the vector is that of its beginning."""
    errors: Mapping[int, ClipError] = field(default_factory=dict)
    """Row -> error."""

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
    count: int
    """Number of items."""
    task: asyncio.Task[Any] | None = None
    is_cancelled: bool = False

    @property
    def is_wanted(self) -> bool:
        return any(chunk.is_open for chunk in self.chunks)

    def cancel(self) -> None:
        if self.task is not None and not self.is_cancelled:
            self.is_cancelled = self.task.cancel()
