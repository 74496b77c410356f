"""What the tests of moves share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.crashes import kills

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ("kills",)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the photos of a test are."""
    return tmp_path / "root"
