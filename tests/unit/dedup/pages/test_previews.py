"""The small pictures of a page: their sizes, where they are kept, and what is drawn again."""

import hashlib
import io
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clip_client.dedup import DuplicateReport, Member
from clip_client.dedup.features.image_features import extract_features
from clip_client.dedup.features.preview import thumbnail
from clip_client.dedup.pages.html import write_page
from clip_client.dedup.pages.previews import draw_previews, fit
from clip_client.dedup.types import PREVIEWS_MARK
from tests.fixtures import members
from tests.fixtures.images.image_files import oriented


def member(name: str, content: str | None = None, size: tuple[int, int] = (640, 480)) -> Member:
    sha256 = hashlib.sha256((content or name).encode()).hexdigest()
    return members.member(name, width=size[0], height=size[1], sha256=sha256)


def report(*photos: Member) -> DuplicateReport:
    return members.report(members.group(*photos))


def many(number: int) -> DuplicateReport:
    return report(*(member(f"{index}.jpg") for index in range(number)))


class Drawer:
    """Counts what is drawn, and stands for photos that cannot be opened."""

    def __init__(self, *gone: str) -> None:
        self.drawn: list[tuple[str, int]] = []
        self._gone = gone
        self._lock = threading.Lock()

    def __call__(self, path: str, side: int) -> bytes | None:
        with self._lock:
            self.drawn.append((path, side))
        return None if path in self._gone else b"jpeg of " + path.encode()


@pytest.mark.parametrize(
    ("size", "fitted"),
    [
        ((4000, 3000), (320, 240)),
        ((3000, 4000), (240, 320)),
        ((320, 240), (320, 240)),
        ((16, 16), (16, 16)),
        ((8000, 1000), (784, 98)),
        ((40000, 400), (1120, 11)),
        ((400, 40000), (4, 416)),
        ((100_000, 1), (1120, 1)),
    ],
)
def test_previews_have_one_area_whatever_their_shape_and_are_never_enlarged(
    size: tuple[int, int], fitted: tuple[int, int]
) -> None:
    assert fit(*size, 320) == fitted


@pytest.mark.parametrize(("number", "side"), [(100, 480), (5_000, 320), (5_001, 240)])
def test_a_small_report_has_its_pictures_in_the_page_and_a_large_one_has_smaller_ones(
    tmp_path: Path, number: int, side: int
) -> None:
    of, folder = many(number), tmp_path / "report-files"
    drawer = Drawer(*(one.path for one in of.groups[0].members[100:]))
    previews = draw_previews(of, drawer, folder)
    assert {drawn for _, drawn in drawer.drawn} == {side}
    assert previews.are_large == (side == 480)
    sources = set(previews.sources.values())
    assert (
        {source.startswith("data:image/jpeg;base64,") for source in sources} == {not folder.exists()} == {side == 480}
    )


def test_a_large_report_has_its_pictures_in_a_folder_beside_the_page(tmp_path: Path) -> None:
    page = tmp_path / "my report.html"
    of, drawer, folder = many(101), Drawer(), tmp_path / "my report-files"
    with page.open("wb") as file:
        write_page(of, file, thumbnail=drawer, page=page)
    text = page.read_text("utf-8")
    assert text.count('<img src="my%20report-files/') == 101
    assert "data:image" not in text
    assert {side for _, side in drawer.drawn} == {320}
    first = of.groups[0].members[0]
    assert (folder / f"{first.sha256[:32]}-320.jpg").read_bytes() == b"jpeg of 0.jpg"
    assert len(os.listdir(folder)) == 102
    assert (folder / PREVIEWS_MARK).exists()


def test_a_folder_with_photos_of_a_person_is_never_the_one_of_a_page(tmp_path: Path) -> None:
    """The previews of the next report go where those of the last one are."""
    page = tmp_path / "report.html"
    theirs = tmp_path / "report-files"
    theirs.mkdir()
    (theirs / "mine.jpg").write_text("a photo")
    for _ in range(2):
        write_page(many(101), io.BytesIO(), thumbnail=Drawer(), page=page)
    assert os.listdir(theirs) == ["mine.jpg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report-files", "report-files-2"]
    assert len(os.listdir(tmp_path / "report-files-2")) == 102


