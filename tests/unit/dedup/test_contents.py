"""Searches by the contents of files: pixels, previews, films, and bytes that no decoder reads."""

import os
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from benchmarks.fixtures.sample_photos import package_file
from clip_client.dedup.types import EDITED, EXACT, RE_ENCODED, SAME_PIXELS
from tests.fixtures.albums import planned
from tests.fixtures.images import phone_files
from tests.fixtures.images.embedded_files import MP4
from tests.fixtures.images.raw_files import dng
from tests.unit.dedup.searches import DUPLICATES, UNLIKE, by_name, search

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)  # no decoder reads it


def sample(name: str) -> Image.Image:
    return Image.open(package_file("skimage", f"data/{name}"))


def names(paths: Iterable[str]) -> list[str]:
    return [os.path.basename(path) for path in paths]


def test_a_jpeg_and_its_png_are_the_same_pixels_although_their_hashes_differ(tmp_path: Path) -> None:
    """A JPEG is hashed from a scaled decode: of a brick wall, whose frequencies are all alike, four bits differ."""
    sample("brick.png").resize((960, 960)).save(tmp_path / "wall.jpg", quality=60)
    with Image.open(tmp_path / "wall.jpg") as wall:
        wall.save(tmp_path / "wall.png")
    (group,) = search(tmp_path, alike=UNLIKE).groups
    copy = group.members[1]
    assert (group.tier, copy.tier) == (SAME_PIXELS, SAME_PIXELS)
    assert [match.test for match in copy.matches] == ["pixels"]  # and not the perceptual hash


def test_equal_bytes_are_found_without_a_decoder(tmp_path: Path) -> None:
    sample("astronaut.png").save(tmp_path / "whole.jpg")
    truncated = (tmp_path / "whole.jpg").read_bytes()[:9_000]
    for name, content in {"truncated": truncated, "heic": HEIC}.items():
        for copy in ("1", "2"):
            (tmp_path / f"{name} {copy}.jpg").write_bytes(content)
        (tmp_path / f"another {name}.jpg").write_bytes(content + b"x")
    for copy in ("1", "2"):
        (tmp_path / f"large {copy}.jpg").write_bytes(truncated)
        os.truncate(tmp_path / f"large {copy}.jpg", 2**26 + 1)
        (tmp_path / f"text {copy}.jpg").write_text("This is no image.")
    report = search(tmp_path)
    assert [names(member.path for member in group.members) for group in report.groups] == [
        ["heic 1.jpg", "heic 2.jpg"],
        ["large 1.jpg", "large 2.jpg"],
        ["truncated 1.jpg", "truncated 2.jpg"],
    ]
    assert {(group.tier, group.min_similarity) for group in report.groups} == {(EXACT, 1)}
    copies = [group.members[1] for group in report.groups]
    assert {(copy.similarity, *(match.test for match in copy.matches)) for copy in copies} == {(1, "bytes")}
    assert (len(report.failed), report.compared) == (10, 1)


def test_a_search_may_find_nothing_at_all(tmp_path: Path) -> None:
    assert (search(tmp_path).groups, search(tmp_path).compared) == ((), 0)


def test_flat_pictures_are_grouped_by_their_bytes_only(tmp_path: Path) -> None:
    for name, level in (("black.png", 0), ("copy of black.png", 0), ("nearly black.png", 3), ("lens cap.png", 6)):
        Image.new("RGB", (320, 240), (level, level, level)).save(tmp_path / name)
    (group,) = search(tmp_path, alike=DUPLICATES).groups
    assert group.tier == EXACT
    assert names(member.path for member in group.members) == ["black.png", "copy of black.png"]


def test_raw_files_alone_are_compared_by_their_previews_or_their_bytes(photos: Path, tmp_path: Path) -> None:
    with_preview, without = dng(Image.open(photos / "coffee.jpg")), dng(None)
    for name, data in (("1.dng", with_preview), ("2.dng", with_preview), ("3.nef", without), ("4.nef", without)):
        (tmp_path / name).write_bytes(data)
    for number, name in ((5, "coffee"), (6, "rocket")):
        with Image.open(photos / f"{name}.jpg") as photo:
            photo.save(tmp_path / f"{number}.jpg", quality=90)
    (tmp_path / "6.dng").write_bytes(with_preview)  # belongs to the photo of its name
    report = search(tmp_path)
    found = {group.tier: sorted(names(member.path for member in group.members)) for group in report.groups}
    assert found == {RE_ENCODED: ["1.dng", "2.dng", "5.jpg"], EXACT: ["3.nef", "4.nef"]}
    assert names(report.bytes_only) == ["3.nef", "4.nef"]
    assert (report.compared, report.failed) == (6, ())


def test_a_photo_of_a_phone_is_found_in_every_form(tmp_path: Path) -> None:
    photo = sample("astronaut.png")
    heic = phone_files.heic(photo, exif=phone_files.exif(6), tile_size=256, quality=90)
    (tmp_path / "IMG_1.HEIC").write_bytes(heic)
    (tmp_path / "motion.heic").write_bytes(heic + MP4)
    photo.transpose(Image.Transpose.ROTATE_270).save(tmp_path / "export.jpg", quality=90)
    (tmp_path / "archive.jxl").write_bytes(phone_files.jxl_of((tmp_path / "export.jpg").read_bytes()))
    report = search(tmp_path)
    members = by_name(report)
    assert members.keys() == {"IMG_1.HEIC", "motion.heic", "export.jpg", "archive.jxl"}
    assert {(member.photo.width, member.photo.height) for member in members.values()} == {(512, 512)}
    assert members["motion.heic"].photo.features.embedded == "film"
    assert report.groups[0].keep.endswith("motion.heic"), "an original, and it holds a film"
    assert members["IMG_1.HEIC"].tier == SAME_PIXELS
    moving = names(move.duplicate.path for move in planned(report, [tmp_path]).moves)
    assert "IMG_1.HEIC" in moving
    assert "motion.heic" not in moving


def test_of_two_turned_lossless_files_none_is_the_source_and_a_jpeg_of_one_moves(tmp_path: Path) -> None:
    photo = sample("astronaut.png").convert("RGB").resize((320, 240))
    turned = photo.transpose(Image.Transpose.ROTATE_90)
    for name, tier in (("turned.png", EDITED), ("turned.jpg", RE_ENCODED)):
        folder = tmp_path / name
        folder.mkdir()
        photo.save(folder / "photo.png")
        turned.save(folder / name, quality=90)
        report = search(folder)
        assert [member.tier for member in report.groups[0].members] == [EXACT, tier]
        moving = names(move.duplicate.path for move in planned(report, [folder]).moves)
        assert moving == ([name] if tier == RE_ENCODED else [])
