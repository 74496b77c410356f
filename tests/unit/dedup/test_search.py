"""Proofs of a search on generated pictures: the copies, the photo that it keeps, and the photos that never move."""

import asyncio
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageOps

from clip_client.cli.main import main
from clip_client.dedup import DuplicateReport, Store, find_duplicates
from clip_client.dedup.aligned import MADE_LATER, PUT_INTO, UNPROVED
from clip_client.dedup.compare.aligner import VERSIONS
from clip_client.dedup.types import ALTERED, BURST, EDITED, EXACT, RE_ENCODED, SAFE_TIERS, SIMILAR, SearchStats
from tests.fixtures.albums import planned
from tests.fixtures.images.camera_files import exif
from tests.fixtures.images.scenes import cropped, noisy, resized, scene
from tests.fixtures.report_schema import validator
from tests.unit.dedup.searches import DUPLICATES, UNLIKE, by_name, search

Change = Callable[[Image.Image], Image.Image]


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    os.utime(folder / "original.png", ns=(10**18, 10**18))  # else names would decide, as all are of one second
    return folder


def moved(report: DuplicateReport, folder: Path, *tiers: str) -> dict[str, str]:
    """Name of a file that moves, or of one of these tiers that waits -> name of the one that stays for it."""
    verdicts = {member.path: member.verdict for group in report.groups for member in group.members}
    wanted = (path for path, one in verdicts.items() if one.is_copy and one.tier in (*SAFE_TIERS, *tiers))
    moves = planned(report, [folder], chosen=dict.fromkeys(wanted)).moves
    return {Path(move.duplicate.path).stem: Path(move.kept.path).stem for move in moves}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(tmp_path_factory.mktemp("store")) as opened:
        yield opened


@pytest.fixture(scope="module")
def found(album: Path, store: Store) -> DuplicateReport:
    return search(album, store=store)


def test_copies_are_proved_and_named_although_no_threshold_links_them(found: DuplicateReport, album: Path) -> None:
    (group,) = found.groups
    members = by_name(found)
    assert "another.png" not in members
    pictures = [("original.png", "small.jpg"), ("marked.png", "marked small.jpg")]
    if group.keep.endswith("marked.png"):
        pictures.reverse()
    (large, small), (other_large, other_small) = pictures
    assert (members[large].tier, members[small].tier) == (EXACT, RE_ENCODED)
    other = members[other_large]
    assert other.tier == ALTERED
    assert not other.verdict.is_copy
    assert other.alignment is not None
    left, top, width, height = other.alignment.region or (0, 0, 0, 0)
    assert (left, top, left + width, top + height) == pytest.approx((0.75, 0.067, 0.95, 0.2), abs=0.08)
    assert (members[other_small].copy_of, members[other_small].copy_tier) == (other.path, RE_ENCODED)
    validator().validate(json.loads(json.dumps(found.to_mapping())))
    assert all(member.alignment or member.copy_alignment for member in group.members[1:])
    moving = moved(found, album, EDITED)
    assert moving.keys() >= {"small", "marked small"}
    assert Path(other_large).stem not in moving


def test_a_search_does_only_what_the_store_does_not_know(
    found: DuplicateReport, store: Store, album: Path, tmp_path: Path
) -> None:
    assert (found.work.embedded, found.work.keypoints) == (6, 6)
    assert found.work.aligned > len(found.groups[0].members)
    again = search(album, store=store)
    assert again.to_mapping() == found.to_mapping()
    assert again.work == SearchStats()
    with Image.open(album / "another.png") as another:
        another.save(tmp_path / "new.jpg", quality=70)
    work = search([album, tmp_path], store=store).work
    assert (work.files_read, work.decoded, work.embedded, work.keypoints) == (1, 1, 1, 1)
    assert 0 < work.aligned < found.work.aligned


def test_perceptual_hashes_find_a_mirrored_copy_and_times_a_crop(album: Path, tmp_path: Path) -> None:
    report = search([album / "original.png", album / "mirrored.jpg"], alike=UNLIKE)
    assert by_name(report)["mirrored.jpg"].tier == RE_ENCODED
    taken = exif(size=(400, 300))
    scene(0).save(tmp_path / "whole.jpg", exif=taken)
    cropped(scene(0), 0.3, 0, 0, 0.2).save(tmp_path / "crop.jpg", exif=taken)
    report = search(tmp_path, alike=UNLIKE)
    assert by_name(report)["crop.jpg"].tier == EDITED


