"""The bytes that are sent of every kind of image source: small files as they are, other images as a thumbnail."""

from __future__ import annotations

import io
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from clip_client import ClientConfig, ImageError, ModelInfo
from clip_client._encoding import IMAGE_ENCODINGS, TransferName
from clip_client._pipeline.encoder import ImageEncoder
from preprocess_ensemble.imaging.decode import DecodeError, decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from tests.fixtures.images.image_files import encoded, oriented
from tests.fixtures.models.model_info import model_info

MAX = 1 << 20
CONFIG = PreprocessConfig(size=(32, 48), resize_mode="squash", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
PIXELS = np.random.default_rng(5).integers(0, 256, (7, 5, 3), dtype=np.uint8)
NOISE = Image.effect_noise((300, 200), 60).convert("RGB")
SCENE = Image.merge("RGB", [Image.radial_gradient("L").resize((300, 200)).point(lambda v: 255 - v),
                            Image.linear_gradient("L").resize((300, 200)),
                            Image.linear_gradient("L").rotate(90).resize((300, 200))])  # fmt: skip
"""Smooth, so that its thumbnail is as near as JPEG is, and another picture when it is turned or mirrored."""
MEAN_LEVELS = {"thumbnail": 1.5, "thumbnail-small": 3.0}
"""Largest mean distance of a thumbnail of the scene from the exact pixels."""
FORMATS = {"thumbnail": "JPEG", "thumbnail-small": "WEBP"}
SMALL = IMAGE_ENCODINGS["thumbnail"].unchanged_up_to


def model(**preprocess_values: Any) -> ModelInfo:
    return model_info(preprocess_id=CONFIG.id, preprocess={**CONFIG.to_mapping(), **preprocess_values})


def encode(source: object, transfer: TransferName = "thumbnail", **settings: Any) -> bytes:
    return ImageEncoder(ClientConfig(transfer=transfer, **settings)).encode(source, model())


def read(source: object) -> bytes:
    """Return what is sent of the source as it is."""
    return encode(source, "original", max_image_bytes=MAX)


def opened(file: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(file))
    image.load()
    return image


def pixels_of(file: bytes) -> NDArray[np.int16]:
    return np.asarray(opened(file).convert("RGB"), dtype=np.int16)


def test_files_are_read_by_any_name_and_as_objects(tmp_path: Path) -> None:
    for name in ("ünï 🐈 x.jpg", *([] if os.name == "nt" else [os.fsdecode(b"\xff\xfe.jpg")])):
        path = tmp_path / name
        path.write_bytes(b"content")
        assert read(path) == read(str(path)) == b"content"
    for source in (io.BytesIO(b"x"), b"x", bytearray(b"x"), memoryview(b"x")):
        assert read(source) == b"x"


def test_the_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * MAX)
    assert len(read(path)) == len(read(io.BytesIO(b"x" * MAX))) == MAX
    path.write_bytes(b"x" * (MAX + 9))
    # A file has its size before it is read; an object is read as far as the limit.
    large = np.zeros((3, MAX), np.uint8)
    others = ((io.BytesIO(large.data), MAX + 1), (large.tobytes(), 3 * MAX), (large.data, 3 * MAX))
    for source, size in ((path, MAX + 9), *others):
        with pytest.raises(ImageError, match=f"at least {size} bytes and max_image_bytes") as caught:
            read(source)
        assert caught.value.code == "TOO_LARGE"
    strict = ImageEncoder(ClientConfig(transfer="original", max_image_bytes=1000))
    assert [strict.unchanged(bytes(size)) for size in (1000, 1001)] == [bytes(1000), None]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I;16", "I"])
def test_a_picture_in_memory_arrives_pixel_by_pixel(mode: str) -> None:
    image = Image.fromarray(PIXELS).convert(mode)
    arrived = opened(read(image))
    if mode in ("CMYK", "YCbCr", "HSV"):
        image = image.convert("RGB")
    if mode == "I":
        arrived = arrived.convert("I")
    assert (np.asarray(arrived) == np.asarray(image)).all()
    for array in (PIXELS, PIXELS[:, ::-1]):
        assert (pixels_of(read(array)) == array).all()


