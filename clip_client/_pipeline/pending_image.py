"""One image of one call, from its source to its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clip_client._errors import ClipError
    from clip_client._image_source import ImageSource
    from clip_client._model import ModelInfo


@dataclass(slots=True, eq=False)
class PendingImage:
    """What the pipeline knows about one image."""

    index: int
    source: ImageSource
    model: ModelInfo
    """The vector must be of this model."""
    deadline: float | None
    """Loop time; None until the image is first sent, if the call has no deadline of its own."""
    on_result: Callable[[PendingImage], None]
    payload: bytes = b""
    """The bytes to send, as long as they may have to be sent."""
    submitted_at: float = 0.0
    result: NDArray[np.float32] | ClipError | None = None
    """A vector (D,) is a read-only view of the whole answer: copy it before you hand it out."""
    abandoned: bool = False

    @property
    def is_awaited(self) -> bool:
        """True while a caller waits for the result."""
        return self.result is None and not self.abandoned

    def set_result(self, result: NDArray[np.float32] | ClipError) -> None:
        """Record the result and tell the stream. Later results, and those of abandoned images, are dropped."""
        if self.result is None and not self.abandoned:  # not the property: this runs for every image
            self.result = result
            self.on_result(self)
            self.payload = b""

    def abandon(self) -> None:
        """Give up: no caller waits for the result any more."""
        self.abandoned = True
        self.payload = b""
