"""What the client asks of a server, whatever the way to it; free of gRPC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What came back for one request of n images."""

    vectors: NDArray[np.float32]
    """Shape (n, D), a read-only view of the message."""
    statuses: NDArray[np.int32]
    """Shape (n,): numbers of ``ImageStatus``."""
    errors: tuple[str, ...]
    """n sentences, empty where the status is 0."""
    fingerprints: NDArray[np.int32]
    """Shape (n, 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How a server runs one model, from its own copy of the configuration."""

    backend: str
    """``"onnxruntime"``, ``"python"``, ``"tensorrt"``, ...; empty for an ensemble."""
    kinds: tuple[str, ...]
    """Of each instance group: ``"KIND_CPU"``, ``"KIND_GPU"``, or ``"KIND_AUTO"`` where the server chose."""
    accelerators: tuple[str, ...]
    """Execution accelerators that the configuration names, such as ``"tensorrt"``."""
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDescription:
    """What a server says of itself."""

    name: str
    version: str
    models: Mapping[str, ModelSettings]
    """The three models of the wire contract, by name."""


class Transport(Protocol):
    """What the client needs of one server. Every method raises only ClipError and CancelledError."""

    async def infer(self, images: Sequence[bytes], *, request_id: str, timeout_s: float) -> Answer:
        """Embed encoded images in one request."""

    async def passport(self, *, request_id: str, timeout_s: float) -> str:
        """The model's passport as JSON text."""

    async def max_batch_size(self, *, timeout_s: float) -> int:
        """How many images one request may carry."""

    async def server_live(self, *, timeout_s: float) -> bool:
        """What the server says of itself; raises where it says nothing."""

    async def models_ready(self, *, timeout_s: float) -> None:
        """Raise ModelNotReady where ``clip_image`` or one of its parts is not loaded."""

    async def close(self) -> None:
        """Give the connection back; requests that are on their way end with Unavailable."""
