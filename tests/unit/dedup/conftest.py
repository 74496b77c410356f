"""Fixtures that the tests of the store and of the actions share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clip_client.dedup.store.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.sqlite")
    yield opened
    opened.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Folder of a test's photos."""
    return tmp_path / "root"
