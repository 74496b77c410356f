"""Waiting for something to become true, where nothing can be awaited."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


async def until(condition: Callable[[], object]) -> None:
    """Look every few milliseconds; the time limit of the test ends it where it never comes true."""
    while not condition():  # noqa: ASYNC110 - what is waited for belongs to another process or library
        await asyncio.sleep(0.002)
