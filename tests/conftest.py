"""Fixtures for every test. The marker of a test is the name of its folder."""

from __future__ import annotations

import os
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


os.environ["CLIP_PRECISION"] = "fp32"
"""For every test, and every server and command that one starts: many compare vectors bit by bit, and on a processor
with bf16 the default would be that. Tests of the default itself set another value."""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the developer's own settings."""
    for name in ("CLIP_URL", "CLIP_MODEL", "CLIP_STORE", "CLIP_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="session")
def default_signals() -> None:
    """Stop ignoring signals that a shell ignores in background jobs; processes that tests start would inherit that."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            # A handler, not the default action: a suite under nohup must continue. Children get the default action,
            # because exec removes handlers.
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else lambda *_: None)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 20 real photos of mixed sizes, formats and modes."""
    directory = tmp_path_factory.mktemp("photos")
    write_originals(directory)
    return directory