def test_photos_that_are_named_one_by_one_are_aligned_whatever_pairs_them(tmp_path: Path) -> None:
    scene(0).save(tmp_path / "whole.jpg")
    cropped(scene(0), 0.3, 0.1, 0.05, 0.2).save(tmp_path / "crop.jpg")
    named = sorted(tmp_path.iterdir())
    assert search(tmp_path, alike=UNLIKE).groups == ()
    for report in (search(named, alike=UNLIKE), asyncio.run(find_duplicates(None, named))):
        assert by_name(report)["crop.jpg"].tier == EDITED
    for number in range(1, 8):
        scene(number).save(tmp_path / f"{number}.jpg")
    assert search(sorted(tmp_path.iterdir()), alike=UNLIKE).groups == (), "too many to align all of them"


@pytest.mark.parametrize(
    ("other", "seconds", "reason"),
    [
        (scene(1), "", "Their details were compared, and no part of one fits on the other"),
        (
            Image.new("RGB", (400, 300), "white"),
            "",
            "{} is nearly one colour, so only its bytes and pixels were compared",
        ),
        (scene(1).resize((70, 60)), "", "{} cannot be aligned: It has fewer than 80 pixels on one side"),
        (scene(1), "12", f"By time of capture or exposure, one is {BURST}"),
    ],
)
def test_two_photos_that_are_named_alone_and_not_alike_are_told_why(
    tmp_path: Path, other: Image.Image, seconds: str, reason: str
) -> None:
    pair = [tmp_path / "a.jpg", tmp_path / "b.jpg"]
    for number, image in enumerate((scene(0), other)):
        taken = f"2024:05:01 10:00:0{seconds[number]}" if seconds else None
        image.save(pair[number], exif=exif(size=image.size, DateTimeOriginal=taken))
    assert search(pair, alike=UNLIKE).note == reason.format(pair[1])
    assert search(tmp_path, alike=UNLIKE).note == "", "who asks about a folder does not ask about these two"
    scene(2).save(tmp_path / "c.jpg")
    assert search([*pair, tmp_path / "c.jpg"], alike=UNLIKE).note == ""


def test_copies_and_raw_files_without_a_preview_are_not_told_why_they_are_apart(tmp_path: Path) -> None:
    pair, raw = [tmp_path / "a.png", tmp_path / "b.jpg"], [tmp_path / "c.nef", tmp_path / "d.nef"]
    for path in pair:
        scene(0).save(path, quality=75)
    report = search(pair, alike=UNLIKE)
    assert (by_name(report)["b.jpg"].tier, report.note) == (RE_ENCODED, "")
    for path in raw:
        path.write_bytes(path.name.encode())
    report = search(raw)
    assert (report.note, len(report.bytes_only)) == ("", 2), "they are not called pictures of one colour"


def test_the_order_of_the_paths_changes_nothing(found: DuplicateReport, album: Path) -> None:
    paths = sorted(album.iterdir())
    random.Random(1).shuffle(paths)
    assert search(paths).to_mapping() == found.to_mapping()


