"""A headless Chromium, and pages that a test watches: an error or a request to the network fails it."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    OpenPage = Callable[..., AbstractContextManager[Page]]
    """``open_page(path, **context_options)``"""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium; its event loop ends with this package, because it would block the loops of other tests."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    from playwright.sync_api import sync_playwright

    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("chromium is not installed")
    # Root, as in a container of the CI, has no sandbox.
    sandbox = not (hasattr(os, "geteuid") and os.geteuid() == 0)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, chromium_sandbox=sandbox)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser) -> OpenPage:
    """Open a file in a window of its own."""

    @contextmanager
    def opened(path: Path, **options: Any) -> Iterator[Page]:
        context = browser.new_context(**options)
        page = context.new_page()
        errors: list[str] = []
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(f"dialog: {dialog.message}"))
        page.on(
            "request", lambda request: errors.append(request.url) if request.url.startswith(("http", "ws")) else None
        )
        page.goto(path.as_uri())
        yield page
        context.close()
        assert errors == []

    return opened
