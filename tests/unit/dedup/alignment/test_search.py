"""Which photos a search proves to be copies, from files to report, on generated pictures."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import random
import re
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from clip_client.cli.commands.dedup_apply import apply_report
from clip_client.cli.main import main
from clip_client.cli.options.dedup import ActionOptions
from clip_client.dedup import Store, find_duplicates
from clip_client.dedup.types import ALTERED, BURST, EDITED, EXACT, RE_ENCODED, SAFE_TIERS, SAME_PIXELS
from tests.fixtures.albums import NoPictures, planned, snapshot, without_access
from tests.fixtures.images.camera_files import exif
from tests.fixtures.images.scenes import cropped, noisy, resized, scene
from tests.fixtures.report_schema import check

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from clip_client.dedup import DuplicateReport, Member


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


WORTH_ALIGNING, DUPLICATES, UNLIKE = 0.9, 1.0, 0.0


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


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(tmp_path_factory.mktemp("store")) as opened:
        yield opened


def test_copies_are_proved_and_named_although_no_threshold_links_them(album: Path, tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        report = search(album, store=store)
        assert report.work.keypoints >= 5
        again = search(album, store=store)
    assert again.to_json() == report.to_json()
    assert again.work.keypoints == 0
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
    ("original", "made", "reason"),
    [
        (scene, lambda: on_a_screen(scene(0)), PUT_INTO),
        (scene, lambda: in_an_album(scene(0)), PUT_INTO),
        (scene, lambda: resized(scene(0), 2), ENLARGED),
        (scene, lambda: scene(0).resize((600, 450), Image.Resampling.BILINEAR), ENLARGED),
        (scene, lambda: resized(cropped(scene(0), 0.1, 0.1, 0.1, 0.1), 2), "It shows what the kept photo lacks"),
        (lambda seed: cropped(scene(seed), 0, 0.2, 0.1, 0), lambda: resized(scene(0), 2), ENLARGED),
        (lambda seed: resized(scene(seed), 0.5), lambda: scene(0), ""),
        (lambda seed: resized(cropped(scene(seed), 0, 0.2, 0.1, 0), 0.6), lambda: scene(0), ""),
        (lambda seed: cropped(scene(seed), 0, 0.2, 0.1, 0), lambda: scene(0), ""),
    ],
    ids=[
        "screenshot", "page", "twice the size", "one and a half", "enlarged crop", "crop, enlarged whole",
        "half the size", "small crop", "crop",
    ],
)  # fmt: skip
def test_a_photo_never_moves_for_what_may_be_made_from_it(
    original: Callable[[int], Image.Image], made: Callable[[], Image.Image], reason: str, tmp_path: Path
) -> None:
    original(0).save(tmp_path / "small.jpg", quality=90)
    made().save(tmp_path / "large.jpg", quality=90)
    report = search(tmp_path, alike=DUPLICATES)
    assert report.groups[0].keep == str(tmp_path / "large.jpg")
    plan = planned(report, [tmp_path], tiers=[*SAFE_TIERS, EDITED])
    assert [skip.reason[: len(reason)] for skip in plan.skipped] == ([reason] if reason else [])
    assert [move.duplicate.path for move in plan.moves] == ([] if reason else [str(tmp_path / "small.jpg")])


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_a_jpeg_is_kept_rather_than_an_older_conversion_of_its_pixels(suffix: str, tmp_path: Path) -> None:
    scene(0).save(tmp_path / "sent.jpg", quality=90)
    with Image.open(tmp_path / "sent.jpg") as sent:
        sent.save(tmp_path / f"converted.{suffix}")
    os.utime(tmp_path / f"converted.{suffix}", (0, 0))
    report = search(tmp_path)
    assert by_name(report)[f"converted.{suffix}"].tier == SAME_PIXELS
    assert moved(report, tmp_path) == {"converted": "sent"}
    # A lossless source is no conversion of the JPEG that was made from it.
    scene(0).save(tmp_path / "source.png")
    os.utime(tmp_path / "source.png", (0, 0))
    assert search([tmp_path / "source.png", tmp_path / "sent.jpg"]).groups[0].keep.endswith("source.png")


def test_of_two_alike_contents_the_one_with_a_backup_is_kept(tmp_path: Path) -> None:
    for number in range(2):
        noisy(scene(0), 2, number).save(tmp_path / f"{number}.jpg", quality=90)
        os.utime(tmp_path / f"{number}.jpg", (number, number))
    assert search(tmp_path, alike=DUPLICATES).groups[0].keep == str(tmp_path / "0.jpg"), "the older one"
    shutil.copy2(tmp_path / "1.jpg", tmp_path / "backup.jpg")
    assert search(tmp_path, alike=DUPLICATES).groups[0].keep == str(tmp_path / "1.jpg")


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture and nine copies of it, of which four are larger files."""
    folder = tmp_path_factory.mktemp("family")
    original = scene(0, (640, 480))
    made = {
        "original": original,
        "enlarged": resized(original, 2),
        "noisy": noisy(original, 12, seed=1),
        "bordered": ImageOps.expand(original, 40, "white"),
        "stronger": ImageEnhance.Contrast(original).enhance(1.2),
        "cropped": cropped(original, 0.1, 0.05, 0.1, 0.05),
        "darker": ImageEnhance.Brightness(original).enhance(0.8),
        "half": resized(original, 0.5),
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


def test_the_original_stays_although_enlarged_noisy_and_bordered_copies_are_larger(family: Path, store: Store) -> None:
    report = search(family, alike=DUPLICATES, store=store)
    (group,) = report.groups
    members = {name.partition(".")[0]: member for name, member in by_name(report).items()}
    assert Path(group.keep).stem == "original"
    assert {name for name, member in members.items() if member.doubt} >= {"enlarged", "noisy", "bordered"}
    assert moved(report, family) == dict.fromkeys(["half", "sent", "sent again"], "original")
    edited = ["bordered", "stronger", "cropped", "darker", "half", "sent", "sent again"]
    assert moved(report, family, EDITED) == dict.fromkeys(edited, "original")
    skip = {Path(one.photo.path).stem: one.reason for one in planned(report, [family]).skipped}
    assert skip["enlarged"] == "It shows what the kept photo lacks: 2 times the resolution."
    check(json.loads(report.to_json()))


def test_an_edit_moves_for_its_source_if_that_moves_for_another_edit(tmp_path: Path) -> None:
    """Noise hides too much of the black and white copy to prove it."""
    source, chosen = scene(0), tmp_path / "chosen"
    chosen.mkdir()
    noisy(source, 15, seed=1).save(chosen / "noisy.png")
    source.save(tmp_path / "source.jpg", quality=85)
    source.convert("L").convert("RGB").save(tmp_path / "grey.png", compress_level=0)
    report = search(tmp_path, keep=[f"folder={chosen}", "bytes"])
    grey = by_name(report)["grey.png"]
    assert (grey.tier, Path(grey.copy_of).stem, grey.copy_tier) == (ALTERED, "source", EDITED)
    assert moved(report, tmp_path) == {"source": "noisy"}
    assert moved(report, tmp_path, EDITED) == {"source": "noisy", "grey": "noisy"}


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
    ("made", "doubt"),
    [
        (lambda picture: resized(resized(picture, 0.5), 2), "it has less fine detail"),  # 512 pixels hardly show it
        (lambda picture: noisy(picture, 5, seed=0), "it has noise that the other one lacks"),
    ],
    ids=["softer", "noisy"],
)
def test_an_older_file_of_equal_size_is_not_kept_and_stays_if_it_is_lossless(
    made: Callable[[Image.Image], Image.Image], doubt: str, tmp_path: Path
) -> None:
    sharp = scene(0, (1200, 900))
    sharp.save(tmp_path / "small.jpg", quality=90)
    made(sharp).save(tmp_path / "large.png", compress_level=1)
    os.utime(tmp_path / "large.png", (0, 0))
    with Store(tmp_path / "store") as store:
        reports = [search(tmp_path, alike=DUPLICATES, store=store) for _ in range(2)]
    assert reports[0].groups == reports[1].groups
    (group,) = reports[0].groups
    assert (group.keep, group.reason) == (str(tmp_path / "small.jpg"), f"another may be made from it: {doubt}")
    large = by_name(reports[0])["large.png"]
    assert (large.tier, large.doubt) == (RE_ENCODED, doubt)
    assert f"may be made from another photo: {doubt}" in large.why
    (skip,) = planned(reports[1], [tmp_path]).skipped
    assert skip.reason.endswith("it has what the kept photo lacks: a lossless format.")


