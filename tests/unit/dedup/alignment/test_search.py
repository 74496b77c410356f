"""Which photos a search proves to be copies, from files to report, on generated pictures."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from clip_client.cli.main import main
from clip_client.dedup import Store
from clip_client.dedup.types import ALTERED, BURST, EDITED, EXACT, RE_ENCODED, SAFE_TIERS, SAME_PIXELS
from tests.fixtures.albums import planned
from tests.fixtures.images.camera_files import exif
from tests.fixtures.images.scenes import cropped, noisy, resized, scene
from tests.fixtures.report_schema import check
from tests.unit.dedup.alignment.searches import DUPLICATES, UNLIKE, by_name, search


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
