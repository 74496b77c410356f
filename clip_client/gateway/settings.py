"""What a gateway is started with. Worker processes get it through a file that only their user can read."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from clip_client._config import ClientConfig

SETTINGS_VARIABLE: Final = "CLIP_GATEWAY_SETTINGS"
"""Environment variable that holds the path of that file."""
MULTIPROCESS_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""A folder in which several worker processes share their counts. prometheus-client reads it when it is imported."""


class Limits(BaseModel):
    """What has an option of the same name. The texts below are those of ``clip-gateway --help``."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_bytes="base64", val_json_bytes="base64"
    )

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


class Settings(Limits):
    """Every setting of a gateway, checked."""

    callers_token: str | None = Field(None, repr=False)
    """The bearer token that callers must send."""
    token: str | None = Field(None, repr=False)
    """This and the following are for Triton, as in a ClientConfig."""
    ca_certificate: bytes | None = Field(None, repr=False)
    client_certificate: bytes | None = Field(None, repr=False)
    client_key: bytes | None = Field(None, repr=False)
    server_name: str | None = None

    def client_config(self) -> ClientConfig:
        """Return the settings of a client of Triton. Raises ValueError if they contradict each other."""
        return ClientConfig(
            urls=self.url,
            timeout_s=self.timeout_s,
            transfer="original",
            max_image_bytes=self.max_body_bytes,
            token=self.token,
            ca_certificate=self.ca_certificate,
            client_certificate=self.client_certificate,
            client_key=self.client_key,
            server_name=self.server_name,
        )