def test_the_photo_in_colour_is_kept_rather_than_an_older_black_and_white_one(tmp_path: Path) -> None:
    scene(0).save(tmp_path / "colour.jpg", quality=90)
    ImageOps.grayscale(scene(0)).convert("RGB").save(tmp_path / "grey.png", compress_level=1)
    os.utime(tmp_path / "grey.png", (0, 0))
    report = search(tmp_path, alike=DUPLICATES)
    assert report.groups[0].keep == str(tmp_path / "colour.jpg")
    assert by_name(report)["grey.png"].doubt == "it lacks colour"
    assert moved(report, tmp_path, EDITED) == {"grey": "colour"}


@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.sets(
        st.sampled_from(["original.png", "small.jpg", "mirrored.jpg", "marked.png", "marked small.jpg"]), min_size=3
    ),
    tiers=st.sampled_from([(), (EDITED,), (EXACT, RE_ENCODED, EDITED)]),
)
def test_dry_run_apply_and_undo_agree(names: set[str], tiers: tuple[str, ...], album: Path, store: Store) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in names:
            shutil.copy2(album / name, root / name)
        before = snapshot(root)
        report = search(root, store=store)
        dry, done, undone = (io.StringIO() for _ in range(3))
        with contextlib.redirect_stdout(dry):
            assert apply_report(report, [folder], store, ActionOptions(tiers=tiers, dry_run=True)) == 0
        assert snapshot(root) == before
        with contextlib.redirect_stdout(done):
            assert apply_report(report, [folder], store, ActionOptions(tiers=tiers, apply=True)) == 0
        announced = re.findall(r"would move: (.*?); kept: (.*)", dry.getvalue())
        assert {path for path, _ in announced} == {str(root / name) for name in names if not (root / name).exists()}
        assert all(Path(kept).exists() for _, kept in announced)
        assert f"{len(announced)} photo" in done.getvalue()
        with contextlib.redirect_stdout(undone):
            assert main(["undo", "--store", str(store.directory)]) == 0
        assert without_access(snapshot(root)) == without_access(before)
