"""Which of several copies a search keeps, and what never moves for it, on generated pictures."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from clip_client.dedup import Store
from clip_client.dedup.aligned import LACKS_DETAIL
from clip_client.dedup.types import EDITED, SAFE_TIERS
from tests.fixtures.albums import planned
from tests.fixtures.images.camera_files import exif
from tests.fixtures.images.scenes import cropped, noisy, resized, scene
from tests.fixtures.report_schema import check
from tests.unit.dedup.alignment.searches import DUPLICATES, by_name, search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clip_client.dedup import DuplicateReport

    Change = Callable[[Image.Image], Image.Image]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(tmp_path_factory.mktemp("store")) as opened:
        yield opened


def same(picture: Image.Image) -> Image.Image:
    return picture


def on_a_screen(picture: Image.Image) -> Image.Image:
    screen = Image.new("RGB", (800, 1400), (18, 18, 20))
    screen.paste(resized(picture, 2), (0, 400))
    ImageDraw.Draw(screen).text((20, 10), "12:00", fill="white", font_size=30)
    return screen


def in_an_album(picture: Image.Image) -> Image.Image:
    page = scene(7, (900, 700))
    page.paste(picture, (300, 200))
    return page


PUT_INTO = "The kept photo may be made from it: it shows the picture inside a border, a screenshot or the like"
ENLARGED = "The kept photo may be made from it: it has more pixels, but no finer detail."


@pytest.mark.parametrize(
    ("small", "large", "reason"),
    [
        (same, on_a_screen, PUT_INTO),
        (same, in_an_album, PUT_INTO),
        (same, lambda picture: resized(picture, 2), ENLARGED),
        (same, lambda picture: picture.resize((600, 450), Image.Resampling.BILINEAR), ENLARGED),
        (same, lambda picture: resized(cropped(picture, 0.1, 0.1, 0.1, 0.1), 2), "It shows what the kept photo lacks"),
        (lambda picture: cropped(picture, 0, 0.2, 0.1, 0), lambda picture: resized(picture, 2), ENLARGED),
        (lambda picture: resized(picture, 0.5), same, ""),
        (lambda picture: resized(cropped(picture, 0, 0.2, 0.1, 0), 0.6), same, ""),
        (lambda picture: cropped(picture, 0, 0.2, 0.1, 0), same, ""),
    ],
    ids=[
        "screenshot", "page", "twice the size", "one and a half", "enlarged crop", "crop, enlarged whole",
        "half the size", "small crop", "crop",
    ],
)  # fmt: skip
def test_a_photo_never_moves_for_what_may_be_made_from_it(
    small: Change, large: Change, reason: str, tmp_path: Path
) -> None:
    large(scene(0)).save(tmp_path / "large.jpg", quality=90)
    with Image.open(tmp_path / "large.jpg") as whole:
        small(scene(0) if reason else whole).save(tmp_path / "small.jpg", quality=90)
    report = search(tmp_path, alike=DUPLICATES)
    assert report.groups[0].keep == str(tmp_path / "large.jpg")
    plan = planned(report, [tmp_path], tiers=[*SAFE_TIERS, EDITED])
    assert [skip.reason[: len(reason)] for skip in plan.skipped] == ([reason] if reason else [])
    assert [move.duplicate.path for move in plan.moves] == ([] if reason else [str(tmp_path / "small.jpg")])


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture and nine copies of it, of which three are larger files; of two, no one can tell what came first."""
    folder = tmp_path_factory.mktemp("family")
    original = scene(0, (480, 360))
    made = {
        "original": original,
        "enlarged": resized(original, 2),
        "noisy": noisy(original, 12, seed=1),
        "bordered": ImageOps.expand(original, 40, "white"),
        "cropped": cropped(original, 0.1, 0.05, 0.1, 0.05),
        "half": resized(original, 0.5),
        "stronger": ImageEnhance.Contrast(original).enhance(1.2),
        "darker": ImageEnhance.Brightness(original).enhance(0.8),
    }
    for name, picture in made.items():
        picture.save(folder / f"{name}.png", compress_level=1)
    os.utime(folder / "noisy.png", (0, 0))  # else the original would be kept for its age
    for name in ("sent", "sent again"):
        original.save(folder / f"{name}.jpg", quality=90 if name == "sent" else 70)
    return folder


def moved(report: DuplicateReport, folder: Path, *tiers: str) -> dict[str, str]:
    """Return name of a file that moves -> name of the one that stays for it."""
    moves = planned(report, [folder], tiers=[*SAFE_TIERS, *tiers]).moves
    return {Path(move.duplicate.path).stem: Path(move.kept.path).stem for move in moves}


