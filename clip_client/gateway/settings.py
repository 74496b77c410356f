"""What a gateway is started with. Worker processes get it through the environment."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, HttpUrl, PositiveFloat, PositiveInt

SETTINGS_VARIABLE: Final = "CLIP_GATEWAY_SETTINGS"
MULTIPROCESS_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""A folder in which several worker processes share their counts. prometheus-client reads it when it is imported."""


class Settings(BaseModel):
    """Every setting of a gateway, checked. The texts below are those of ``clip-gateway --help``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    url: tuple[str, ...]
    """a server, as for clip-client; repeat it for several that serve the same models"""
    model: tuple[str, ...] = ("clip",)
    """a model to serve; repeat it for several, of which the first answers requests that name none"""
    timeout_s: PositiveFloat = 30.0
    """seconds for the vectors of one request; Triton may restart meanwhile"""
    max_body_bytes: PositiveInt = 64 * 2**20
    """size of one request"""
    max_held_bytes: PositiveInt = 2**30
    """size of all requests and answers that a process holds at a time; others get 503"""
    max_items: PositiveInt = 2048
    """images and texts in one request"""
    fetch_urls: bool = False
    """fetch images from http(s) URLs, of the public Internet only"""
    immich_upstream: HttpUrl | None = None
    """Immich's own machine-learning service, for what is not CLIP, such as http://immich-machine-learning:3003"""
    token: str | None = None
    """bearer token that callers must send"""
    client_token: str | None = None
    """bearer token for Triton"""
