"""What the client asks of a server, in the same words for gRPC and the model in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clip_client._endpoint import Endpoint
from clip_client._model import ModelInfo, Tower

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What came back for one request of n images or texts."""

    vectors: NDArray[np.float32]
    """Shape (n, D), a read-only view of the message."""
    statuses: NDArray[np.int32]
    """Shape (n,): numbers of ``ImageStatus``."""
    errors: tuple[str, ...]
    """n sentences, empty if the status is 0."""
    fingerprints: NDArray[np.int32]
    """Shape (n, 2)."""
    truncated: NDArray[np.bool_] | None = None
    """Shape (n,): whether the text is longer than the model's context; None for images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How a server runs one model, from its own copy of the configuration."""

    backend: str
    """``"onnxruntime"``, ``"python"``, ``"tensorrt"``, ...; empty for an ensemble."""
    kinds: tuple[str, ...]
    """Of each instance group: ``"KIND_CPU"``, ``"KIND_GPU"``, or ``"KIND_AUTO"`` if the server chose."""
    accelerators: tuple[str, ...]
    """Execution accelerators that the configuration names, such as ``"tensorrt"``."""
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDescription:
    """What a server says about itself."""

    name: str
    version: str
    models: Mapping[str, ModelSettings]
    """The three models of the image tower, by name."""


class Transport(ABC):
    """One connection to one server. Every method raises only ClipError and CancelledError."""

    @abstractmethod
    async def infer(
        self, items: Sequence[bytes], *, tower: Tower = Tower.IMAGE, request_id: str, timeout_s: float
    ) -> Answer:
        """Embed encoded images, or texts in UTF-8, in one request."""

    @abstractmethod
    async def model(self, *, timeout_s: float) -> ModelInfo:
        """Return what the model's passport says; raise ProtocolMismatch if this client cannot use such a model."""

    @abstractmethod
    async def server_live(self, *, timeout_s: float) -> bool:
        """Return what the server says about itself; raise a ClipError if it does not answer."""

    @abstractmethod
    async def models_ready(self, *, timeout_s: float) -> None:
        """Raise ModelNotReady unless the image tower's ensemble and both of its parts are loaded."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection; requests in flight end with Unavailable."""

    async def describe(self, *, timeout_s: float) -> ServerDescription | None:
        """Describe the server and how it runs each model; None if it is not a Triton. ``timeout_s`` is per question."""
        return None


TransportFactory = Callable[[Endpoint, str | None], Transport]
"""Opens a connection to one endpoint. The second argument is the name to expect in the server's certificate if the
endpoint is a numeric address that stands for a name, else None."""
