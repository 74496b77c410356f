"""The review in Chromium: a person decides, and the test looks at the store and the files, not at the page."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from clip_client.dedup import DuplicateReport, Member, Store
from clip_client.dedup.aligned import PUT_INTO
from clip_client.dedup.types import EDITED, EXACT, SAME_PIXELS, SIMILAR, Companion, Metadata
from tests.browser.conftest import PHONE, box, opened, press
from tests.fixtures import members
from tests.fixtures.albums import member, report, write
from tests.fixtures.images.scenes import encoded, resized, scene
from tests.fixtures.reviews import Review, of_report, review_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from clip_client.dedup.types import OnProgress

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

GROUPS: Final = 6


@pytest.fixture(scope="module")
def review(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Review]:
    """Six groups, each of a picture, a copy of its pixels and a small one; each frees less than the one before."""
    folder = tmp_path_factory.mktemp("review")
    for number in range(GROUPS):
        place = folder / "Pictures" / f"trip {number}"
        place.mkdir(parents=True)
        picture = scene(number, (480 - 20 * number, 360))
        picture.save(place / "photo.png")
        os.utime(place / "photo.png", (1_500_000_000, 1_500_000_000))  # older than its copies by more than a second
        picture.save(place / "photo copy.bmp")
        resized(picture, 0.5).save(place / "photo small.png")
    with review_of(folder / "Pictures", store=folder / "store") as running:
        yield running


def decisions(review: Review) -> list[tuple[str, str, list[str]]]:
    """Return what the store holds: what was chosen, the photo that stays, and those that move."""
    with Store(review.session.store.directory) as store:
        return [
            (one.what, short(one.photos[0].path), [short(photo.path) for photo in one.photos if photo.moves])
            for one in store.choices.all()
        ]


def short(path: str) -> str:
    return "/".join(path.split("/")[-2:])


def open_first(page: Page) -> None:
    page.locator(".list a").first.click()
    expect(page.locator(".group")).to_be_visible()


def test_a_person_decides_with_the_keyboard_alone(page: Page, review: Review) -> None:
    page.locator(".list a").first.focus()
    press(page, "Enter", "2", "Enter", "d", "a", "s")
    expect(page.locator("h1")).to_be_focused()
    groups = [[short(member.path) for member in group_of(review, number)] for number in range(1, 5)]
    assert decisions(review) == [
        ("keep", groups[0][1], [groups[0][0], groups[0][2]]),
        ("different", groups[1][0], []),
        ("keep-all", groups[2][0], []),
        ("skip", groups[3][0], []),
    ]
    press(page, "u")
    expect(page).to_have_url(f"{review.address}/groups/4")
    press(page, "u", "u")
    assert [what for what, _, _ in decisions(review)] == ["keep"]


def test_a_second_tab_shows_a_decision_and_a_reload_keeps_it(page: Page, review: Review) -> None:
    with page.context.expect_page() as opened:
        page.locator(".list a").first.click(modifiers=["Control"])
    other = opened.value
    other.wait_for_load_state()  # a picture that comes later moves what is clicked on
    other.get_by_role("checkbox", name="Move").last.press("Space")
    other.get_by_role("button", name="Keep 1, move 1 other").click()
    expect(page.locator("li[data-group='1'] .state")).to_have_text("One stays")
    expect(page.get_by_role("button", name="Apply 1 decision")).to_be_visible()
    other.goto(f"{review.address}/groups/1")
    assert [box.is_checked() for box in other.get_by_role("checkbox", name="Move").all()] == [True, False]
    assert len(decisions(review)[0][2]) == 1


def test_the_enlarged_view_stays_while_groups_are_decided(page: Page, review: Review) -> None:
    open_first(page)
    viewer = page.get_by_role("dialog")
    press(page, "f", "ArrowRight", "ArrowRight", "c", "Enter")
    expect(viewer).to_be_visible()
    expect(page).to_have_url(f"{review.address}/groups/2")
    assert decisions(review)[0][1].endswith("/photo small.png")
    page.keyboard.press("Escape")
    expect(viewer).to_be_hidden()


def test_the_list_is_filtered_while_a_person_types(page: Page, review: Review) -> None:
    search = page.get_by_role("searchbox")
    page.keyboard.press("/")
    page.keyboard.type("TRIP 3/")
    expect(page).to_have_url(f"{review.address}/?text=TRIP+3%2F")
    expect(page.locator(".list li")).to_have_count(1)
    expect(search).to_be_focused()
    page.locator(".list a").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("to free in 2 copies")
    by_default = [re.compile(f"^{said}") for said in ("keeps it$", "moves it$", "moves it$")]
    expect(page.locator(".by-default")).to_have_text(by_default)
    expect(page.get_by_role("link", name="Next")).to_have_count(0)  # the only one that was looked for
    page.go_back()
    expect(search).to_have_value("TRIP 3/")
    page.get_by_role("combobox").select_option("")
    search.fill("nothing like it")
    expect(page.get_by_text("No group fits.")).to_be_visible()


def test_the_keys_are_listed_and_one_that_does_nothing_says_why(page: Page) -> None:
    notice = page.locator(".notice")
    page.keyboard.press("p")
    expect(notice).to_have_text("There is no decision to apply yet.")
    page.keyboard.press("d")
    expect(notice).to_contain_text("This key is for one group")
    open_first(page)
    expect(notice).to_be_hidden()
    for key, why in (("9", "only 3 photos"), ("k", "the first group"), ("x", "f enlarges one")):
        page.keyboard.press(key)
        expect(notice).to_contain_text(why)
    page.keyboard.press("?")
    rows = page.get_by_role("dialog").locator("tr")
    for key, does in (("d", "Different photos"), ("a", "Keep all"), ("u", "Undo the last decision")):
        assert rows.filter(has_text=does).locator("kbd").all_inner_texts() == [key]
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    press(page, "f", "c")
    expect(notice).to_have_text("This photo stays already.")
    # Else the enlarged view would cover it.
    assert notice.evaluate("notice => notice.matches(':popover-open')")


def test_the_list_of_keys_is_that_of_the_page(page: Page, review: Review) -> None:
    for path, enlarged in (("/", False), ("/groups/1", True), ("/rules", False), ("/history", False)):
        page.goto(f"{review.address}{path}")
        page.keyboard.press("?")
        row = page.get_by_role("dialog").locator("tr", has_text="Keep the enlarged photo")
        expect(row.locator("visible=true")).to_have_count(int(enlarged))
        expect(page.get_by_role("heading", name="Enlarged")).to_have_count(int(enlarged))


def test_a_large_group_shows_more_photos_and_keeps_what_was_chosen(page: Page, review: Review) -> None:
    page.goto(f"{review.address}/groups/1?most=2")
    expect(page.locator("figure")).to_have_count(2)
    decide = page.locator("[value=keep].is-primary")
    expect(decide).to_contain_text("Keep 1, move 1 other")
    page.keyboard.press("2")
    expect(decide).to_contain_text("Keep 2, move 1 other")
    page.get_by_role("link", name="Show more photos").click()
    expect(page.locator("figure")).to_have_count(3)
    expect(decide).to_contain_text("Keep 2, move 2 others")
    page.locator("figure").last.get_by_role("checkbox").press("Space")
    press(page, "Enter")
    page.goto(f"{review.address}/groups/2?most=2")
    press(page, "Enter")
    first, second = ([short(member.path) for member in group_of(review, number)] for number in (1, 2))
    assert decisions(review) == [("keep", first[1], [first[0]]), ("keep", second[0], second[1:2])]


def group_of(review: Review, number: int) -> tuple[Member, ...]:
    found = review.session.groups.get(number)
    assert found is not None
    return found.group.members


def test_on_a_phone_two_photos_come_before_the_buttons(page: Page) -> None:
    page.set_viewport_size(PHONE)
    open_first(page)
    _, buttons, *_ = box(page.locator(".decide"))
    for place in (0, 1):
        _, top, _, height = box(page.locator("figure").nth(place))
        assert top + height < buttons


def test_rules_decide_many_groups_and_one_undo_takes_all_of_it_back(page: Page, review: Review) -> None:
    open_first(page)
    page.get_by_role("link", name="Always prefer").first.click()
    folder = page.get_by_role("textbox", name="In this folder")
    expect(folder).to_have_value(re.compile("/trip"))
    folder.fill("")
    newest = page.get_by_role("checkbox", name="Newest")
    newest.check()
    counts = page.locator(".counts")
    expect(counts).to_contain_text("In 0 groups the rules keep another photo")
    for _ in range(12):
        page.get_by_role("button", name="Move up: Newest").press("Enter")
    page.get_by_role("checkbox", name="Most pixels").uncheck()
    page.evaluate("scrollTo(0, 0)")  # else the target is behind the bar at the top
    page.locator("[data-rule=newest]").drag_to(page.locator("[data-rule='folder=']"), target_position={"x": 20, "y": 2})
    expect(page.locator(".sortable li").first).to_contain_text("Newest")
    expect(counts).to_contain_text(f"In {GROUPS} groups the rules keep another photo")
    page.get_by_role("textbox", name="Name", exact=True).fill("small ones")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("button", name="small ones", exact=True)).to_be_visible()
    with Store(review.session.store.directory) as store:
        (rules,) = store.settings.keep_rules().values()
    assert (rules[0], "pixels" in rules) == ("newest", False)
    page.get_by_role("button", name="small ones", exact=True).click()
    expect(counts).to_contain_text(f"In {GROUPS} groups the rules keep another photo")
    page.get_by_role("button", name="Decide by these rules").click()
    expect(page.get_by_role("button", name=f"Apply {GROUPS} decisions")).to_be_visible()
    assert {keep.split("/")[-1] for _, keep, _ in decisions(review)} == {"photo small.png"}
    assert len(decisions(review)) == GROUPS
    page.get_by_role("link", name="Rules").focus()
    press(page, "Enter", "u")
    assert decisions(review) == []


@pytest.mark.long
def test_ten_thousand_groups_open_page_by_page(browser: Browser, tmp_path: Path) -> None:
    def photo(number: int, **more: Any) -> Member:
        return members.member(f"/photos/{number}.jpg", sha256=f"{number:064x}", width=40, height=30, **more)

    async def search(_on_progress: OnProgress) -> DuplicateReport:
        groups = ((photo(2 * number), photo(2 * number + 1, similarity=0.99)) for number in range(10_000))
        return members.report(*(members.group(*pair) for pair in groups))

    with review_of(tmp_path, store=tmp_path / "store", search=search) as running:
        with opened(browser, running, serves_photos=False) as page:
            expect(page.locator(".list li")).to_have_count(50)
            expect(page.get_by_text("1 to 50 of 10,000")).to_be_visible()
            press(page, "r")
            expect(page.locator(".counts")).to_contain_text("10,000 groups would stay open")
            expect(page.locator("[data-goes-on]")).to_have_count(0)
            press(page, "g")
            press(page, "j")
            expect(page.get_by_text("51 to 100 of 10,000")).to_be_visible()
            page.get_by_role("searchbox").fill("/19999.jpg")
            expect(page.locator(".list li")).to_have_count(1)
            page.locator(".list a").click()
            expect(page).to_have_url(re.compile(r"/groups/10000\?"))
            press(page, "Enter")
        assert decisions(running) == [("keep-all", "photos/19998.jpg", [])]


def reviewing(folder: Path, *groups: Sequence[Member]) -> AbstractContextManager[Review]:
    found = report(*map(tuple, groups))
    return review_of(folder / "Pictures", store=folder / "store", search=of_report(found))


def test_a_photo_that_the_kept_one_may_be_made_from_is_kept_unless_a_person_marks_it(
    browser: Browser, tmp_path: Path
) -> None:
    """A screenshot of a photo is larger, but is not a reason to move the photo."""
    paths = [write(tmp_path / "Pictures" / name, name.encode()) for name in ("screenshot.png", "photo.jpg")]
    doubted = members.aligned(EDITED, doubts=(PUT_INTO,))
    pair = member(paths[0], width=1170, height=2532), member(paths[1], tier=EDITED, matches=doubted)
    with reviewing(tmp_path, pair) as running, opened(browser, running, serves_photos=False) as page:
        open_first(page)
        expect(page.locator("figure").nth(1).get_by_text(PUT_INTO)).to_be_visible()
        expect(page.get_by_role("checkbox", checked=True)).to_have_count(0)
        press(page, "2", "1")  # a photo that was kept for a moment is not marked by that
        expect(page.get_by_role("button", name="Nothing moves")).to_be_disabled()
        press(page, "Enter")
        expect(page.locator(".list")).to_be_visible()
        assert decisions(running) == [("keep-all", "Pictures/screenshot.png", [])]
        page.goto(f"{running.address}/groups/1")
        press(page, "u")
        page.locator("[name=move]").nth(1).check()
        press(page, "Enter", "p")
        expect(page.locator(".plan .mark")).to_contain_text(PUT_INTO)
        assert decisions(running) == [("keep", "Pictures/screenshot.png", ["Pictures/photo.jpg"])]


def test_a_person_learns_at_once_that_equal_files_are_not_different(browser: Browser, tmp_path: Path) -> None:
    files = (("a.dng", b"1"), ("b.dng", b"1"), ("c.dng", b"2"))
    group = [member(write(tmp_path / "Pictures" / name, data), width=0, height=0) for name, data in files]
    with reviewing(tmp_path, group) as running, opened(browser, running) as page:
        page.goto(f"{running.address}/groups/1")
        press(page, "d")
        expect(page.locator(".notice")).to_contain_text("the next search shows them again")


def test_what_moves_is_marked_and_gives_the_group_its_tier(browser: Browser, tmp_path: Path) -> None:
    """The first copy is the same file; the second copy only looks alike, and stays."""
    group = [
        member(write(tmp_path / "Pictures" / f"{name}.jpg", name[:4].encode()), width=40, height=30, tier=tier)
        for name, tier in (("copy", EXACT), ("copy 2", EXACT), ("alike", SIMILAR))
    ]
    with reviewing(tmp_path, group) as review, opened(browser, review, serves_photos=False) as page:
        expect(page.locator(".list .tier")).to_have_text("Exact")
        expect(page.get_by_role("radio", name="Exact 1")).to_be_attached()
        assert page.locator(".thumbs img").evaluate_all("all => all.map(one => one.alt)") == ["", "moves", ""]
        press(page, "Enter")
        expect(page.locator(".above .tier")).to_have_text("Exact")
        marks = page.locator("figure:not(.kept) [name=move]").all()
        assert [mark.is_checked() for mark in marks] == [True, False]
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
    with reviewing(tmp_path, first, second) as review, opened(browser, review, serves_photos=False) as page:
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
    with review_of(folder, store=tmp_path / "store") as review, opened(browser, review) as page:
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
        page.route("**/full", lambda route: held.append(route))
        page.reload()
        figures["2.bmp"].locator("a.mat").click()
        page.keyboard.press("x")
        expect(note).to_have_text("Loading …")
        for route in held:
            route.continue_()
        page.unroute("**/full")
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
    with reviewing(tmp_path, found) as review, opened(browser, review, serves_photos=False) as page:
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto(f"{review.address}/groups/1")
        expect(page.locator(".compare td", has_text="FinePix").first).to_be_visible()
        shown, needed = page.locator(".compare").evaluate("it => [it.clientWidth, it.scrollWidth]")
        assert needed <= shown
