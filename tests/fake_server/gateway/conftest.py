"""A scripted Triton, and a gateway in front of it."""

from collections.abc import AsyncIterator

import httpx
import pytest

from clip_client.testing import FakeTriton
from tests.fixtures.gateways import gateway


@pytest.fixture
async def triton() -> AsyncIterator[FakeTriton]:
    async with FakeTriton(has_text=True) as server:
        yield server


@pytest.fixture
async def http(triton: FakeTriton) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway(triton.url) as client:
        yield client


@pytest.fixture
def url(http: httpx.AsyncClient) -> str:
    return str(http.base_url).rstrip("/")
