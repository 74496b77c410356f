"""Pictures of photos: whole, upright, never enlarged, and only of what was searched."""

from __future__ import annotations

import hashlib
import io
import os
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from clip_client.dedup import scan
from clip_client.review.state.previews import PreviewCache
from tests.fixtures.images.raw_files import dng

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.reviews import Review


def saved(path: Path, width: int, height: int, **options: object) -> str:
    """Save a photo, red at its left half; return the SHA-256 of its file."""
    picture = Image.new("RGB", (width, height), "blue")
    picture.paste("red", (0, 0, width // 2, height))
    picture.save(path, **options)  # type: ignore[arg-type]
    return hashlib.sha256(path.read_bytes()).hexdigest()


def drawn(jpeg: bytes | None) -> Image.Image:
    assert jpeg is not None
    return Image.open(io.BytesIO(jpeg))


@pytest.fixture
def previews(tmp_path: Path) -> PreviewCache:
    return PreviewCache(tmp_path / "previews")


def test_sizes_are_limits_and_nothing_is_enlarged(previews: PreviewCache, tmp_path: Path) -> None:
    sha256 = saved(tmp_path / "a.png", 4000, 1000)
    sizes = [drawn(previews.jpeg(sha256, [str(tmp_path / "a.png")], size)).size for size in ("small", "large", "full")]
    assert sizes == [(480, 120), (1600, 400), (4000, 1000)]
    icon = saved(tmp_path / "icon.png", 16, 12)
    assert drawn(previews.jpeg(icon, [str(tmp_path / "icon.png")], "full")).size == (16, 12)


def test_a_turned_photo_is_upright(previews: PreviewCache, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise by 90 degrees
    sha256 = saved(tmp_path / "a.jpg", 64, 48, exif=exif)
    picture = drawn(previews.jpeg(sha256, [str(tmp_path / "a.jpg")], "small"))
    assert picture.size == (48, 64)
    assert picture.convert("RGB").getpixel((24, 8))[0] > 200  # type: ignore[index]  # the left is on top now


def test_a_raw_file_shows_its_preview(previews: PreviewCache, tmp_path: Path) -> None:
    (tmp_path / "a.dng").write_bytes(dng(Image.radial_gradient("L").resize((320, 240)).convert("RGB")))
    sha256 = hashlib.sha256((tmp_path / "a.dng").read_bytes()).hexdigest()
    assert drawn(previews.jpeg(sha256, [str(tmp_path / "a.dng")], "full")).size == (320, 240)


def test_a_file_that_was_replaced_is_not_shown_even_by_a_link(previews: PreviewCache, tmp_path: Path) -> None:
    sha256 = saved(tmp_path / "a.png", 8, 8)
    saved(tmp_path / "secret.png", 9, 9)
    os.remove(tmp_path / "a.png")
    assert previews.jpeg(sha256, [str(tmp_path / "a.png")], "small") is None
    os.symlink(tmp_path / "secret.png", tmp_path / "a.png")
    assert previews.jpeg(sha256, [str(tmp_path / "a.png")], "small") is None
    (tmp_path / "broken.png").write_bytes(b"no picture")
    broken = hashlib.sha256(b"no picture").hexdigest()
    assert previews.jpeg(broken, [str(tmp_path / "broken.png")], "small") is None


def test_a_picture_is_drawn_once_and_another_copy_will_do(previews: PreviewCache, tmp_path: Path) -> None:
    sha256 = saved(tmp_path / "a.png", 8, 8)
    first = previews.jpeg(sha256, [str(tmp_path / "missing.png"), str(tmp_path / "a.png")], "small")
    os.remove(tmp_path / "a.png")
    assert previews.jpeg(sha256, [], "small") == first
    # No search takes them for photos.
    assert scan(tmp_path).files == ()


def test_the_least_used_pictures_make_room(tmp_path: Path) -> None:
    contents = [saved(tmp_path / f"{number}.png", 50 + number, 50) for number in range(8)]
    one = len(PreviewCache(tmp_path / "one").jpeg(contents[0], [str(tmp_path / "0.png")], "small") or b"")
    folder = tmp_path / "previews"
    for number, sha256 in enumerate(contents):
        # Another process each time, so the sizes are those on the disk.
        previews = PreviewCache(folder, most_bytes=6 * one)
        previews.jpeg(sha256, [str(tmp_path / f"{number}.png")], "small")
        previews.jpeg(contents[0], [], "small")
        for age, file in enumerate(sorted(folder.glob("*.jpg"), key=lambda path: path.stat().st_mtime_ns)):
            os.utime(file, ns=(0, 10**9 * (age + 1)))
    kept = {path.name.partition("-")[0] for path in folder.glob("*.jpg")}
    assert sum(path.stat().st_size for path in folder.glob("*.jpg")) <= 6 * one
    assert {contents[0], contents[7]} <= kept
    assert contents[1] not in kept


def test_the_address_of_a_picture_names_its_content(review: Review, album: Path) -> None:
    saved(album / "x.jpg", 8, 8)
    for path in ("/photos/0/small", f"/photos/{'0' * 64}/small", f"/photos/{hashlib.sha256(b'x').hexdigest()}/huge"):
        assert review.get(path).status == 404
    # x.jpg was other bytes when it was searched.
    assert review.get(f"/photos/{hashlib.sha256(b'x').hexdigest()}/small").status == 404
    assert "Changed" in review.get("/groups/2").text or "changed" in review.get("/groups/2").text
