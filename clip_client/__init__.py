"""Embeds images and texts on a Triton server: an asynchronous client, and a blocking client that uses it.

Importing this package does not read the environment, open a connection, or load torch or gRPC.
"""

from types import FunctionType as _FunctionType

from clip_client._client import ClipClient
from clip_client._config import ClientConfig
from clip_client._errors import (
    ClipError,
    DeadlineExceeded,
    ForkedProcess,
    ImageError,
    ItemError,
    ItemErrors,
    ModelNotReady,
    Overloaded,
    ProtocolMismatch,
    TextError,
    Unauthorized,
    Unavailable,
    VectorsError,
)
from clip_client._health import HealthReport, HealthStep
from clip_client._model import ModelInfo, TextInfo
from clip_client._results import (
    ClientStats,
    EmbeddedItem,
    EmbeddingBatch,
    ImageSource,
    ImageSources,
    ServerStats,
    TextSources,
)
from clip_client._storage.nearest import Neighbour, nearest
from clip_client._storage.vectors import load_vectors, save_vectors
from clip_client._sync import SyncClipClient
from clip_client._zero_shot import Classification

__all__ = (
    "Classification", "ClientConfig", "ClientStats", "ClipClient", "ClipError", "DeadlineExceeded", "EmbeddedItem",
    "EmbeddingBatch", "ForkedProcess", "HealthReport", "HealthStep", "ImageError", "ImageSource",
    "ImageSources", "ItemError", "ItemErrors", "ModelInfo", "ModelNotReady", "Neighbour", "Overloaded",
    "ProtocolMismatch", "ServerStats", "SyncClipClient", "TextError", "TextInfo", "TextSources", "Unauthorized",
    "Unavailable", "VectorsError", "load_vectors", "nearest", "save_vectors",
)  # fmt: skip

for _name in __all__:
    # Tracebacks and reprs then show the path that users import from. Type aliases have no module of their own.
    if isinstance(_object := globals()[_name], type | _FunctionType):
        _object.__module__ = __name__
del _name, _object


def __getattr__(name: str) -> str:
    # Reading the package's metadata takes longer than the rest of this module.
    if name == "__version__":
        from importlib.metadata import version

        return version("clip-triton")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
