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
_OF_CLIENT: Final = ("timeout_s", "token", "ca_certificate", "client_certificate", "client_key", "server_name")


class Settings(BaseModel):
    """Every setting of a gateway, checked. ``clip-gateway --help`` explains those that are not a ClientConfig's."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    url: tuple[str, ...]
    model: tuple[str, ...] = ("clip",)
    timeout_s: PositiveFloat = 30.0
    max_body_bytes: PositiveInt = 64 * 2**20
    callers_token: str | None = Field(None, repr=False)
    """Bearer token that callers must send."""
    token: str | None = Field(None, repr=False)
    """The token for Triton."""
    ca_certificate: bytes | None = Field(None, repr=False)
    client_certificate: bytes | None = Field(None, repr=False)
    client_key: bytes | None = Field(None, repr=False)
    server_name: str | None = None

    def client_config(self) -> ClientConfig:
        """Return the settings of a client of Triton. Raises ValueError if they contradict each other."""
        more = {name: getattr(self, name) for name in _OF_CLIENT}
        return ClientConfig(urls=self.url, transfer="original", max_image_bytes=self.max_body_bytes, **more)
