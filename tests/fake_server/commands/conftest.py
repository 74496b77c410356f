"""Servers for commands, which have an event loop of their own or are processes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from clip_client.testing import FakeTriton
from tests.fixtures.fakes import served


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[[FakeTriton], FakeTriton]]:
    with ExitStack() as stack:
        yield lambda fake: stack.enter_context(served(fake))
