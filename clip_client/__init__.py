"""Embeds images on a Triton server: an asynchronous client, and a blocking one over it.

Importing this package reads no environment, opens nothing and loads neither torch nor gRPC.
"""

from clip_client._client import ClipClient
from clip_client._client_stats import ClientStats, ServerStats
from clip_client._config import ClientConfig
from clip_client._errors import (
    ClipError,
    DeadlineExceeded,
    ImageError,
    ImageErrors,
    ModelNotReady,
    Overloaded,
    ProtocolMismatch,
    Unauthorized,
    Unavailable,
)
from clip_client._health import HealthReport, HealthStep
from clip_client._image_source import ImageSource, ImageSources
from clip_client._model import ModelInfo
from clip_client._results import EmbeddedItem, EmbeddingBatch
from clip_client._sync import SyncClipClient

__all__ = (
    "ClientConfig",
    "ClientStats",
    "ClipClient",
    "ClipError",
    "DeadlineExceeded",
    "EmbeddedItem",
    "EmbeddingBatch",
    "HealthReport",
    "HealthStep",
    "ImageError",
    "ImageErrors",
    "ImageSource",
    "ImageSources",
    "ModelInfo",
    "ModelNotReady",
    "Overloaded",
    "ProtocolMismatch",
    "ServerStats",
    "SyncClipClient",
    "Unauthorized",
    "Unavailable",
)

for _name in __all__:
    # Tracebacks and reprs then show the path that users import from. Type aliases have no module of their own.
    if isinstance(_object := globals()[_name], type):
        _object.__module__ = __name__
del _name, _object
