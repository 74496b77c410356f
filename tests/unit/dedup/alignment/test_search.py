"""Which photos a search proves to be copies, which one it keeps, and what never moves for it; on generated pictures."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from clip_client.cli.main import main
from clip_client.dedup import Store, find_duplicates
from clip_client.dedup.aligned import LACKS_DETAIL
from clip_client.dedup.types import ALTERED, BURST, EDITED, EXACT, RE_ENCODED, SAFE_TIERS, SAME_PIXELS
from tests.fixtures.albums import NoPictures, planned
from tests.fixtures.images.camera_files import exif
from tests.fixtures.images.scenes import cropped, noisy, resized, scene
from tests.fixtures.report_schema import check

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from clip_client.dedup import DuplicateReport, Member

    Change = Callable[[Image.Image], Image.Image]


class Vectors(NoPictures):
    """A client of a server for which every two images have the cosine ``alike``."""

    def __init__(self, alike: float) -> None:
        self._alike = alike

    async def model(self) -> Any:
        return SimpleNamespace(id="m/trained@00000000", vector_id="m", dimension=64, transfer="original")

    async def embed_stream(self, images: AsyncIterator[Any], *, ordered: bool) -> AsyncIterator[Any]:
        index = 0
        async for _ in images:
            own, common = np.eye(64, dtype=np.float32)[[index + 1, 0]]
            vector = np.sqrt(1 - self._alike) * own + np.sqrt(self._alike) * common
            yield SimpleNamespace(index=index, error=None, vector=vector.astype(np.float32))
            index += 1


WORTH_ALIGNING: Final = 0.9
DUPLICATES: Final = 1.0
UNLIKE: Final = 0.0
"""Similarities."""


def search(
    paths: Path | Iterable[Path], *, alike: float = WORTH_ALIGNING, store: Store | None = None, **more: Any
) -> DuplicateReport:
    clip: Any = Vectors(alike)
    return asyncio.run(find_duplicates(clip, paths, store=store, **{"hash_bits": -1, **more}))


def by_name(report: DuplicateReport) -> dict[str, Member]:
    return {member.path.rpartition("/")[2]: member for group in report.groups for member in group.members}


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three pictures; one has copies of each kind."""
    folder = tmp_path_factory.mktemp("album")
    original = scene(0)
    original.save(folder / "original.png")
    resized(original, 0.6).save(folder / "small.jpg", quality=85)
    ImageOps.mirror(original).save(folder / "mirrored.jpg", quality=90)
    marked = original.copy()
    ImageDraw.Draw(marked).rectangle((300, 20, 380, 60), fill=(250, 250, 250))
    marked.save(folder / "marked.png", compress_level=1)
    resized(marked, 0.6).save(folder / "marked small.jpg", quality=85)
    scene(1).save(folder / "another.png")
    return folder


