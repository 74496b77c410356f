"""A server that fails as a script says, and a client of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clip_client import ClipClient
from clip_client.testing import FakeTriton

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def server() -> AsyncIterator[FakeTriton]:
    async with FakeTriton() as fake:
        yield fake


@pytest.fixture
async def clip(server: FakeTriton) -> AsyncIterator[ClipClient]:
    async with ClipClient(server.url) as client:
        yield client
