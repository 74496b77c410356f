"""The review in Chromium: marked photos, keys that act on photos which nobody saw, and the counts of the rest."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from clip_client.dedup import Member, Store
from clip_client.dedup.types import EDITED, SAME_PIXELS, SIMILAR, Companion, Metadata
from tests.browser.conftest import go, opened, press
from tests.fixtures import members
from tests.fixtures.albums import member, report, write
from tests.fixtures.images.scenes import encoded, scene
from tests.fixtures.reviews import Review, of_report, review_of

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect


def reviewing(folder: Path, *groups: Sequence[Member]) -> AbstractContextManager[Review]:
    found = report(*map(tuple, groups))
    return review_of(folder / "Pictures", store=folder / "store", search=of_report(found))


def photos(folder: Path, count: int, data: bytes = b"", **given: Any) -> list[Member]:
    """Make files with the same bytes, or, without ``data``, each with its own; ``given`` is about all but the first."""
    paths = [folder / "Pictures" / f"{number:03}.jpg" for number in range(count)]
    return [
        member(write(path, data or path.name.encode()), width=40, height=30, **(given if number else {}))
        for number, path in enumerate(paths)
    ]


def moving(review: Review) -> list[tuple[str, list[str]]]:
    """Return what the store holds: each choice, and the names of the photos that it moves."""
    with Store(review.session.store.directory) as store:
        return [
            (one.what, sorted(os.path.basename(photo.path) for photo in one.photos if photo.moves))
            for one in store.choices.all()
        ]


def marked(page: Page) -> list[bool]:
    return [box.is_checked() for box in page.locator("figure:not(.kept) [name=move]").all()]


@pytest.mark.parametrize("tier", [SIMILAR, EDITED])
def test_enter_moves_nothing_of_a_group_that_apply_would_leave(browser: Browser, tmp_path: Path, tier: str) -> None:
    matches = members.aligned(EDITED) if tier == EDITED else ()
    found = photos(tmp_path, 200, tier=tier, matches=matches)
    with reviewing(tmp_path, found) as review, opened(browser, review, serves_photos=False) as context:
        page = go(context, review)
        expect(page.get_by_role("heading", level=1)).to_contain_text("199 ")
        press(page, "Enter")
        assert marked(page) == [False] * 59
        press(page, "Enter")
        assert moving(review) == [("keep-all", [])]
        page.goto(f"{review.address}/groups/1")
        page.locator("figure").nth(7).locator("[name=move]").press("Space")
        press(page, "Enter")
        assert moving(review)[-1] == ("keep", ["007.jpg"])


def test_what_moves_is_marked_and_gives_the_group_its_tier(browser: Browser, tmp_path: Path) -> None:
    """The first copy is the same file; the second copy only looks alike, and stays."""
    kept, copy = photos(tmp_path, 2, b"copy")
    alike = member(write(tmp_path / "Pictures" / "alike.jpg", b"alike"), width=40, height=30, tier=SIMILAR)
    with reviewing(tmp_path, (kept, copy, alike)) as review, opened(browser, review, serves_photos=False) as context:
        page = go(context, review)
        expect(page.locator(".list .tier")).to_have_text("Exact")
        expect(page.get_by_role("radio", name="Exact 1")).to_be_attached()
        assert page.locator(".thumbs img").evaluate_all("all => all.map(one => one.alt)") == ["", "moves", ""]
        press(page, "Enter")
        expect(page.locator(".above .tier")).to_have_text("Exact")
        assert marked(page) == [True, False]
        page.locator("figure").nth(2).locator("[name=move]").press("Space")
        press(page, "Enter")
        expect(page.locator(".list .tier")).to_have_text("Similar")


def test_after_apply_the_totals_say_what_is_left(browser: Browser, tmp_path: Path) -> None:
    """The kept photo of the first group is chosen anew, so another size moves than the search suggests."""
    sizes = {"small": 1_000, "large": 3_000, "other": 500}
    paths = {name: write(tmp_path / "Pictures" / f"{name}.jpg", bytes(size)) for name, size in sizes.items()}
    again = write(tmp_path / "Pictures" / "again.jpg", bytes(sizes["other"]))
    first = (member(paths["large"]), member(paths["small"], tier=SAME_PIXELS))
    second = (member(paths["other"]), member(again))
    with reviewing(tmp_path, first, second) as review, opened(browser, review, serves_photos=False) as context:
        page = go(context, review)
        heading, found = page.get_by_role("heading", level=1), page.locator(".overview .soft")
        expect(heading).to_have_text("2 photos, 1.5 kB, can move safely")
        page.locator(".list a", has_text="1.0 kB").click()
        expect(heading).to_have_text("1.0 kB to free in 1 copy")
        press(page, "2", "Enter", "g")
        expect(heading).to_have_text("Up to 3.5 kB could be freed")
        expect(found).to_contain_text("Still undecided: 1 photo, 500 B, can move safely.")
        expect(page.get_by_role("button", name="Apply 1 decision, up to 3.0 kB")).to_be_visible()
        row = page.locator(".list li", has_text="small.jpg")
        expect(row).to_contain_text("3.0 kB to free in 1 copy")
        press(page, "p")
        expect(heading).to_have_text("1 decision, 3.0 kB to the quarantine")
        press(page, "Enter")
        expect(heading).to_have_text("1 photo moved to the quarantine, 3.0 kB")
        press(page, "g")
        expect(heading).to_have_text("Up to 500 B could be freed")
        expect(row).to_contain_text("3.0 kB moved in 1 copy")
        expect(row.locator("img")).to_have_count(1)
        row.locator("a").click()
        expect(heading).to_have_text("3.0 kB moved in 1 copy")


def test_the_difference_says_whether_there_is_one(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "Pictures"
    folder.mkdir()
    picture = scene(1)
    picture.save(folder / "1.png")
    picture.save(folder / "2.bmp")
    encoded(picture, "JPEG", quality=50).save(folder / "3.png")
    with review_of(folder, store=tmp_path / "store") as review, opened(browser, review) as context:
        page = go(context, review)
        page.goto(f"{review.address}/groups/1")
        note = page.get_by_role("dialog").locator("[role=status]")
        figures = {name: page.locator("figure", has_text=name) for name in ("2.bmp", "3.png")}
        for name, said in (("2.bmp", "No difference"), ("3.png", "What differs, 3 times as bright")):
            figures[name].locator("a.mat").click()
            page.keyboard.press("x")
            expect(note).to_have_text(said)
            page.keyboard.press("o")
            expect(note).to_have_text("")
            page.keyboard.press("Escape")
        held: list[Any] = []
        context.route("**/full", lambda route: held.append(route))
        page.reload()
        figures["2.bmp"].locator("a.mat").click()
        page.keyboard.press("x")
        expect(note).to_have_text("Loading …")
        for route in held:
            route.continue_()
        context.unroute("**/full")
        expect(note).to_have_text("No difference")


def test_all_columns_of_the_comparison_fit_into_1280_pixels(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "Pictures" / "2024 Summer holidays" / "WhatsApp Images of the family"
    facts: dict[str, Any] = {
        "width": 12000,
        "height": 9000,
        "metadata": Metadata(taken="2024-05-01T10:00:00", camera="FUJIFILM FinePix S5000 Zoom"),
    }
    names = ("IMG_20240501_100000_very_long_name", "IMG_20240501_100000_another_long_name")
    found = []
    for name in names:
        path, raw = write(folder / f"{name}.jpg", b"x"), write(folder / f"{name}.cr2", b"raw")
        found.append(member(path, companions=(Companion(path=str(raw), kind="RAW file"),), **facts))
    with reviewing(tmp_path, found) as review, opened(browser, review, serves_photos=False) as context:
        page = go(context, review)
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto(f"{review.address}/groups/1")
        expect(page.locator(".compare td", has_text="FinePix").first).to_be_visible()
        shown, needed = page.locator(".compare").evaluate("it => [it.clientWidth, it.scrollWidth]")
        assert needed <= shown
