"""The settings of a gateway. Worker processes get them through a file that only their user can read."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from clip_client._config import ClientConfig

SETTINGS_VARIABLE: Final = "CLIP_GATEWAY_SETTINGS"
"""Environment variable that holds the path of that file."""
MULTIPROCESS_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the folder in which worker processes share their counts. prometheus-client reads the
variable when it is imported."""


class Limits(BaseModel):
    """The settings that have an option of the same name. The texts below are shown by ``clip-gateway --help``."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_bytes="base64", val_json_bytes="base64"
    )

    url: tuple[str, ...]
    """URL of a server, as for clip-client; repeat the option for several servers with the same models"""
    model: tuple[str, ...] = ("clip",)
    """name of a model to serve; repeat the option for several models; the first answers requests without a model"""
    timeout_s: PositiveFloat = 30.0
    """seconds for the vectors of one request; allow for a restart of Triton"""
    max_body_bytes: PositiveInt = 64 * 2**20
    """most bytes of one request"""


class Settings(Limits):
    """Every setting of a gateway, checked."""

    callers_token: str | None = Field(None, repr=False)
    """Bearer token that callers must send."""
    token: str | None = Field(None, repr=False)
    """Token for Triton. This and the following settings are as in a ClientConfig."""
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
