"""Every kind of image source, and everything that is none."""

from __future__ import annotations

import io
import os
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clip_client import ClientConfig, ImageError
from clip_client._pipeline.encoder import ImageEncoder
from clip_client._pipeline.images import is_single
from tests.fixtures.models.model_info import model_info

MAX = 1 << 20
RNG = np.random.default_rng(5)
PIXELS = RNG.integers(0, 256, (7, 5, 3), dtype=np.uint8)


def read(source: object, max_bytes: int = MAX) -> bytes:
    """Return what ``transfer="original"`` sends."""
    return ImageEncoder(ClientConfig(transfer="original", max_image_bytes=max_bytes)).encode(source, model_info())


def pixels_of(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.asarray(Image.open(io.BytesIO(data)))


def code_of(source: object) -> str:
    with pytest.raises(ImageError) as caught:
        read(source)
    assert "\n" not in str(caught.value)
    return caught.value.code


def test_paths(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ünï 🐈 x.jpg"
    path.write_bytes(b"content")
    assert read(path) == b"content"
    assert read(str(path)) == b"content"


@pytest.mark.skipif(os.name == "nt", reason="file names are text there")
def test_a_name_that_is_not_utf8(tmp_path: pathlib.Path) -> None:
    name = os.path.join(os.fsencode(tmp_path), b"\xff\xfe.jpg")
    with open(name, "wb") as file:
        file.write(b"content")
    assert read(os.fsdecode(name)) == b"content"


def test_bytes_are_returned_unchanged() -> None:
    for source in (b"x", bytearray(b"x"), memoryview(b"x")):
        assert read(source) == b"x"


def test_an_array_arrives_pixel_by_pixel() -> None:
    assert (pixels_of(read(PIXELS)) == PIXELS).all()
    assert (pixels_of(read(PIXELS[:, ::-1])) == PIXELS[:, ::-1]).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I;16", "I"])
def test_a_pil_image_of_any_mode_arrives_pixel_by_pixel(mode: str) -> None:
    image = Image.fromarray(PIXELS).convert(mode)
    arrived: Image.Image = Image.open(io.BytesIO(read(image)))
    if mode in ("CMYK", "YCbCr", "HSV"):
        image = image.convert("RGB")
    if mode == "I":
        arrived = arrived.convert("I")
    assert (np.asarray(arrived) == np.asarray(image)).all()


def test_the_exif_orientation_of_a_pil_image_is_applied() -> None:
    image = Image.fromarray(PIXELS)
    exif = image.getexif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    image.save(buffer, "PNG", exif=exif)
    arrived = Image.open(io.BytesIO(read(Image.open(buffer))))
    assert (np.asarray(arrived) == np.rot90(PIXELS, -1)).all()
    assert arrived.getexif().get(0x0112, 1) == 1


def test_file_objects(tmp_path: pathlib.Path) -> None:
    assert read(io.BytesIO(b"content")) == b"content"
    path = tmp_path / "x"
    path.write_bytes(b"y" * 3_000_000)
    with path.open("rb") as file:
        assert len(read(file, 3_000_000)) == 3_000_000


@pytest.mark.parametrize(
    "source", [None, 5, object(), np.zeros((4, 4)), np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)]
)
def test_objects_that_are_not_images(source: object) -> None:
    assert code_of(source) == "NOT_AN_IMAGE"


def test_unreadable_files(tmp_path: pathlib.Path) -> None:
    class Broken:
        def read(self, size: int) -> bytes:
            raise RuntimeError("disk on fire")

    for source in (tmp_path, tmp_path / "none", "null\0byte", io.StringIO("text"), Broken()):
        assert code_of(source) == "UNREADABLE"


def test_an_empty_file_is_not_sent(tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(ImageError, match=r"EMPTY: The file is empty\."):
        read(tmp_path / "empty.jpg")


@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        ("https://example.com/a.jpg", "cannot be read: it is a URL; download the file, and pass its path or bytes."),
        (".", "cannot be read: it is a folder; pass the paths of its photos, as from sorted("),
    ],
)
def test_a_url_and_a_folder_are_explained(source: str, remedy: str) -> None:
    with pytest.raises(ImageError, match=re.escape(remedy)):
        read(source)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_fifo_and_a_loop_do_not_block(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert code_of(tmp_path / "fifo") == "UNREADABLE"
    assert code_of(tmp_path / "loop") == "UNREADABLE"


def test_a_truncated_pil_image_and_mode_f() -> None:
    buffer = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(buffer, "PNG")
    assert code_of(Image.open(io.BytesIO(buffer.getvalue()[:2000]))) == "UNREADABLE"
    assert code_of(Image.new("F", (2, 2))) == "UNSUPPORTED_FORMAT"


def test_the_size_limit(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * (MAX + 1))
    assert code_of(path) == "TOO_LARGE"
    assert code_of(io.BytesIO(b"x" * (MAX + 1))) == "TOO_LARGE"
    assert len(read(io.BytesIO(b"x" * MAX))) == MAX


def test_one_image_or_many() -> None:
    assert all(is_single(one) for one in ("p", pathlib.Path("p"), b"", bytearray(), PIXELS, io.BytesIO()))
    assert is_single(Image.new("L", (1, 1)))
    assert not any(is_single(many) for many in (["p"], ("p",), PIXELS[None], iter(["p"])))
