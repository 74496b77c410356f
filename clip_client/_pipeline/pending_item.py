"""One image or text that the sender has."""

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
"""A vector (D,) and whether it is that of the beginning of a text which is too long for the model; or the error that
took its place. The vector is a read-only view of the whole answer: copy it before you hand it out."""


class PendingItem(asyncio.Future[Result]):
    """The future of the result of one image or text. To give the item up, cancel it.

    An error is a result, not an exception of the future: asyncio would report those that no caller asks for.
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
        super().__init__(loop=loop)  # to look it up would take a third of the time of all this
        self.payload = payload
        """The bytes to send, as long as they may have to be sent."""
        self.tower = tower
        self.model = model
        """The vector must be of this model."""
        self.deadline = deadline
        """None until the item is first sent, if the call has no deadline of its own."""
        self.submitted_at = submitted_at
        self._on_cancelled = on_cancelled

    def cancel(self, msg: Any | None = None) -> bool:
        """Give the item up, unless it has its result. A task that waits for it calls this when it is cancelled."""
        was_pending = super().cancel(msg)
        if was_pending:
            self._on_cancelled(self)
        return was_pending
