"""Servers for commands, which have an event loop of their own or are processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from anyio.from_thread import start_blocking_portal

from clip_client.testing import FakeTriton


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[[FakeTriton], FakeTriton]]:
    """Start a server in another thread, for the tests of a module."""
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        yield lambda fake: stack.enter_context(portal.wrap_async_context_manager(fake))
