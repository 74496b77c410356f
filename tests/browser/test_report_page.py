"""The report page in Chromium: what it shows, and that all of it works with the keyboard and without a network."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from PIL import Image

from clip_client.dedup import DuplicateGroup, FailedFile, Match, Member
from clip_client.dedup.features.preview import thumbnail
from clip_client.dedup.pages.html import write_page
from clip_client.dedup.types import ALTERED, BURST, EXACT, SAME_PIXELS, SIMILAR, Metadata
from tests.browser.conftest import PHONE, TABLET, WIDE, box, violations
from tests.fixtures import members

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.browser.conftest import OpenPage

HOSTILE: Final = b"<img src=x onerror=alert(1)>&\"'\n\xe2\x80\xae\xff.jpg"
expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

APPLY: Final = "clip-client dedup 'my photos' --apply"


_SIZES: Final = """async (images) => {
  for (const image of images) image.loading = "eager";
  await Promise.all(images.map((image) => image.decode()));
  return images.map((image) => [[image.width, image.height], [image.naturalWidth, image.naturalHeight],
    image.closest("figure").dataset.size.split("x").map(Number)]);
}"""
"""Each as it is shown, its preview, and the photo: width and height."""
_LOADED: Final = "[...document.querySelectorAll('.stage img')].every((one) => one.complete && /^file:/.test(one.src))"


def picture(path: Path, size: tuple[int, int] = (600, 400), seed: int = 0, **more: Any) -> Member:
    """Save a small picture, and make a member of a group for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.linear_gradient("L").rotate(seed % 360).resize(size).convert("RGB").save(path, "JPEG")
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()
    return members.member(path, width=size[0], height=size[1], **{"similarity": 0.99, "sha256": digest, **more})


def group(kept: Member, *others: Member, tier: str = SIMILAR) -> DuplicateGroup:
    why = (Match(test="embedding", value=0.99, threshold=0.98),)
    rest = (replace(member, matches=why, tier=tier) for member in others)
    return members.group(kept, *rest, tier=tier, min_similarity=0.99, reason="most pixels")


def write(page: Path, *groups: DuplicateGroup, failed: tuple[FailedFile, ...] = ()) -> Path:
    report = members.report(*groups, compared=99, failed=failed, skipped={".txt": 2})
    with page.open("wb") as file:
        write_page(report, file, thumbnail=thumbnail, page=page, apply=APPLY)
    return page


