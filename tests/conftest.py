"""Fixtures for every test; a test's marker is the folder it lies in."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from preprocess_ensemble.testing.sample_photos import write_originals
from tests.skipped import pytest_terminal_summary

__all__ = ("pytest_terminal_summary",)

TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        item.add_marker(getattr(pytest.mark, folder))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own settings must not decide how a test ends."""
    for name in ("CLIP_URL", "CLIP_MODEL", "CLIP_STORE", "CLIP_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="session")
def heeded_signals() -> None:
    """A shell has what it starts in the background ignore them, and every process that a test starts would, too."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            # Not the default action: a suite under nohup is to go on. No handler outlives exec, so children have it.
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else lambda *_: None)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 20 real photos of mixed sizes, formats and modes."""
    directory = tmp_path_factory.mktemp("photos")
    write_originals(directory)
    return directory
