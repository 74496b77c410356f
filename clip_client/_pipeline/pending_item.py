"""One image or text that the sender has, and how much time it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from clip_client._errors import ClipError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clip_client._model import ModelInfo, Tower

Result: TypeAlias = tuple["NDArray[np.float32]", bool] | ClipError
"""A vector (D,) and whether it is that of the beginning of a text which is too long for the model; or the error that
took its place. The vector is a read-only view of the whole answer: copy it before you hand it out."""


@dataclass(slots=True, eq=False)
class Deadline:
    """When the time of some items ends: those of one call, or those first sent at one time. In loop time."""

    since: float
    """When that time began."""
    at: float
    extended_by_s: float | None = None
    """After each result, the items that are left have this much time again; None if ``at`` is fixed."""

    def on_progress(self, now: float) -> None:
        """Record that an item of the call has its result."""
        if self.extended_by_s is not None:
            self.since, self.at = now, now + self.extended_by_s

    def request_s(self, now: float) -> float:
        """Return the seconds that a request may take which is sent now: results of other requests may extend ``at``."""
        return self.at - now if self.extended_by_s is None else self.extended_by_s


class PendingItem(asyncio.Future[Result]):
    """The future of the result of one image or text. To give the item up, cancel it.

    An error is a result, not an exception of the future: asyncio would report those that no caller asks for.
    """

    __slots__ = ("_on_cancelled", "_submitted_at", "deadline", "model", "payload", "tower")

    def __init__(
        self,
        payload: bytes,
        tower: Tower,
        model: ModelInfo,
        deadline: Deadline | None,
        submitted_at: float,
        on_cancelled: Callable[[PendingItem], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(loop=loop)  # to look it up would take a third of the time of all this
        self.payload = payload
        """The bytes to send, as long as they may have to be sent."""
        self.tower = tower
        self.model = model
        """The vector must be of this model."""
        self.deadline = deadline
        """None until the item is first sent, if the call has no deadline of its own."""
        self._submitted_at = submitted_at
        self._on_cancelled = on_cancelled

    @property
    def waits_since(self) -> float:
        """When the time began in which it waits to be sent."""
        return self._submitted_at if self.deadline is None else max(self._submitted_at, self.deadline.since)

    def cancel(self, msg: Any | None = None) -> bool:
        """Give the item up, unless it has its result. A task that waits for it calls this when it is cancelled."""
        was_pending = super().cancel(msg)
        if was_pending:
            self._on_cancelled(self)
        return was_pending