@pytest.fixture(scope="module", autouse=True)
def _command_on_the_path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
        yield


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Groups of 3, 2 and 14 photos, panoramas, icons, a photo that is gone, and one whose name is an attack."""
    folder = tmp_path_factory.mktemp("album")
    gone = picture(folder / "trip/gone.jpg", size_bytes=10)
    os.unlink(gone.path)
    kept = picture(
        folder / "trip/kept.jpg", (1200, 800), metadata=Metadata(taken="2019-05-03T10:11:12", camera="Canon EOS 5D"),
    )  # fmt: skip
    half = picture(folder / "trip/half.jpg", size_bytes=50_000)
    hostile = picture(folder / os.fsdecode(HOSTILE), seed=9, size_bytes=40_000)
    frames = [picture(folder / f"burst/{number}.jpg", (90, 60), number, size_bytes=9) for number in range(14)]
    panoramas = [picture(folder / f"panorama{end}.jpg", (3000, 300), size_bytes=20) for end in ("", " 2")]
    icons = picture(folder / "icon.png", (32, 32)), picture(folder / "icon small.png", (16, 16), size_bytes=15)
    copies = [picture(folder / name, (400, 600), sha256="a" * 64) for name in ("a.jpg", "Copy of a.jpg")]
    return write(
        folder / "report.html",
        group(kept, half, hostile, tier=SAME_PIXELS),
        group(*copies, tier=EXACT),
        group(frames[0], replace(frames[1], other_shot=BURST), *frames[2:]),
        group(*panoramas),
        group(*icons),
        group(picture(folder / "still here.jpg"), gone),
        failed=(FailedFile(path=os.fsdecode(HOSTILE), code="TRUNCATED", message="The file ends early."),),
    )


def shown_groups(page: Page) -> int:
    return page.locator(".group:visible").count()


def test_the_result_is_first_and_hostile_names_are_text(page: Path, open_page: OpenPage) -> None:
    with open_page(page, viewport=WIDE) as view:
        assert view.locator("h1").inner_text() == "3 photos, 91.0 kB, can move safely; 15 similar copies wait for you"
        assert view.title() == view.locator("h1").inner_text()
        first = view.locator(".group").first
        assert first.locator("h2").inner_text() == "90.0 kB to free in 2 copies"
        assert first.locator(".origin").all_inner_texts() == ["2019-05-03 10:11, Canon EOS 5D"]
        shown = "<img src=x onerror=alert(1)>&\"'\\n\\u202e\\xff.jpg"
        assert first.locator(".name").nth(2).inner_text() == shown
        assert view.locator("#not-compared td").first.inner_text() == shown
        assert view.get_by_text("can no longer be opened").count() == 1


def test_filters_by_tier_and_by_the_name_of_a_file_or_folder(page: Path, open_page: OpenPage) -> None:
    with open_page(page, viewport=WIDE) as view:
        status = view.get_by_role("status")
        assert (shown_groups(view), status.inner_text()) == (6, "")
        view.get_by_role("radio", name="All").focus()
        view.keyboard.press("ArrowRight")  # to the first tier
        assert (shown_groups(view), status.inner_text()) == (1, "1 of 6 groups, 1.0 kB")
        view.get_by_role("radio", name="All").press("Space")
        search = view.get_by_role("searchbox", name="File or folder name")
        for text, found in (("TRIP", 2), ("panorama 2", 1), ("onerror", 1), ("nowhere", 0), ("", 6)):
            search.fill(text)
            assert shown_groups(view) == found, text
        search.fill("nowhere")
        assert status.inner_text() == "0 of 6 groups"


def test_groups_collapse_and_long_ones_are_folded(page: Path, open_page: OpenPage) -> None:
    with open_page(page, viewport=WIDE) as view:
        photos = view.locator("figure")
        assert photos.locator("visible=true").count() == 3 + 2 + 12 + 2 + 2 + 2
        view.get_by_text("Show 2 more").click()
        assert photos.locator("visible=true").count() == photos.count() == 25
        view.get_by_role("button", name="Collapse all").click()
        assert photos.locator("visible=true").count() == 0
        view.locator(".group summary").first.focus()
        view.keyboard.press("Enter")
        assert photos.locator("visible=true").count() == 3
        view.get_by_role("button", name="Expand all").click()
        assert photos.locator("visible=true").count() == 25


def test_a_photo_is_enlarged_and_compared_with_the_keyboard_alone(page: Path, open_page: OpenPage) -> None:
    with open_page(page, viewport=WIDE) as view:
        link = view.locator("a.mat").nth(1)
        link.focus()
        view.keyboard.press("Enter")
        viewer = view.get_by_role("dialog")
        name, image = viewer.locator("h2"), viewer.locator("img.shown")
        assert name.inner_text() == "half.jpg"
        assert "2 of 3 · 600 × 400 · 50.0 kB" in viewer.locator(".viewer-facts").inner_text()
        expect(image).to_have_attribute("src", str(link.get_attribute("href")))  # the photo itself, once it is loaded
        place = image.bounding_box()
        view.keyboard.press(" ")
        assert name.inner_text() == "Kept: kept.jpg"
        assert image.bounding_box() == place, "photos of one shape are compared at one place and size"
        view.keyboard.press(" ")
        names = []
        for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft"):
            view.keyboard.press(key)
            names.append(name.inner_text()[:8])
        assert names == ["<img src", "Kept: ke", "half.jpg", "Kept: ke", "<img src"]
        for _ in range(8):
            view.keyboard.press("Tab")
            assert view.evaluate(
                "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
            )
        view.keyboard.press("Escape")
        assert not viewer.is_visible()
        assert link.evaluate("link => link === document.activeElement")


def test_two_photos_are_compared_at_one_zoom_and_place(page: Path, open_page: OpenPage) -> None:
    with open_page(page, viewport=WIDE) as view:
        view.locator("a.mat").nth(1).click()
        images, zoom = view.locator(".stage img.shown"), view.locator(".zoom")

        def boxes() -> list[tuple[int, ...]]:
            return [box(item) for item in images.all()]

        view.keyboard.press("x")
        assert (len(boxes()), len(set(boxes()))) == (2, 1), "a difference needs both at one place"
        view.keyboard.press("b")
        left, right = boxes()
        assert left[1:] == right[1:]
        assert left[0] + left[2] < right[0]
        for key in ("+", "z", "z"):
            before = (boxes(), zoom.inner_text())
            view.keyboard.press(key)
            left, right = boxes()
            assert left[1:] == right[1:], "they move and grow together"
            assert (boxes(), zoom.inner_text()) != before
        for key in ("+", "+", "Shift+ArrowDown"):
            view.keyboard.press(key)
        top = boxes()[0][1]
        view.mouse.move(300, 400)
        view.mouse.down()
        view.mouse.move(300, 430)
        view.mouse.up()
        assert [one[1] - top for one in boxes()] == [30, 30]
        before_wheel = zoom.inner_text()
        view.mouse.wheel(0, -200)
        expect(zoom).not_to_have_text(before_wheel)


@pytest.mark.parametrize("scale", [1, 1.5])
def test_equal_photos_have_a_black_difference(tmp_path: Path, open_page: OpenPage, scale: float) -> None:
    equal = group(*(picture(tmp_path / name, (641, 427)) for name in ("a.jpg", "a copy.jpg")), tier=EXACT)
    with open_page(write(tmp_path / "report.html", equal), viewport=WIDE, device_scale_factor=scale) as view:
        view.locator("a.mat").nth(1).click()
        view.keyboard.press("x")
        while not view.evaluate(_LOADED):  # wait_for_function uses eval, which the page's policy forbids
            view.wait_for_timeout(20)
        for key in ("o", "x", "+", "z", "+", "+", "+"):
            view.keyboard.press(key)
            shown = Image.open(io.BytesIO(view.locator(".stage").screenshot())).convert("L")
            assert any(shown.histogram()[30:]) == (key == "o"), f"after {key}"


def test_an_aligned_crop_is_compared_where_it_lies(tmp_path: Path, open_page: OpenPage) -> None:
    place = {"transform": (1.0, 0.0, 150.0, 0.0, 1.0, 100.0), "region": (0.5, 0.5, 0.1, 0.2), "region_share": 0.02}
    why = members.aligned(ALTERED, "cropped to 25 %", **place)
    crop = picture(tmp_path / "crop.jpg", (300, 200), matches=why, tier=ALTERED)
    found = members.group(picture(tmp_path / "kept.jpg"), crop, min_similarity=0.99)
    with open_page(write(tmp_path / "report.html", found), viewport=WIDE) as view:
        view.locator("a.mat").nth(1).click()
        view.keyboard.press("x")
        pictures = {item.get_attribute("alt"): box(item) for item in view.locator(".stage img.shown").all()}
        left, top, *_ = pictures["kept.jpg"]
        assert pictures["crop.jpg"] == (left + 150, top + 100, 300, 200)
        assert box(view.locator(".outline:visible")) == (left + 300, top + 200, 60, 80)


def test_an_enlarged_icon_keeps_its_size_and_a_click_with_ctrl_opens_the_file(page: Path, open_page: OpenPage) -> None:
    with open_page(page, viewport=WIDE) as view:
        icons = view.locator(".group", has_text="icon small.png")
        icons.locator("a.mat").first.click()
        assert box(view.locator(".stage img.shown"))[2:] == (32, 32)
        view.get_by_role("button", name="Close").click()
        with view.context.expect_page() as opened:
            icons.locator("a.mat").first.click(modifiers=["Control"])
        assert opened.value.url.endswith("/icon.png")


def bash_reads(command: str) -> list[bytes]:
    out = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True).stdout
    return out.split(b"\0")[:-1]


def test_commands_can_be_copied_and_a_shell_reads_what_was_meant(page: Path, open_page: OpenPage) -> None:
    with open_page(page, viewport=WIDE, permissions=["clipboard-read", "clipboard-write"]) as view:

        def copied(button: Locator) -> str:
            button.click()
            expect(button).to_have_text("Copied")
            return str(view.evaluate("navigator.clipboard.readText()"))

        steps = view.locator(".steps [data-do=copy]")
        assert [copied(steps.nth(0)), copied(steps.nth(1))] == [APPLY, "clip-client undo"]
        first = view.locator(".group").first
        first.get_by_text("Why they match").click()
        paths = [os.fsencode(page.parent / os.fsdecode(name)) for name in (b"trip/kept.jpg", b"trip/half.jpg", HOSTILE)]
        decide = [b"clip-client", b"decide", b"different"]
        assert bash_reads(copied(first.locator("[data-do=copy]"))) == [*decide, *paths]
        first.locator("a.mat").nth(2).click()
        offer = view.get_by_role("dialog").locator("[data-do=copy]")
        assert bash_reads(copied(offer)) == [*decide, paths[2], paths[0]]
        view.keyboard.press("Escape")
        view.locator("a.mat").nth(3).click()  # of two files with the same bytes, which are one photo
        expect(offer).to_be_hidden()


def test_without_javascript_everything_can_be_read(page: Path, open_page: OpenPage) -> None:
    with open_page(page, viewport=WIDE, java_script_enabled=False) as view:
        assert view.locator("figure").locator("visible=true").count() == 23
        assert view.locator("button:visible, input:visible, dialog:visible").count() == 0
        view.get_by_text("Show 2 more").click()
        assert view.locator("figure").locator("visible=true").count() == 25
        view.locator("a.mat").first.click()
        assert view.url.endswith("/trip/kept.jpg")


def test_no_picture_is_cropped_or_enlarged_and_nothing_overflows(page: Path, open_page: OpenPage) -> None:
    with open_page(page) as view:
        for viewport in (WIDE, TABLET, PHONE):
            view.set_viewport_size(viewport)
            sizes = view.locator("figure img:visible").evaluate_all(_SIZES)
            assert len(sizes) == 22
            for shown, own, photo in sizes:
                assert shown[0] <= own[0] <= photo[0]
                assert abs(shown[0] / shown[1] - photo[0] / photo[1]) <= 0.1 * photo[0] / photo[1] or min(shown) < 20
            assert view.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        lefts = view.locator(".mat:visible").evaluate_all("all => all.map(one => one.getBoundingClientRect().x)")
        assert len(set(lefts)) == 1, "one column"


def test_axe_finds_no_violation(page: Path, open_page: OpenPage, tmp_path: Path) -> None:
    with open_page(page, viewport=WIDE, reduced_motion="reduce") as view:
        # Below the screen nothing is drawn yet, and axe would skip it.
        view.locator(".group").evaluate_all("all => all.forEach(one => one.style.contentVisibility = 'visible')")
        view.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
        assert violations(view, sizes=(WIDE, PHONE)) == []
        view.locator("a.mat").first.click()
        assert violations(view, sizes=(WIDE,)) == []
        view.goto(write(tmp_path / "empty.html").as_uri())
        assert violations(view, sizes=(PHONE,)) == []


def test_a_large_report_loads_its_pictures_when_they_are_seen(tmp_path: Path, open_page: OpenPage) -> None:
    photos = [picture(tmp_path / f"{number}.jpg", (64, 48), number) for number in range(102)]
    groups = [group(*pair) for pair in zip(photos[::2], photos[1::2], strict=True)]
    page = write(tmp_path / "report.html", *groups)
    assert page.stat().st_size < 200_000
    with open_page(page, viewport=PHONE) as view:
        last = view.locator("figure img").last
        assert last.evaluate("image => image.naturalWidth") == 0
        last.scroll_into_view_if_needed()
        expect(last).to_have_js_property("naturalWidth", 64)
