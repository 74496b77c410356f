"""What a gateway is started with. Worker processes get it through the environment."""

from __future__ import annotations

import os
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, HttpUrl, PositiveFloat, PositiveInt

_VARIABLE: Final = "CLIP_GATEWAY_SETTINGS"
MULTIPROCESS_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""A folder in which several worker processes share their counts. prometheus-client reads it when it is imported."""


class Settings(BaseModel):
    """Every setting of a gateway, checked; the options of ``clip-gateway`` have the same names."""

    model_config = ConfigDict(frozen=True)

    urls: tuple[str, ...]
    """Servers that serve the same models, as for ``ClipClient``."""
    models: tuple[str, ...] = ("clip",)
    """Names of the models; the first one answers requests that name none."""
    timeout_s: PositiveFloat = 30.0
    """Time for the embeddings of one request. Triton may restart within it without any request failing."""
    max_body_bytes: PositiveInt = 64 * 2**20
    """Size of one request."""
    max_held_bytes: PositiveInt = 2**30
    """Size of all requests together that this process holds at a time; further ones are refused with 503."""
    max_items: PositiveInt = 2048
    """Images and texts in one request."""
    fetch_urls: bool = False
    """Whether images may be given as http(s) URLs; see :mod:`clip_client.gateway.fetch`."""
    immich_upstream: HttpUrl | None = None
    """Immich's own machine-learning service, which answers what is not CLIP."""
    token: str | None = None
    """Bearer token that callers must send; None lets everybody in."""
    client_token: str | None = None
    """Bearer token for Triton."""

    def to_environment(self) -> None:
        """Leave the settings to worker processes that are started after this."""
        os.environ[_VARIABLE] = self.model_dump_json()

    @classmethod
    def from_environment(cls) -> Self:
        """Read what :meth:`to_environment` left."""
        return cls.model_validate_json(os.environ[_VARIABLE])
