"""The interface between the client and a model, the same for gRPC and for the model in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clip_client._endpoint import Endpoint
from clip_client._model import ModelInfo, Tower


class Answer(NamedTuple):
    """The answer to one request of n images or texts."""

    vectors: NDArray[np.float32]  # (n, D), a read-only view of the message
    statuses: Sequence[int]  # numbers of ``ImageStatus``
    errors: Sequence[str]  # sentences; empty where the status is 0
    fingerprints: Sequence[tuple[int, ...]]  # pairs
    truncated: Sequence[bool]  # whether the text is longer than the model's context; False for images


class Transport(ABC):
    """One connection to one server. Every method raises only ClipError and CancelledError."""

    @abstractmethod
    async def infer(
        self, items: Sequence[bytes], *, tower: Tower = Tower.IMAGE, request_id: str, timeout_s: float
    ) -> Answer:
        """Embed encoded images, or texts in UTF-8, in one request."""

    @abstractmethod
    async def model(self, *, timeout_s: float) -> ModelInfo:
        """Return the model's description from its passport. Raises ProtocolMismatch if this client cannot use it."""

    @abstractmethod
    async def server_live(self, *, timeout_s: float) -> bool:
        """Return whether the server says that it is live. Raises a ClipError if it does not answer."""

    @abstractmethod
    async def models_ready(self, *, timeout_s: float) -> None:
        """Raise ModelNotReady unless the image tower's ensemble and both its parts are loaded."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection; requests in flight end with Unavailable."""


TransportFactory = Callable[[Endpoint, str | None], Transport]
"""``connect(endpoint, server_name)`` opens a connection. ``server_name`` is the name to expect in the server's
certificate if the endpoint is a numeric address that stands for a name, else None."""
