"""Fixtures that the tests of moves share."""

from __future__ import annotations

from tests.fixtures.crashes import kills

__all__ = ("kills",)