@pytest.mark.timeout(180)
def test_the_original_stays_although_enlarged_noisy_and_bordered_copies_are_larger(family: Path, store: Store) -> None:
    report = search(family, alike=DUPLICATES, store=store)
    (group,) = report.groups
    members = {name.partition(".")[0]: member for name, member in by_name(report).items()}
    assert Path(group.keep).stem == "enlarged"  # it has the most pixels, but nothing moves for it
    assert {name for name, member in members.items() if member.doubt} == {"bordered"}
    assert moved(report, family) == {"half": "enlarged", "sent": "original", "sent again": "original"}
    edited = dict.fromkeys(["bordered", "cropped", "sent", "sent again"], "original")
    assert moved(report, family, EDITED) == edited | {"half": "enlarged"}
    skip = {Path(one.photo.path).stem: one.reason for one in planned(report, [family]).skipped}
    assert skip["original"] == ENLARGED
    check(json.loads(report.to_json()))


def test_the_rules_that_a_person_gives_and_a_cameras_file_come_before_doubts(
    family: Path, store: Store, tmp_path: Path
) -> None:
    report = search(family, alike=DUPLICATES, store=store, keep=["pixels"])
    assert Path(report.groups[0].keep).stem == "enlarged"
    assert report.groups[0].reason.startswith("most pixels")
    assert moved(report, family)["sent"] == "original"  # what stays beside the chosen photo still replaces others
    for name in ("original", "half"):
        shutil.copy2(family / f"{name}.png", tmp_path)
    with Image.open(family / "noisy.png") as noise:
        noise.save(tmp_path / "camera.jpg", quality=98, exif=exif(size=noise.size))
    report = search(tmp_path, alike=DUPLICATES, store=store)
    assert Path(report.groups[0].keep).stem == "camera"
    assert not by_name(report)["camera.jpg"].doubt


@pytest.mark.parametrize(
    "made",
    [lambda picture: resized(resized(picture, 0.5), 2), lambda picture: noisy(picture, 5, seed=0)],
    ids=["softer", "noisy"],
)
def test_of_two_files_of_one_size_neither_moves_if_none_is_proved_to_be_the_source(
    made: Change, tmp_path: Path
) -> None:
    sharp = scene(0, (1200, 900))
    sharp.save(tmp_path / "small.jpg", quality=90)
    made(sharp).save(tmp_path / "large.png", compress_level=1)
    os.utime(tmp_path / "large.png", (0, 0))
    with Store(tmp_path / "store") as store:
        reports = [search(tmp_path, alike=DUPLICATES, store=store) for _ in range(2)]
    assert reports[0].groups == reports[1].groups
    for tiers in ((), (EDITED,)):
        assert moved(reports[1], tmp_path, *tiers) == {}


def test_the_photo_in_colour_is_kept_rather_than_an_older_black_and_white_one(tmp_path: Path) -> None:
    scene(0).save(tmp_path / "colour.jpg", quality=90)
    with Image.open(tmp_path / "colour.jpg") as colour:
        ImageOps.grayscale(colour).convert("RGB").save(tmp_path / "grey.png", compress_level=1)
    os.utime(tmp_path / "grey.png", (0, 0))
    report = search(tmp_path, alike=DUPLICATES)
    assert report.groups[0].keep == str(tmp_path / "colour.jpg")
    assert by_name(report)["grey.png"].doubt == "it lacks colour"
    assert moved(report, tmp_path, EDITED) == {"grey": "colour"}


def test_an_older_copy_that_seems_altered_moves_for_its_source(tmp_path: Path) -> None:
    noisy(scene(0, (960, 720)), 8, seed=1).save(tmp_path / "original.jpg", quality=92)
    with Image.open(tmp_path / "original.jpg") as original:
        original.save(tmp_path / "copy.jpg", quality=20)
    os.utime(tmp_path / "copy.jpg", (0, 0))
    report = search(tmp_path, alike=DUPLICATES)
    assert moved(report, tmp_path) == {"copy": "original"}
    assert by_name(report)["copy.jpg"].doubt == LACKS_DETAIL


def test_a_cameras_file_is_kept_although_it_could_move_for_a_larger_picture(tmp_path: Path) -> None:
    whole = scene(0, (800, 600))
    whole.save(tmp_path / "large.png", compress_level=1)
    resized(whole, 0.5).save(tmp_path / "camera.jpg", quality=95, exif=exif(size=(400, 300)))
    report = search(tmp_path, alike=DUPLICATES)
    assert (Path(report.groups[0].keep).name, moved(report, tmp_path, EDITED)) == ("camera.jpg", {})
    assert not by_name(report)["camera.jpg"].doubt