def test_without_verification_or_opencv_only_thresholds_link_photos(
    album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = search(album, verify=False)
    tiers = {group.tier for group in report.groups}
    assert (tiers, report.note, report.work.keypoints) == ({SIMILAR}, "", 0)
    monkeypatch.setitem(sys.modules, "clip_client.dedup.compare.aligner", None)
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
    assert (report.groups, report.work.aligned) == ((), 0)
    assert report.note.startswith("You declared the two different, or want both; clip-client decide list shows it")


def test_what_has_no_texture_is_said_to_be_unverified(tmp_path: Path) -> None:
    for name, size in (("a.png", (300, 300)), ("b.png", (400, 400))):
        Image.linear_gradient("L").resize(size).save(tmp_path / name)
    (group,) = search(tmp_path, alike=DUPLICATES).groups
    assert all(member.cannot_verify and member.alignment is None for member in group.members)


def test_a_copy_of_the_same_size_is_no_frame_of_a_burst_if_it_is_proved(tmp_path: Path) -> None:
    taken = exif(size=(400, 300), DateTimeOriginal="2019:05:03 10:11:12")
    noisy(scene(0), 3, 0).save(tmp_path / "shot.jpg", quality=95, exif=taken)
    noisy(scene(0), 3, 1).save(tmp_path / "other frame.jpg", quality=94, exif=taken)
    with Image.open(tmp_path / "shot.jpg") as shot:
        shot.save(tmp_path / "saved again.jpg", quality=80, exif=taken)
    report = search(tmp_path, alike=DUPLICATES)
    members = by_name(report)
    assert report.groups[0].keep == members["shot.jpg"].path
    assert (members["saved again.jpg"].tier, members["saved again.jpg"].other_shot) == (RE_ENCODED, "")
    assert (members["other frame.jpg"].alignment, members["other frame.jpg"].other_shot) == (None, BURST)
    (move,) = planned(report, [tmp_path]).moves
    assert move.duplicate.name == "saved again.jpg"


def test_a_copy_moves_for_its_own_photo_among_many_that_are_nearly_alike(tmp_path: Path) -> None:
    """As in a burst, or in a catalogue of shirts: a hash of 64 bits pairs each copy with any of them."""
    for number in range(6):
        picture = resized(scene(0), 0.75)
        picture.paste((250, 20 * number, 0), (40 * number + 20, 30, 40 * number + 34, 44))
        picture.save(tmp_path / f"{number}.jpg", quality=92)
        resized(picture, 0.5).save(tmp_path / f"{number} small.jpg", quality=80)
    moves = moved(asyncio.run(find_duplicates(None, tmp_path)), tmp_path)
    assert moves == {f"{number} small": f"{number}" for number in range(6)}


def test_frames_of_a_burst_beside_a_copy_are_not_decoded_again_in_a_second_search(tmp_path: Path) -> None:
    for number in range(4):
        taken = exif(size=(400, 300), DateTimeOriginal=f"2019:05:03 10:11:1{number}")
        noisy(scene(0), 3, number).save(tmp_path / f"{number}.jpg", quality=90, exif=taken)
    resized(scene(0), 0.5).save(tmp_path / "copy.jpg", quality=90)
    reports = []
    # The second store is one of an earlier version, without thumbnails; the third has lost what is in its large rows.
    for versions in (VERSIONS, VERSIONS[:2], VERSIONS[1:]):
        with Store(tmp_path / "store") as store:
            store.cache.blob_tables(*versions)
            reports.append(asyncio.run(find_duplicates(None, tmp_path.glob("*.jpg"), store=store)))
    assert [report.work.keypoints for report in reports] == [5, 0, 0]
    assert reports[0].groups == reports[1].groups == reports[2].groups


def on_a_screen(picture: Image.Image) -> Image.Image:
    screen = Image.new("RGB", (800, 1400), (18, 18, 20))
    screen.paste(resized(picture, 2), (0, 400))
    ImageDraw.Draw(screen).text((20, 10), "12:00", fill="white", font_size=30)
    return screen


def in_an_album(picture: Image.Image) -> Image.Image:
    page = scene(7, (900, 700))
    page.paste(picture, (300, 200))
    return page


@pytest.mark.parametrize(
    ("small", "large", "reason"),
    [
        (Image.Image.copy, on_a_screen, PUT_INTO),
        (Image.Image.copy, in_an_album, PUT_INTO),
        (
            Image.Image.copy,
            lambda picture: resized(cropped(picture, 0.1, 0.1, 0.1, 0.1), 2),
            "It shows what the kept photo lacks",
        ),
        (lambda picture: resized(cropped(picture, 0, 0.2, 0.1, 0), 0.6), Image.Image.copy, ""),
    ],
    ids=["screenshot", "page", "enlarged crop", "small crop"],
)
def test_a_photo_never_moves_for_what_may_be_made_from_it(
    small: Change, large: Change, reason: str, tmp_path: Path
) -> None:
    large(scene(0)).save(tmp_path / "large.jpg", quality=90)
    with Image.open(tmp_path / "large.jpg") as whole:
        small(scene(0) if reason else whole).save(tmp_path / "small.jpg", quality=90)
    report = search(tmp_path, alike=DUPLICATES)
    assert report.groups[0].keep == str(tmp_path / "large.jpg")
    assert moved(report, tmp_path, EDITED) == ({} if reason else {"small": "large"})
    assert all(reason in skip.reason for skip in planned(report, [tmp_path]).skipped)


@pytest.mark.timeout(180)
def test_the_original_stays_although_enlarged_noisy_and_bordered_copies_are_larger(tmp_path: Path) -> None:
    folder = tmp_path / "family"
    folder.mkdir()
    original = scene(0, (480, 360))
    for name, picture in {
        "original": original,
        "enlarged": resized(original, 2),
        "noisy": noisy(original, 12, seed=1),
        "bordered": ImageOps.expand(original, 40, "white"),
        "half": resized(original, 0.5),
    }.items():
        picture.save(folder / f"{name}.png", compress_level=1)
    original.save(folder / "sent.jpg", quality=90)
    os.utime(folder / "original.png", ns=(10**18, 10**18))
    os.utime(folder / "noisy.png", (0, 0))  # else the original would be kept for its age
    with Store(tmp_path / "store") as store:
        report = search(folder, alike=DUPLICATES, store=store)
        by_pixels = search(folder, alike=DUPLICATES, store=store, keep=["pixels"])
    assert Path(report.groups[0].keep).stem == "original"
    doubts = {name: member.doubt for name, member in by_name(report).items() if member.doubt}
    assert doubts == {"enlarged.png": MADE_LATER, "bordered.png": PUT_INTO}
    proved = {"half": "original", "sent": "original", "enlarged": "original"}
    assert moved(report, folder) == proved
    assert moved(report, folder, EDITED) == proved | {"bordered": "original"}
    assert "not proved to show all" in by_name(report)["noisy.png"].verdict.reason
    validator().validate(json.loads(json.dumps(report.to_mapping())))
    # The rules that a person gives come before doubts. Whichever is kept, nothing moves that it does not show.
    assert Path(by_pixels.groups[0].keep).stem == "enlarged"
    assert by_pixels.groups[0].reason.startswith("most pixels")
    assert moved(by_pixels, folder) == {"half": "enlarged", "sent": "enlarged"}
    assert MADE_LATER in by_name(by_pixels)["original.png"].verdict.reason


def colour_and_grey(folder: Path) -> None:
    scene(0).save(folder / "kept.jpg", quality=90)
    with Image.open(folder / "kept.jpg") as colour:
        ImageOps.grayscale(colour).convert("RGB").save(folder / "other.png", compress_level=1)


def noisy_and_its_coarse_copy(folder: Path) -> None:
    noisy(scene(0, (960, 720)), 8, seed=1).save(folder / "kept.jpg", quality=92)
    with Image.open(folder / "kept.jpg") as original:
        original.save(folder / "other.jpg", quality=60)


@pytest.mark.parametrize(
    ("made", "doubt"), [(colour_and_grey, "it lacks colour"), (noisy_and_its_coarse_copy, UNPROVED)]
)
def test_the_source_is_kept_rather_than_an_older_or_larger_file(
    made: Callable[[Path], None], doubt: str, tmp_path: Path
) -> None:
    made(tmp_path)
    (other,) = tmp_path.glob("other.*")
    os.utime(other, (1e9, 1e9))
    report = search(tmp_path, alike=DUPLICATES)
    members = by_name(report)
    assert report.groups[0].keep == str(tmp_path / "kept.jpg")
    assert (members["kept.jpg"].doubt, members[other.name].doubt) == ("", doubt)
    assert moved(report, tmp_path, EDITED) == {"other": "kept"}


def test_a_larger_file_is_kept_rather_than_its_copy_with_the_metadata_of_a_camera(tmp_path: Path) -> None:
    whole = scene(0, (800, 600))
    whole.save(tmp_path / "whole.png", compress_level=1)
    resized(whole, 0.5).save(tmp_path / "half.jpg", quality=95, exif=exif(size=(400, 300)))
    report = search(tmp_path, alike=DUPLICATES)
    assert report.groups[0].keep == str(tmp_path / "whole.png")
    assert moved(report, tmp_path, EDITED) == {}
