"""What a search makes of what files hold: pixels, times, bytes that no decoder reads; through a real server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import skimage.data
from PIL import ExifTags, Image

from clip_client import ClipClient
from clip_client.dedup import find_duplicates
from clip_client.dedup.report import SAME_PIXELS

if TYPE_CHECKING:
    from benchmarks.server import Server
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
    sample("brick.png").save(folder / "wall.jpg", quality=92)
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
    assert {name for name, member in members.items() if member.moment} == {"again.jpg"}
