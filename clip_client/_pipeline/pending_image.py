"""One image of one call, from its source to its result, and how much time it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clip_client._errors import ClipError, DeadlineExceeded

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clip_client._image_source import ImageSource
    from clip_client._model import ModelInfo


@dataclass(slots=True, eq=False)
class Deadline:
    """When the time of one image, or of all images of one call, ends. In loop time."""

    since: float
    """When that time began."""
    at: float
    extended_by_s: float | None = None
    """After each result, the images that are left have this much time again; None if ``at`` is fixed."""

    def on_progress(self, now: float) -> None:
        """Record that an image of the call has its result."""
        if self.extended_by_s is not None:
            self.since, self.at = now, now + self.extended_by_s

    def request_s(self, now: float) -> float:
        """Return the seconds that a request may take which is sent now: results of other requests may extend ``at``."""
        return self.at - now if self.extended_by_s is None else self.extended_by_s


@dataclass(slots=True, eq=False)
class PendingImage:
    """What the pipeline knows about one image."""

    index: int
    source: ImageSource
    model: ModelInfo
    """The vector must be of this model."""
    deadline: Deadline | None
    """None until the image is first sent, if the call has no deadline of its own."""
    on_result: Callable[[PendingImage], None]
    payload: bytes = b""
    """The bytes to send, as long as they may have to be sent."""
    submitted_at: float = 0.0
    result: NDArray[np.float32] | ClipError | None = None
    """A vector (D,) is a read-only view of the whole answer: copy it before you hand it out."""
    abandoned: bool = False
    was_shed: bool = False
    """It was not sent, because its answer would have come too late."""

    @property
    def ran_out_of_time(self) -> bool:
        """True if that is why it has no vector."""
        return self.was_shed or isinstance(self.result, DeadlineExceeded)

    @property
    def waits_since(self) -> float:
        """When the time began in which it waits to be sent."""
        return self.submitted_at if self.deadline is None else max(self.submitted_at, self.deadline.since)

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
