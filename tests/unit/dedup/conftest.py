"""Fixtures that the tests of the store and of the actions share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clip_client.cli.main import main
from clip_client.dedup import Store
from clip_client.dedup.store.journal import Journal
from tests.fixtures.albums import opened
from tests.fixtures.commands import Run, Said
from tests.fixtures.crashes import kills

__all__ = ("kills",)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with opened(tmp_path / "history.sqlite") as journal:
        yield journal


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Folder of a test's photos."""
    return tmp_path / "root"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store") as store:
        yield store


@pytest.fixture
def said(run: Run) -> Said:
    """Run a command that ends with this code, and return the lines that it prints, errors last."""
    return lambda *words, code=0: [line for text in run(main, *words, code=code) for line in text.splitlines()]