@pytest.mark.parametrize("kind", ["<u2", ">u2", "<i4"])
def test_16_bits_of_a_picture_arrive_in_any_byte_order(kind: str) -> None:
    samples = np.arange(48, dtype=np.uint16).reshape(6, 8) * 1394
    assert (np.asarray(opened(read(Image.fromarray(samples.astype(kind))))) == samples).all()


@pytest.mark.parametrize(("mode", "becomes"), [("La", "LA"), ("PA", "RGBA"), ("RGBa", "RGBA")])
def test_modes_that_png_lacks_keep_their_transparency(mode: str, becomes: str) -> None:
    picture = Image.new(becomes, (4, 4), (200, 128) if becomes == "LA" else (200, 200, 200, 128)).convert(mode)
    arrived = opened(read(picture))
    assert arrived.mode == becomes
    assert arrived.getchannel("A").getextrema() == (128, 128)


TRUNCATED = encoded(Image.fromarray(np.random.default_rng(5).integers(0, 256, (64, 64, 3), dtype=np.uint8)), "PNG")


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        *((source, "NOT_AN_IMAGE", "expected a path, bytes, a PIL image") for source in (None, 5, object())),
        *(
            (array, "NOT_AN_IMAGE", "an array must be uint8 of shape (H, W, 3)")
            for array in (np.zeros((4, 4)), np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8))
        ),
        ("https://example.com/a.jpg", "UNREADABLE", "it is a URL; download the file, and pass its path or bytes."),
        (".", "UNREADABLE", "it is a folder; pass the paths of its photos, as from sorted("),
        ("/no/such/file", "UNREADABLE", "No such file"),
        ("null\0byte", "UNREADABLE", "reading it raised ValueError"),
        ("{tmp}/loop", "UNREADABLE", "Too many levels of symbolic links"),
        ("{tmp}/fifo", "UNREADABLE", "it is not a regular file"),
        ("{tmp}/empty", "EMPTY", "The file is empty."),
        (io.StringIO("text"), "UNREADABLE", "open the file in binary mode"),
        (SimpleNamespace(read=lambda _: 1 // 0), "UNREADABLE", "reading it raised ZeroDivisionError"),
        (Image.new("F", (2, 2)), "UNSUPPORTED_FORMAT", "no defined white level"),
        (Image.new("I", (2, 2), 65_536), "UNSUPPORTED_FORMAT", "samples outside 0 to 65535"),
        (Image.new("I", (2, 2), -1), "UNSUPPORTED_FORMAT", "samples outside 0 to 65535"),
        (Image.open(io.BytesIO(TRUNCATED[:2000])), "UNREADABLE", "cannot be read"),
    ],
)
def test_what_is_no_image_or_cannot_be_read(source: object, code: str, says: str, tmp_path: Path) -> None:
    """A FIFO does not block."""
    (tmp_path / "empty").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "fifo")
    elif source == "{tmp}/fifo":
        pytest.skip("no FIFOs here")
    with pytest.raises(ImageError, match=re.escape(says)) as caught:
        read(source.format(tmp=tmp_path) if isinstance(source, str) else source)
    assert caught.value.code == code
    assert "\n" not in str(caught.value)


def test_one_image_or_many() -> None:
    one: tuple[Any, ...] = ("p", Path("p"), b"", bytearray(), PIXELS, io.BytesIO(), Image.new("L", (1, 1)))
    items = ImageEncoder(ClientConfig()).items
    assert all(items(image) == [image] for image in one)
    many: tuple[Any, ...] = (["p"], ("p",), PIXELS[None], iter(["p"]))
    assert all(items(images) is images for images in many)