def test_copies_are_proved_and_named_although_no_threshold_links_them(album: Path, tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        report = search(album, store=store)
        assert report.work.keypoints >= 5
        again = search(album, store=store)
    assert again.to_json() == report.to_json()
    assert report.work.aligned > len(report.groups[0].members)
    assert (again.work.keypoints, again.work.aligned) == (0, 0)
    members = by_name(report)
    assert "another.png" not in members
    original = members["marked.png" if report.groups[0].keep.endswith("marked.png") else "original.png"]
    assert original.tier == EXACT
    (group,) = report.groups
    other = members["original.png" if original is members["marked.png"] else "marked.png"]
    assert other.tier == ALTERED
    assert not other.verdict.is_copy
    assert other.alignment is not None
    left, top, width, height = other.alignment.region or (0, 0, 0, 0)
    assert (left, top, left + width, top + height) == pytest.approx((0.75, 0.067, 0.95, 0.2), abs=0.08)
    # Each small picture is a copy of its own large one, whichever of the two is kept.
    for large, small in (("original.png", "small.jpg"), ("marked.png", "marked small.jpg")):
        one = members[small]
        assert (one.tier if members[large] is original else one.copy_tier) == RE_ENCODED
        assert members[large] is original or one.copy_of.endswith(large)
    document = json.loads(report.to_json())
    check(document)
    assert sum(source["proved"] for source in document["pair_sources"]) == len(group.members) - 1
    plan = planned(report, [album], tiers=[*SAFE_TIERS, EDITED])
    assert {move.duplicate.path.rpartition("/")[2] for move in plan.moves} >= {"small.jpg", "marked small.jpg"}
    assert other.path not in {move.duplicate.path for move in plan.moves}


def test_perceptual_hashes_find_a_mirrored_copy_and_times_a_crop(album: Path, tmp_path: Path) -> None:
    report = search([album / "original.png", album / "mirrored.jpg"], alike=UNLIKE)
    assert by_name(report)["mirrored.jpg"].tier == EDITED
    assert [source.proved for source in report.pair_sources] == [0, 1, 0, 0]
    taken = exif(size=(400, 300))
    scene(0).save(tmp_path / "whole.jpg", exif=taken)
    cropped(scene(0), 0.3, 0, 0, 0.2).save(tmp_path / "crop.jpg", exif=taken)
    report = search(tmp_path, alike=UNLIKE)
    assert by_name(report)["crop.jpg"].tier == EDITED
    assert [source.proved for source in report.pair_sources] == [0, 0, 1, 0]


def test_the_order_of_the_paths_changes_nothing(album: Path) -> None:
    paths = sorted(album.iterdir())
    expected = search(paths).to_json()
    random.Random(1).shuffle(paths)
    assert search(paths).to_json() == expected


def test_without_verification_only_thresholds_link_photos(album: Path) -> None:
    report = search(album, verify="off")
    assert (report.groups, report.pair_sources, report.note, report.work.keypoints) == ((), (), "", 0)
    with pytest.raises(ValueError, match="verify is one of off, candidates"):
        search(album, verify="all")


def test_without_opencv_a_search_says_so_and_goes_on(album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "clip_client.dedup.alignment.aligner", None)
    report = search(album, alike=DUPLICATES)
    assert "OpenCV cannot be imported" in report.note
    assert len(report.groups) == 1
    assert all(member.alignment is None for member in report.groups[0].members)


def test_photos_that_a_person_told_apart_are_not_aligned(album: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    pair = [str(album / name) for name in ("original.png", "small.jpg")]
    assert main(["decide", "different", *pair, "--store", str(store)]) == 0
    with Store(store) as opened:
        report = search(map(Path, pair), store=opened)
    assert (report.groups, sum(source.aligned for source in report.pair_sources)) == ((), 0)


def test_what_has_no_texture_is_said_to_be_unverified(tmp_path: Path) -> None:
    for name, size in (("a.png", (300, 300)), ("b.png", (400, 400))):
        Image.linear_gradient("L").resize(size).save(tmp_path / name)
    (group,) = search(tmp_path, alike=DUPLICATES).groups
    assert all(member.cannot_verify and member.alignment is None for member in group.members)


def test_frames_of_a_burst_stay_frames_and_have_copies_of_their_own(tmp_path: Path) -> None:
    """Two shots of one still scene, of which a person sent one to a friend."""
    for number, name in enumerate(("first.jpg", "second.jpg")):
        taken = exif(size=(400, 300), DateTimeOriginal=f"2019:05:03 10:11:1{number}")
        noisy(scene(0), 3, number).save(tmp_path / name, quality=95 - number, exif=taken)
    with Image.open(tmp_path / "second.jpg") as second:
        resized(second, 0.5).save(tmp_path / "sent.jpg", quality=85, exif=second.getexif())
    report = search(tmp_path, alike=DUPLICATES)
    members = by_name(report)
    first, second_one, sent = (members[name] for name in ("first.jpg", "second.jpg", "sent.jpg"))
    assert report.groups[0].keep == first.path
    assert (second_one.other_shot, second_one.alignment, second_one.verdict.is_copy) == (BURST, None, False)
    assert (sent.copy_of, sent.copy_tier) == (second_one.path, RE_ENCODED)
    (move,) = planned(report, [tmp_path]).moves
    assert (move.duplicate.path, move.kept.path) == (sent.path, second_one.path)


def test_a_crop_and_its_copies_follow_the_picture_that_they_are_of(tmp_path: Path) -> None:
    original = scene(0)
    original.save(tmp_path / "a original.png")
    crop = ImageEnhance.Brightness(cropped(original, 0, 0, 0.2, 0.1)).enhance(1.15)
    crop.save(tmp_path / "b crop.png")
    crop.save(tmp_path / "c same pixels.bmp")
    resized(crop, 0.5).save(tmp_path / "d small crop.jpg", quality=90)
    members = by_name(search(tmp_path, alike=DUPLICATES))
    assert [members[name].tier for name in ("b crop.png", "c same pixels.bmp", "d small crop.jpg")] == [EDITED] * 3
    bmp_first = {members[name].copy_tier for name in ("b crop.png", "c same pixels.bmp")}
    assert bmp_first == {"", SAME_PIXELS}  # the better of the two is a copy of the original only
    assert members["d small crop.jpg"].copy_tier == RE_ENCODED


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
