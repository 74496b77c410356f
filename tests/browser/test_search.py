"""The search by words in Chromium: on the pages of the review, and the page that ``search --report`` writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clip_client.dedup.features.preview import thumbnail
from clip_client.search.pictures import FoundPicture, FoundPictures, write_page
from tests.browser.conftest import PHONE, WIDE, violations
from tests.fixtures.images.scenes import scene
from tests.fixtures.reviews import Review, review_of, save_scenes

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.conftest import OpenPage

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    save_scenes(folder / "Pictures")
    return folder


@pytest.fixture(scope="module")
def review(folder: Path) -> Iterator[Review]:
    with review_of(folder / "Pictures", store=folder / "store") as running:
        yield running


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
    page.get_by_role("link", name="+1 copy of scene 0.png").click()
    expect(page.locator(".group[data-group='1']")).to_be_visible()
    page.keyboard.press("w")
    expect(page.locator(".name").first).to_have_text("scene 0.png")


def test_a_photo_is_dropped_onto_the_page_or_chosen(page: Page, folder: Path, review: Review) -> None:
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
    page.get_by_label("Search by a photo").set_input_files(folder / "Pictures" / "scene 1.png")
    expect(page.locator(".name").first).to_have_text("scene 1.png")


def test_axe_finds_nothing_and_a_phone_needs_no_scrolling_sideways(page: Page, folder: Path, review: Review) -> None:
    page.goto(f"{review.address}/search?q={folder}/Pictures/scene 0.png&format=png")
    expect(page.locator("figure")).to_have_count(4)
    assert violations(page) == []
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_written_page_shows_and_enlarges_what_was_found(open_page: OpenPage, tmp_path: Path) -> None:
    """The page that ``search --report`` writes; axe finds nothing, and a phone can show it."""
    pictures = []
    for number in range(3):
        path = tmp_path / f"a & b {number}.png"
        scene(number, (480, 360)).save(path)
        facts = {"width": 480, "height": 360, "taken_ms": 0, "camera": "Canon <EOS>"} if number else {}
        copies = (str(tmp_path / "a copy.png"),) if number == 1 else ()
        pictures.append(FoundPicture(path=str(path), score=0.3 - number / 10, facts=facts, copies=copies))
    pictures.append(FoundPicture(path=str(tmp_path / "gone.png"), score=0.0))
    written = tmp_path / "page.html"
    with written.open("wb") as file:
        found = FoundPictures(pictures=tuple(pictures), compared=4, compared_in_words="4 photos", model_id="m/x@0")
        write_page("a <dog>", found, file, thumbnail=thumbnail)
    with open_page(written, reduced_motion="reduce") as page:
        expect(page.get_by_role("heading", level=1)).to_have_text("a <dog>")
        expect(page.get_by_text("4 pictures of 4 photos")).to_be_visible()
        expect(page.locator("figure img")).to_have_count(3)
        expect(page.get_by_text("can no longer be opened")).to_be_visible()
        page.locator("figure a.mat").first.click()
        viewer = page.get_by_role("dialog")
        expect(viewer.get_by_role("heading")).to_have_text("a & b 0.png")
        expect(viewer.get_by_role("button", name="Compare with another")).to_be_visible()
        page.keyboard.press("ArrowRight")
        expect(viewer.get_by_role("heading")).to_have_text("a & b 1.png")
        page.keyboard.press("Escape")
        page.locator(".group").evaluate("one => one.style.contentVisibility = 'visible'")
        page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
        assert violations(page, sizes=(WIDE, PHONE)) == []
        page.set_viewport_size(PHONE)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
