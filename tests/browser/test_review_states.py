"""The review in Chromium with hostile names, with missing files, and with searches that run, fail or find nothing."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image

from clip_client.dedup import DuplicateReport, Member, Store
from clip_client.dedup.store.journal import State
from clip_client.review.state.found_groups import Filter
from tests.browser.conftest import PHONE, WIDE, opened, press, violations
from tests.fixtures.albums import member, report
from tests.fixtures.images.scenes import scene
from tests.fixtures.reviews import Review, of_report, review_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

    from clip_client.dedup.types import OnProgress

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

HOSTILE: Final = {
    b"<img src=x onerror=alert(1)>": "<img src=x onerror=alert(1)>",
    b"\"'><script>alert(1)<!--": "\"'><script>alert(1)<!--",
    b"line\nbreak\r\x1b[2J": "line\\nbreak\\r\\x1b[2J",
    "right\u202eto left\u2066 {{ 7 * 7 }}".encode(): "right\\u202eto left\\u2066 {{ 7 * 7 }}",
    b"caf\xe9 \xff%2f..": "caf\\xe9 \\xff%2f..",
}
"""Name on disk -> as the pages show it. Each is the name of a folder and of a photo in it."""


def photo(path: Path, angle: int = 0) -> Member:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.radial_gradient("L").rotate(angle).crop((angle, 0, 256, 200)).convert("RGB").save(path, "PNG")
    return member(path, width=256 - angle, height=200, mtime_ns=path.stat().st_mtime_ns)


@pytest.fixture(scope="module")
def review(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Review]:
    """Copies with hostile names; a group whose kept photo is gone, and one whose copy is."""
    folder = tmp_path_factory.mktemp("review")
    album = folder / "Pictures"
    names = list(map(os.fsdecode, HOSTILE))
    groups = [
        tuple(photo(album / name / f"{name}.png") for name in names),
        *(
            tuple(photo(album / gone / f"{name}.png", angle) for name in "ab")
            for angle, gone in ((20, "kept"), (40, "copy"))
        ),
    ]
    with review_of(album, store=folder / "store", search=of_report(report(*groups))) as running:
        yield running


def group_of(review: Review, name: str) -> int:
    """Return the number of the group with a photo whose path holds ``name``."""
    (found,) = (one for one in review.session.groups.each(Filter()) if name in one.group.members[0].path)
    return found.id


def files(folder: Path) -> set[bytes]:
    """Return the paths of the photos outside the quarantine."""
    found = (path.relative_to(folder) for path in folder.rglob("*.png"))
    return {os.fsencode(path) for path in found if not path.parts[0].startswith(".")}


def test_hostile_names_are_text_and_what_is_done_hits_the_right_file(page: Page, review: Review) -> None:
    album = Path(review.session.roots[0])
    before = files(album)
    number = group_of(review, "onerror")
    page.get_by_role("searchbox").fill("onerror=alert(1)>")
    expect(page.locator(".list li")).to_have_count(1)
    expect(page.locator(".where bdi").first).to_have_text("<img src=x onerror=alert(1)>.png")
    page.goto(f"{review.address}/groups/{number}")
    shown = list(HOSTILE.values())
    assert page.locator("figure .name").all_inner_texts() == [f"{name}.png" for name in shown]
    assert page.locator("figure .folder").all_inner_texts() == [f"Pictures/{name}/" for name in shown]
    assert page.locator("figure img").evaluate_all("all => all.map(one => one.alt)") == [f"{one}.png" for one in shown]
    # An address cannot hold the name of every folder, and what a rule would not match is not offered.
    links = page.get_by_role("link", name="Always prefer").all()
    preferred = [parse_qs(urlsplit(link.get_attribute("href") or "").query)["prefer"][0] for link in links]
    assert preferred == [os.path.join(album, name, "") for name in shown[:2]]
    press(page, "5", "f")
    expect(page.get_by_role("dialog").locator("h2")).to_have_text(f"Kept: {shown[4]}.png")
    page.keyboard.press("Escape")
    press(page, "Enter", "p")
    expect(page.get_by_role("heading", level=1)).to_contain_text("1 decision")
    assert page.locator(".plan td a").all_inner_texts() == [f"Pictures/{name}/{name}.png" for name in shown[:4]]
    press(page, "Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("4 photos moved")
    names = list(HOSTILE)
    assert before - files(album) == {name + b"/" + name + b".png" for name in names[:4]}
    with Store(review.session.store.directory) as store:
        moved = {os.fsencode(entry.files[0].original) for entry in store.journal.entries([State.MOVED])}
    assert moved == {os.fsencode(album) + b"/" + name + b"/" + name + b".png" for name in names[:4]}
    press(page, "h")
    expect(page.get_by_role("heading", level=1)).to_have_text("History")
    press(page, "u")
    expect(page.get_by_text("4 photos came back.")).to_be_visible()
    assert files(album) == before


def test_missing_files_are_marked_and_nothing_moves_for_them(page: Page, review: Review) -> None:
    album = Path(review.session.roots[0])
    before = files(album)
    for name in ("kept/a.png", "copy/b.png"):
        os.unlink(album / name)
    address = review.address
    for folder, place in (("kept", 0), ("copy", 1)):
        page.goto(f"{address}/groups/{group_of(review, f'/{folder}/')}")
        expect(page.locator("figure").nth(place).locator("div.mat")).to_have_text("Missing since the search")
        expect(page.locator("figure a.mat img")).to_have_count(1)
        expect(page.locator("figure").nth(1).locator(".refused")).to_contain_text("Would stay.")
        if folder == "kept":
            assert violations(page, sizes=(WIDE, PHONE)) == []
        press(page, "Enter")
    press(page, "p")
    expect(page.get_by_role("heading", level=1)).to_contain_text("2 decisions, 0 B to the quarantine")
    expect(page.locator(".plan tbody tr")).to_have_count(2)
    press(page, "Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("0 photos moved")
    assert files(album) == before - {b"kept/a.png", b"copy/b.png"}


@pytest.mark.long
def test_axe_finds_no_violation_on_any_page(page: Page, review: Review) -> None:
    address = review.address
    press(page, "?")
    assert violations(page, sizes=(WIDE,)) == []
    review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]})
    for path in ("/", "/groups/1", "/rules"):
        page.goto(f"{address}{path}")
        assert violations(page) == [], path
    page.goto(f"{address}/groups/1")
    press(page, "f")
    assert violations(page, sizes=(WIDE, PHONE)) == []
    page.goto(address)
    press(page, "p")
    expect(page.locator(".plan").first).to_be_visible()
    assert violations(page) == []
    press(page, "Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("moved to the quarantine")
    for path in ("/plan", "/groups/1", "/history"):
        page.goto(f"{address}{path}")
        assert violations(page, sizes=(WIDE, PHONE)) == [], path


def test_the_page_shows_how_far_a_search_is_and_then_that_it_found_nothing(browser: Browser, tmp_path: Path) -> None:
    goes_on = threading.Event()

    async def search(on_progress: OnProgress) -> DuplicateReport:
        on_progress("files found", 1234, None)
        on_progress("photos read", 50, 200)
        await asyncio.to_thread(goes_on.wait, 60)
        return report()

    with review_of(tmp_path, store=tmp_path / "store", search=search, waits=False) as running:
        with opened(browser, running) as page:
            expect(page.get_by_role("heading", level=1)).to_have_text("Looking for duplicates")
            expect(page.get_by_text("Files found 1,234")).to_be_visible()
            expect(page.get_by_role("progressbar", name="Photos read 50 of 200")).to_be_visible()
            expect(page.get_by_role("link")).to_have_count(0)
            assert running.get("/groups/1").status == 409
            assert violations(page, sizes=(PHONE,)) == []
            goes_on.set()
            expect(page.get_by_role("heading", level=1)).to_have_text("No duplicates were found")
            expect(page.get_by_text("9 photos compared.")).to_be_visible()
            assert violations(page, sizes=(PHONE,)) == []


def test_the_page_says_that_a_slow_search_by_words_goes_on(browser: Browser, tmp_path: Path) -> None:
    scene(1, (480, 360)).save(tmp_path / "one.png")
    held: list[Route] = []
    with review_of(tmp_path, store=tmp_path / "store") as running, opened(browser, running) as page:
        page.route("**/search?q=*", lambda route: held.append(route))
        page.get_by_role("link", name="Search", exact=True).click()
        page.get_by_role("searchbox", name="What the photos show").fill("dog")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("Searching. The first search takes some seconds")
        held[0].continue_()
        expect(page.get_by_text("1 picture of 1 different file")).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)


def test_a_page_says_that_its_server_does_not_answer(browser: Browser, review: Review) -> None:
    page = browser.new_page()
    page.goto(f"{review.address}/")
    page.route("**/state", lambda route: route.abort())
    expect(page.locator(".notice")).to_contain_text("does not answer")
    page.unroute("**/state")
    expect(page.locator(".notice")).to_be_hidden()
    page.close()
