"""One image or text in the sender, and its deadline."""

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
"""(vector (D,), whether the text was too long, so that the vector is that of its beginning); or an error. The vector is
a read-only view of the whole answer: copy it before you hand it out."""


@dataclass(slots=True, eq=False)
class Deadline:
    """The end of the time of some items: of one call, or of the items first sent together. In loop time."""

    since: float
    """Beginning of the time."""
    at: float
    """End of the time."""
    extended_by_s: float | None = None
    """Time that the remaining items get again after each result; None if ``at`` is fixed."""

    def on_progress(self, now: float) -> None:
        """Record that an item of the call has its result."""
        if self.extended_by_s is not None:
            self.since, self.at = now, now + self.extended_by_s

    def request_s(self, now: float) -> float:
        """Return the seconds that a request sent now may take: results of other requests may extend ``at``."""
        return self.at - now if self.extended_by_s is None else self.extended_by_s


class PendingItem(asyncio.Future[Result]):
    """The future of the result of one image or text. To give the item up, cancel it.

    An error is a result, not an exception of the future, because asyncio would report exceptions that callers ignore.
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
        super().__init__(loop=loop)  # looking it up would take a third of the constructor's time
        self.payload = payload
        """The bytes to send; empty once the item is finished."""
        self.tower = tower
        self.model = model
        """Model that the vector must come from."""
        self.deadline = deadline
        """Deadline of the call; without one, None until the item is first sent."""
        self._submitted_at = submitted_at
        self._on_cancelled = on_cancelled

    @property
    def waits_since(self) -> float:
        """Loop time since which the item waits to be sent."""
        return self._submitted_at if self.deadline is None else max(self._submitted_at, self.deadline.since)

    def cancel(self, msg: Any | None = None) -> bool:
        """Give the item up, unless it has its result. If a task that waits for the item is cancelled, it calls this."""
        was_pending = super().cancel(msg)
        if was_pending:
            self._on_cancelled(self)
        return was_pending
