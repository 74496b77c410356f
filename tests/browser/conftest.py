"""A headless Chromium, and pages that a test watches: an error or a request to the network fails it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from clip_client.review.state.session import Busy
from tests.fixtures.reviews import Review

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page, ViewportSize

    OpenPage = Callable[..., AbstractContextManager[Page]]
    """``open_page(path, **context_options)``"""

WIDE: Final[ViewportSize] = {"width": 1440, "height": 900}
TABLET: Final[ViewportSize] = {"width": 800, "height": 600}
PHONE: Final[ViewportSize] = {"width": 390, "height": 844}

_EMPTY: Final = "<svg xmlns='http://www.w3.org/2000/svg'/>"


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium; its event loop ends with this package, because it would block the loops of other tests."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)  # as for all other actions; the machine may be busy
    # The shell has no window at all, and needs two thirds of the time.
    names = ("chromium-headless-shell", "chromium", "google-chrome")
    executable = next(filter(None, map(shutil.which, names)), None)
    if executable is None:
        pytest.skip("chromium is not installed")
    # Root, as in a container of the CI, has no sandbox.
    sandbox = not (hasattr(os, "geteuid") and os.geteuid() == 0)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, chromium_sandbox=sandbox)
        yield chromium
        chromium.close()


def violations(view: Page, *, sizes: Sequence[ViewportSize] = (WIDE, TABLET, PHONE)) -> list[str]:
    """Return what axe finds in the page: on a large screen, a tablet and a phone, and dark on the first of them."""
    pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    from axe_playwright_python.sync_playwright import Axe

    view.evaluate(Axe().axe_script)
    found = []
    colours: list[str] = ["color-contrast"]
    layout = [*colours, "scrollable-region-focusable", "target-size"]
    rules_of = [(size, layout if size is TABLET else None) for size in sizes]
    for number, (size, rules) in enumerate([(sizes[0], colours), *rules_of]):
        view.set_viewport_size(size)
        view.emulate_media(color_scheme="light" if number else "dark")
        options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
        found += [
            f"{size['width']} px{'' if number else ', dark'}: {one['id']}: {node['html']}"
            for one in view.evaluate("options => axe.run(options).then((all) => all.violations)", options)
            for node in one["nodes"]
        ]
    view.set_viewport_size(WIDE)
    return found


def box(item: Locator) -> tuple[int, ...]:
    """Return where an element is in the window, and how large: left, top, width and height."""
    found = item.bounding_box()
    assert found, "it is not shown"
    return tuple(round(found[side]) for side in ("x", "y", "width", "height"))


@contextmanager
def watched(context: BrowserContext, may_ask: Callable[[str], bool]) -> Iterator[Page]:
    """A window: an error, a dialog, or a request to an address that a page may not ask for fails the test."""
    errors: list[str] = []
    # Not what Chromium only notes: that it left the focus where it was, for instance.
    context.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    context.on("dialog", lambda dialog: errors.append(f"dialog: {dialog.message}"))
    context.on("weberror", lambda error: errors.append(str(error.error)))
    context.on("request", lambda request: None if may_ask(request.url) else errors.append(request.url))
    yield context.new_page()
    context.close()
    assert errors == []


@contextmanager
def opened(browser: Browser, review: Review, *, serves_photos: bool = True) -> Iterator[Page]:
    """The first page of a review, in a browser for it."""
    context = browser.new_context(viewport=WIDE, reduced_motion="reduce")
    if not serves_photos:
        context.route("**/photos/**", lambda route: route.fulfill(body=_EMPTY, content_type="image/svg+xml"))
    with watched(context, lambda url: review.secret in url) as page:
        page.goto(f"{review.address}/")
        yield page


@pytest.fixture
def page(browser: Browser, review: Review) -> Iterator[Page]:
    """The first page of the module's ``review``; what a test decides and does not apply is taken back."""
    with opened(browser, review) as first:
        yield first
    with suppress(Busy):
        while True:
            review.session.take_back()


def press(page: Page, *keys: str) -> None:
    """Press keys, each on the page that the one before led to."""
    for key in keys:
        before = page.locator("main").element_handle()
        page.keyboard.press(key)
        if key in ("Enter", "a", "d", "s", "u", "j", "k", "g"):
            page.wait_for_function("before => !before.isConnected", arg=before)


@pytest.fixture
def open_page(browser: Browser) -> OpenPage:
    """Open a file in a window of its own."""

    @contextmanager
    def opened_file(path: Path, **options: Any) -> Iterator[Page]:
        with watched(browser.new_context(**options), lambda url: not url.startswith(("http", "ws"))) as page:
            page.goto(path.as_uri())
            yield page

    return opened_file
