"""The page that ``search --report`` writes, in Chromium: no network, no error, the enlarged view, and axe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clip_client.dedup.features.preview import thumbnail
from clip_client.search.pictures import FoundPicture, write_page
from tests.browser.conftest import PHONE, WIDE, violations
from tests.fixtures.images.scenes import scene

if TYPE_CHECKING:
    from pathlib import Path

    from tests.browser.conftest import OpenPage

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect


@pytest.fixture
def written(tmp_path: Path) -> Path:
    pictures = []
    for number in range(3):
        path = tmp_path / f"a & b {number}.png"
        scene(number, (480, 360)).save(path)
        facts = {"width": 480, "height": 360, "taken_ms": 0, "camera": "Canon <EOS>"} if number else {}
        copies = (str(tmp_path / "a copy.png"),) if number == 1 else ()
        pictures.append(FoundPicture(path=str(path), score=0.3 - number / 10, facts=facts, copies=copies))
    pictures.append(FoundPicture(path=str(tmp_path / "gone.png"), score=0.0))
    about = {
        "query": "a <dog>", "compared": 4, "model": "m/trained@00000000", "is_random": False,
        "nothing_clearly_matches": True,
    }  # fmt: skip
    page = tmp_path / "page.html"
    with page.open("wb") as file:
        write_page(about, pictures, file, thumbnail=thumbnail)
    return page


def test_results_are_shown_and_enlarged(open_page: OpenPage, written: Path) -> None:
    with open_page(written) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text("a <dog>")
        expect(page.get_by_text("Nothing clearly matches.")).to_be_visible()
        expect(page.locator("figure img")).to_have_count(3)
        expect(page.get_by_text("can no longer be opened")).to_be_visible()
        page.locator("figure a.mat").first.click()
        viewer = page.get_by_role("dialog")
        expect(viewer.get_by_role("heading")).to_have_text("a & b 0.png")
        expect(viewer.get_by_role("button", name="Compare with another")).to_be_visible()
        page.keyboard.press("ArrowRight")
        expect(viewer.get_by_role("heading")).to_have_text("a & b 1.png")
        page.keyboard.press("Escape")


def test_axe_finds_nothing_and_a_phone_needs_no_scrolling_sideways(open_page: OpenPage, written: Path) -> None:
    with open_page(written, reduced_motion="reduce") as page:
        page.locator(".group").evaluate("one => one.style.contentVisibility = 'visible'")
        page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
        assert violations(page, sizes=(WIDE, PHONE)) == []
        page.set_viewport_size(PHONE)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
