"""What a search makes of what files hold: pixels, times, bytes that no decoder reads; through a real server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import skimage.data
from PIL import ExifTags, Image

from clip_client import ClipClient
from clip_client.cli.main import main
from clip_client.dedup import find_duplicates
from clip_client.dedup.types import EXACT, SAME_PIXELS
from tests.fixtures.albums import planned
from tests.fixtures.images import phone_files
from tests.fixtures.images.embedded_files import MP4

if TYPE_CHECKING:
    from benchmarks.fixtures.server import Server
    from clip_client.dedup import DuplicateReport, Member


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "album").mkdir()
    return tmp_path / "album"


def sample(name: str) -> Image.Image:
    """Open a photo that scikit-image ships."""
    return Image.open(Path(skimage.data.__file__).parent / name)


async def find(server: Server, *paths: Path, **options: Any) -> DuplicateReport:
    async with ClipClient(server.grpc_url) as clip:
        return await find_duplicates(clip, paths, **options)


def by_name(report: DuplicateReport) -> dict[str, Member]:
    return {member.path.rpartition("/")[2]: member for group in report.groups for member in group.members}


async def test_a_jpeg_and_its_png_are_the_same_pixels_although_their_hashes_differ(
    server: Server, folder: Path
) -> None:
    """A JPEG is hashed from a scaled decode: of a brick wall, whose frequencies are all alike, four bits differ."""
    sample("brick.png").resize((960, 960)).save(folder / "wall.jpg", quality=60)
    with Image.open(folder / "wall.jpg") as wall:
        wall.save(folder / "wall.png")
    (group,) = (await find(server, folder, hash_bits=0)).groups
    copy = group.members[1]
    assert (group.tier, copy.tier) == (SAME_PIXELS, SAME_PIXELS)
    assert [match.test for match in copy.matches] == ["pixels", "embedding"]  # and not the perceptual hash


async def test_a_copy_of_another_size_or_format_is_no_frame_of_a_burst(server: Server, folder: Path) -> None:
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2020:05:17 12:00:00"
    exif[ExifTags.Base.Make] = "Camera"
    photo = sample("astronaut.png")
    photo.save(folder / "original.jpg", quality=95, exif=exif)
    photo.save(folder / "again.jpg", quality=60, exif=exif)
    photo.resize((256, 256)).save(folder / "small.jpg", exif=exif)
    photo.save(folder / "other.webp", quality=90, exif=exif)
    members = by_name(await find(server, folder))
    assert members.keys() == {"original.jpg", "again.jpg", "small.jpg", "other.webp"}
    assert {name for name, member in members.items() if member.other_shot} == {"again.jpg"}


async def test_equal_bytes_are_found_without_a_decoder(server: Server, folder: Path) -> None:
    """They are failures all the same: each needs a person, or a better decoder."""
    sample("astronaut.png").save(folder / "whole.jpg")
    truncated = (folder / "whole.jpg").read_bytes()[:9_000]
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)
    for name, content in {"truncated": truncated, "heic": heic}.items():
        for copy in ("1", "2"):
            (folder / f"{name} {copy}.jpg").write_bytes(content)
        (folder / f"another {name}.jpg").write_bytes(content + b"x")
    for copy in ("1", "2"):
        (folder / f"large {copy}.jpg").write_bytes(truncated)
        os.truncate(folder / f"large {copy}.jpg", 2**26 + 1)
        (folder / f"text {copy}.jpg").write_text("This is no image.")
    report = await find(server, folder)
    assert [[os.path.basename(member.path) for member in group.members] for group in report.groups] == [
        ["heic 1.jpg", "heic 2.jpg"],
        ["large 1.jpg", "large 2.jpg"],
        ["truncated 1.jpg", "truncated 2.jpg"],
    ]
    assert {group.tier for group in report.groups} == {EXACT}
    assert len(report.failed) == 10
    assert report.compared == 1


def test_a_copy_that_cannot_be_decoded_is_moved(
    server: Server, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even where nothing can be decoded at all, and with a vector of no photo."""
    for name in ("1.heic", "2.heic"):
        (folder / name).write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100))
    outputs = ["--json", str(tmp_path / "found.json"), "--report", str(tmp_path / "found.html")]
    store = ["--store", str(tmp_path / "store")]
    assert main(["dedup", str(folder), "--url", server.grpc_url, *store, *outputs, "--apply"]) == 0
    assert "1 photo moved" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["1.heic"]
    (group,) = json.loads((tmp_path / "found.json").read_text())["groups"]
    assert (group["tier"], group["min_similarity"]) == (EXACT, 1)
    assert main(["undo", *store]) == 0
    assert len(list(folder.glob("*.heic"))) == 2


async def test_a_photo_of_a_phone_is_found_in_every_form(server: Server, folder: Path) -> None:
    """The HEIC of an iPhone, an export of it, and a JPEG XL made from the export without loss."""
    photo = sample("astronaut.png")
    heic = phone_files.heic(photo, exif=phone_files.exif(6), tile_size=256, quality=90)
    (folder / "IMG_1.HEIC").write_bytes(heic)
    (folder / "motion.heic").write_bytes(heic + MP4)
    photo.transpose(Image.Transpose.ROTATE_270).save(folder / "export.jpg", quality=90)
    (folder / "archive.jxl").write_bytes(phone_files.jxl_of((folder / "export.jpg").read_bytes()))
    report = await find(server, folder)
    members = by_name(report)
    assert members.keys() == {"IMG_1.HEIC", "motion.heic", "export.jpg", "archive.jxl"}
    assert {(member.photo.width, member.photo.height) for member in members.values()} == {(512, 512)}
    assert members["motion.heic"].photo.features.embedded == "film"
    assert report.groups[0].keep.endswith("motion.heic"), "an original, and it holds a film"
    assert members["IMG_1.HEIC"].tier == SAME_PIXELS
    plan = planned(report, [folder])
    assert {os.path.basename(move.duplicate.path) for move in plan.moves} >= {"IMG_1.HEIC"}
    assert all(move.duplicate.path != members["motion.heic"].path for move in plan.moves)


def test_what_a_file_holds_beyond_its_picture_is_never_moved_away(
    server: Server, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A still may be moved as a copy of a motion photo, and a motion photo as a copy of no still."""
    sample("astronaut.png").save(folder / "motion.jpg", quality=90)
    with Image.open(folder / "motion.jpg") as image:
        image.save(folder / "still.png")
    still = (folder / "motion.jpg").read_bytes()
    (folder / "motion.jpg").write_bytes(still + MP4)
    (folder / "other film.jpg").write_bytes(still + MP4 + b"another film")
    search = ["dedup", str(folder), "--url", server.grpc_url, "--store", str(tmp_path / "store")]
    report = ["--json", str(tmp_path / "found.json"), "--report", str(tmp_path / "found.html")]

    assert main([*search, "--keep", "format=png", *report, "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "--apply would move nothing" in said
    assert said.count("It holds more than its picture (film), which the kept photo lacks.") == 2
    (group,) = json.loads((tmp_path / "found.json").read_text())["groups"]
    assert (group["tier"], [member["embedded"] for member in group["members"]]) == (
        SAME_PIXELS,
        [[], ["film"], ["film"]],
    )
    assert (tmp_path / "found.html").read_text().count("Holds more than its picture: film") == 2

    assert main([*search, "--apply"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "(film), and the kept photo does not hold the same." in said
    assert {path.name for path in folder.iterdir() if path.is_file()} == {"motion.jpg", "other film.jpg"}