def test_a_second_report_draws_only_what_is_new_and_removes_only_its_own_old_previews(tmp_path: Path) -> None:
    folder = tmp_path / "report-files"
    draw_previews(many(102), Drawer(), folder)
    (folder / "mine.jpg").write_text("a file of the user")
    interrupted = folder / ("0" * 32 + "-320.jpg.part")
    interrupted.write_text("half a picture")
    again = Drawer()
    of = report(*(member(f"{index}.jpg") for index in range(1, 103)))
    draw_previews(of, again, folder)
    assert again.drawn == [("102.jpg", 320)]
    wanted = {f"{one.sha256[:32]}-320.jpg" for one in of.groups[0].members}
    assert set(os.listdir(folder)) == wanted | {PREVIEWS_MARK, "mine.jpg"}

    draw_previews(many(2), Drawer(), folder)
    assert os.listdir(folder) == ["mine.jpg"]
    (folder / "mine.jpg").unlink()
    draw_previews(many(102), Drawer(), folder)
    draw_previews(many(2), Drawer(), folder)
    assert not folder.exists()
    folder.mkdir()
    like_ours = folder / ("0" * 32 + "-320.jpg")
    like_ours.write_text("a file of the user")
    draw_previews(many(2), Drawer(), folder)
    assert like_ours.exists()


def test_equal_contents_share_a_preview_of_the_first_that_can_be_opened() -> None:
    drawer = Drawer("gone.jpg")
    one, two = member("gone.jpg", "same"), member("there.jpg", "same")
    calls: list[tuple[str, int, int | None]] = []
    previews = draw_previews(report(one, two), drawer, None, lambda *call: calls.append(call))
    assert drawer.drawn == [("gone.jpg", 480), ("there.jpg", 480)]
    assert previews.picture(one, is_pair=True) == previews.picture(two, is_pair=True) is not None
    assert calls == [("drawing", 1, 1)]


def test_what_cannot_be_decoded_is_not_opened_again() -> None:
    drawer = Drawer()
    damaged = member("damaged.jpg", size=(0, 0))
    assert draw_previews(report(damaged), drawer, None).picture(damaged, is_pair=False) is None
    assert drawer.drawn == []


def test_the_page_says_the_size_at_which_a_picture_is_shown() -> None:
    pano = member("pano.jpg", size=(8000, 1000))
    icon = member("icon.png", size=(16, 12))
    previews = draw_previews(report(pano, icon), Drawer(), None)
    shown = {name: previews.picture(one, is_pair=False) for name, one in (("pano", pano), ("icon", icon))}
    sizes = {name: picture and (picture.width, picture.height, picture.is_wide) for name, picture in shown.items()}
    assert sizes == {"pano": (784, 98, True), "icon": (16, 12, False)}
    file = io.BytesIO()
    write_page(report(pano, icon), file, thumbnail=Drawer())
    assert 'width="16" height="12"' in file.getvalue().decode()


def test_an_interrupted_drawing_does_not_draw_the_rest() -> None:
    drawer, never = Drawer(), threading.Event()

    def draw_slowly(path: str, side: int) -> bytes | None:
        never.wait(0.01)  # all in 12 s or more on 4 cores, whenever the main thread gets its turn
        return drawer(path, side)

    def interrupt(what: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw_previews(many(5_000), draw_slowly, None, interrupt)
    assert len(drawer.drawn) < 5_000


@pytest.mark.parametrize(("side", "kilobytes"), [(480, 26), (320, 15), (240, 9)])
def test_previews_of_real_photos_take_the_space_that_the_documentation_names(
    photos: Path, side: int, kilobytes: int
) -> None:
    sizes = []
    for path in photos.iterdir():
        with Image.open(path) as image:
            longest = max(fit(*image.size, side))
        sizes.append(len(thumbnail(str(path), longest) or b""))
    assert round(sum(sizes) / len(sizes) / 1000) == kilobytes


def test_a_thumbnail_is_upright_and_what_is_no_picture_has_none(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.png"):
        Image.linear_gradient("L").resize((400, 200)).save(tmp_path / name, exif=oriented(6))
        small = thumbnail(str(tmp_path / name), 50)
        assert small is not None
        with Image.open(io.BytesIO(small)) as seen:
            assert (seen.size, seen.mode) == ((25, 50), "RGB")
    (tmp_path / "text.jpg").write_text("no picture")
    (tmp_path / "damaged.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:120])
    assert [thumbnail(str(tmp_path / f"{name}.jpg"), 50) for name in ("text", "damaged", "gone")] == [None] * 3


def test_flat_pictures_are_told_from_photos(tmp_path: Path, photos: Path) -> None:
    noise = np.random.default_rng(0).normal(20, 2, (300, 400, 3)).clip(0, 255).astype(np.uint8)
    transparent = Image.new("RGBA", (200, 200), (255, 0, 0, 0))
    transparent.paste((0, 0, 255, 0), (0, 0, 100, 200))  # invisible colours
    flat = {"black.jpg": Image.new("L", (300, 200)), "night.jpg": Image.fromarray(noise), "clear.png": transparent}
    for name, image in flat.items():
        image.save(tmp_path / name)
    for path in (*photos.iterdir(), *map(tmp_path.joinpath, flat)):
        assert extract_features(path.read_bytes())[0].is_flat == (path.name in flat), path.name