@pytest.mark.parametrize("transfer", ["thumbnail", "thumbnail-small"])
def test_a_large_file_becomes_the_pixels_that_the_model_takes(transfer: TransferName, tmp_path: Path) -> None:
    file = encoded(SCENE, "PNG", compress_level=0)
    path = tmp_path / "scene.png"
    path.write_bytes(file)
    thumbnail = encode(file, transfer)
    assert all(encode(source, transfer) == thumbnail for source in (path, SCENE, np.asarray(SCENE)))
    image = opened(thumbnail)
    assert (image.format, image.size) == (FORMATS[transfer], (48, 32))
    assert (preprocess(decode(thumbnail), CONFIG) == pixels_of(thumbnail)).all(), "nothing is left to resize"
    exact = preprocess(decode(file), CONFIG)
    assert abs(pixels_of(thumbnail) - exact).mean() < MEAN_LEVELS[transfer]
    for turned in (exact[::-1], exact[:, ::-1], exact[::-1, ::-1]):
        assert abs(pixels_of(thumbnail) - turned).mean() > 20


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_is_applied(orientation: int) -> None:
    file = encoded(SCENE, "JPEG", quality=95, subsampling=0, exif=oriented(orientation).tobytes())
    file += b"\0" * (SMALL + 1 - len(file))
    thumbnail = encode(file)
    upright = ImageOps.exif_transpose(opened(file))
    small = upright.resize((48, 32), Image.Resampling.BICUBIC)
    assert opened(thumbnail).getexif().get(0x0112, 1) == 1
    assert abs(pixels_of(thumbnail) - np.asarray(small)).mean() < MEAN_LEVELS["thumbnail"]
    # A picture in memory gives the same result, whether it is reduced or not.
    assert encode(opened(file)) == encode(upright)
    arrived = opened(read(opened(file)))
    assert (np.asarray(arrived) == np.asarray(upright)).all()
    assert arrived.getexif().get(0x0112, 1) == 1


def test_a_small_file_is_sent_unchanged(tmp_path: Path) -> None:
    small, large = b"x" * SMALL, b"x" * (SMALL + 1)
    unchanged = ImageEncoder(ClientConfig()).unchanged
    for source in (small, bytearray(small), memoryview(small)):
        assert unchanged(source) == small
    path = tmp_path / "small"
    path.write_bytes(small)
    for other in (large, np.zeros((SMALL, 2), np.uint8).data, path):
        assert unchanged(other) is None
    assert encode(path) == encode(io.BytesIO(small)) == small
    assert ImageEncoder(ClientConfig(transfer="original")).unchanged(large) == large


def test_a_thumbnail_larger_than_its_file_is_not_sent() -> None:
    file = encoded(NOISE.resize((600, 400)), "JPEG", quality=3)
    file += b"\0" * (SMALL + 1 - len(file))
    assert ImageEncoder(ClientConfig()).encode(file, model(size=[600, 600])) == file


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "I;16", "1"])
def test_a_picture_in_any_mode_looks_as_its_file_would(mode: str) -> None:
    picture = Image.fromarray(np.asarray(SCENE.convert("L"), np.uint16) << 8) if mode == "I;16" else SCENE.convert(mode)
    if mode in ("LA", "RGBA"):
        picture.putalpha(128)
    expected = preprocess(decode(read(picture)), CONFIG)
    arrived = preprocess(decode(encode(picture)), CONFIG)
    assert abs(arrived.astype(np.int16) - expected).mean() < MEAN_LEVELS["thumbnail"]


STRIP = Image.fromarray(np.random.default_rng(0).integers(0, 256, (4, 8000, 3), dtype=np.uint8))
"""Over a limit, as its file is."""


@pytest.mark.parametrize("bad", [encoded(NOISE, "PNG")[:50_000], b"no image" * 10_000, STRIP])
def test_a_bad_image_fails_with_the_code_and_the_sentence_of_the_server(bad: bytes | Image.Image) -> None:
    with pytest.raises(DecodeError) as there:
        decode(read(bad))
    with pytest.raises(ImageError) as here:
        encode(bad)
    assert (here.value.code, here.value.message) == (there.value.status.name, there.value.message)


def test_one_thread_at_a_time_reads_an_object_that_is_passed_twice() -> None:
    data = encoded(Image.effect_noise((1200, 900), 60).convert("RGB"), "JPEG")
    shared = ImageEncoder(ClientConfig())
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            picture = Image.open(io.BytesIO(data))  # not decoded yet
            assert len(set(pool.map(shared.encode, 4 * [picture], 4 * [model()]))) == 1
        sizes = map(len, pool.map(shared.encode, 4 * [io.BytesIO(data)], 4 * [model()]))
    assert sorted(map(bool, sizes)) == [False, False, False, True]
