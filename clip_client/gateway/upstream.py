"""Immich's own machine-learning service, behind the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import httpx

from clip_client.gateway.errors import Refusal

_UPSTREAM_S: Final = 300.0
"""It loads a model when that is first used, which may include a download."""


class Upstream:
    """A client of it."""

    def __init__(self, url: str) -> None:
        self._url = f"{url.rstrip('/')}/predict"
        self._http = httpx.AsyncClient(trust_env=False, timeout=_UPSTREAM_S)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def predict(self, fields: Mapping[str, str], image: bytes | None) -> httpx.Response:
        """Send a form. Raises Refusal if the service cannot be reached."""
        files = {} if image is None else {"image": ("blob", image, "application/octet-stream")}
        try:
            return await self._http.post(self._url, data=fields, files=files)
        except httpx.HTTPError as error:
            message = f"Immich's own service does not answer ({type(error).__name__}): see --immich-upstream."
            raise Refusal(503, message, code="upstream_unavailable") from None
