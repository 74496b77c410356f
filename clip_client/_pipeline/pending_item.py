"""One image or text in the sender."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from clip_client._errors import ClipError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clip_client._deadline import Deadline
    from clip_client._model import ModelInfo, Tower

Result: TypeAlias = tuple["NDArray[np.float32]", bool] | ClipError
"""(vector (D,), whether the text was too long, so that the vector is that of its beginning); or an error. The vector is
a read-only view of the whole answer: copy it before you hand it out."""


class PendingItem(asyncio.Future[Result]):
    """The future of the result of one image or text. To give the item up, cancel it.

    An error is a result, not an exception of the future, because asyncio would report exceptions that callers ignore.
    """

    __slots__ = ("_on_cancelled", "deadline", "model", "payload", "submitted_at", "tower")

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
        self.submitted_at = submitted_at
        self._on_cancelled = on_cancelled

    def cancel(self, msg: Any | None = None) -> bool:
        """Give the item up, unless it has its result. If a task that waits for the item is cancelled, it calls this."""
        was_pending = super().cancel(msg)
        if was_pending:
            self._on_cancelled(self)
        return was_pending
