"""A server that fails as a script says, and a client of it: over gRPC, and without a network."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

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


@pytest.fixture
async def reported() -> list[Any]:
    """Errors that the running loop reports because no caller gets them."""
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context.get("exception")))
    return errors
