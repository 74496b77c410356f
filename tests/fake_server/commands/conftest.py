"""Servers for commands, which have an event loop of their own or are processes."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.fixtures.fakes import Serve, served


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda fake: stack.enter_context(served(fake))
