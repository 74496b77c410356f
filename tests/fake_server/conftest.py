"""A server that fails as a script says, and a client of it: over gRPC, and without a network."""

from collections.abc import AsyncIterator

import pytest

from clip_client import ClipClient
from clip_client.testing import FakeTriton
from tests.fixtures.fakes import InMemoryClient


@pytest.fixture
async def server() -> AsyncIterator[FakeTriton]:
    async with FakeTriton() as fake:
        yield fake


@pytest.fixture
async def clip(server: FakeTriton) -> AsyncIterator[ClipClient]:
    async with ClipClient(server.url) as client:
        yield client


@pytest.fixture
def fake() -> FakeTriton:
    """A server of images and texts that listens on no port."""
    return FakeTriton(has_text=True)


@pytest.fixture
async def near(fake: FakeTriton) -> AsyncIterator[InMemoryClient]:
    async with InMemoryClient({"localhost": fake}) as client:
        yield client
