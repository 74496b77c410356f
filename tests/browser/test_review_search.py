"""The search by words in Chromium: the keyboard, a photo that is dropped, the way to a group and back, and axe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import PHONE, opened, violations
from tests.fixtures.images.scenes import resized, scene
from tests.fixtures.reviews import review_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from tests.fixtures.reviews import Review

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    (folder / "Pictures").mkdir()
    for number in range(4):
        scene(number, (480, 360)).save(folder / "Pictures" / f"scene {number}.png")
    resized(scene(0, (480, 360)), 0.5).save(folder / "Pictures" / "small 0.png")
    return folder


@pytest.fixture(scope="module")
def review(folder: Path) -> Iterator[Review]:
    with review_of(folder / "Pictures", store=folder / "store") as running:
        yield running


@pytest.fixture
def page(browser: Browser, review: Review) -> Iterator[Page]:
    with opened(browser, review) as context:
        page = context.new_page()
        page.goto(f"{review.address}/")
        yield page


def test_a_person_searches_with_the_keyboard_and_enlarges_what_is_found(page: Page, folder: Path) -> None:
    page.keyboard.press("w")
    expect(page.get_by_role("heading", level=1)).to_have_text("Search by words")
    page.keyboard.press("/")
    page.keyboard.type(str(folder / "Pictures" / "scene 0.png"))
    page.keyboard.press("Enter")
    expect(page.locator(".name").first).to_have_text("scene 0.png")
    expect(page.locator("figure")).to_have_count(4)
    page.locator("figure a.mat").first.focus()
    page.keyboard.press("Enter")
    viewer = page.get_by_role("dialog")
    expect(viewer.get_by_role("heading")).to_have_text("scene 0.png")
    expect(viewer.get_by_role("button", name="Keep this one")).to_be_hidden()
    page.keyboard.press("ArrowRight")
    expect(viewer.get_by_role("heading")).not_to_have_text("scene 0.png")
    page.keyboard.press("Escape")
    expect(viewer).to_be_hidden()


def test_a_result_leads_to_its_group_and_back(page: Page, folder: Path, review: Review) -> None:
    page.goto(f"{review.address}/search?q={folder}/Pictures/scene 0.png")
    page.get_by_role("link", name="+1 copy of scene 0.png").click()
    expect(page.locator(".group[data-group='1']")).to_be_visible()
    page.keyboard.press("w")
    expect(page.locator(".name").first).to_have_text("scene 0.png")
    page.get_by_role("link", name="Similar to scene 3.png").click()
    expect(page.locator(".name").first).to_have_text("scene 3.png")


def test_a_photo_is_dropped_onto_the_page(page: Page, folder: Path, review: Review) -> None:
    page.goto(f"{review.address}/search")
    data = (folder / "Pictures" / "scene 2.png").read_bytes()
    page.evaluate(
        """bytes => {
          const files = new DataTransfer();
          files.items.add(new File([new Uint8Array(bytes)], "dropped.png", {type: "image/png"}));
          document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: files, bubbles: true, cancelable: true}));
        }""",
        list(data),
    )
    expect(page.locator(".name").first).to_have_text("scene 2.png")
    expect(page.get_by_role("checkbox", name="Like your photo")).to_be_checked()


def test_a_photo_is_chosen_with_the_keyboard(page: Page, folder: Path, review: Review) -> None:
    page.goto(f"{review.address}/search")
    page.get_by_label("Search by a photo").set_input_files(folder / "Pictures" / "scene 1.png")
    expect(page.locator(".name").first).to_have_text("scene 1.png")


def test_axe_finds_nothing_and_a_phone_needs_no_scrolling_sideways(page: Page, folder: Path, review: Review) -> None:
    page.goto(f"{review.address}/search?q={folder}/Pictures/scene 0.png&format=png")
    expect(page.locator("figure")).to_have_count(4)
    assert violations(page) == []
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
