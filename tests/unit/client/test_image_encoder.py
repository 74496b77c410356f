"""What travels: files that are small as they are, and everything else as a thumbnail of the model's input size."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from clip_client import ClientConfig, ImageError, ModelInfo, ProtocolMismatch
from clip_client._encoding import IMAGE_ENCODINGS
from clip_client._pipeline.encoder import ImageEncoder
from preprocess_ensemble.imaging.decode import DecodeError, decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from tests.fixtures.models.model_info import model_info

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from clip_client._encoding import TransferName

CONFIG = PreprocessConfig(size=(32, 48), resize_mode="squash", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
NOISE = Image.effect_noise((300, 200), 60).convert("RGB")
SCENE = Image.merge("RGB", [Image.radial_gradient("L").resize((300, 200)).point(lambda v: 255 - v),
                            Image.linear_gradient("L").resize((300, 200)),
                            Image.linear_gradient("L").rotate(90).resize((300, 200))])  # fmt: skip
"""Smooth, so that its thumbnail is as near as JPEG is, and another picture when it is turned or mirrored."""
MEAN_LEVELS = {"thumbnail": 1.5, "thumbnail-small": 2.5}
"""How far a thumbnail of the scene may be from the exact pixels on average."""


def model(**preprocess_values: Any) -> ModelInfo:
    return model_info(preprocess_id=CONFIG.id, preprocess={**CONFIG.to_mapping(), **preprocess_values})


def encoder(transfer: TransferName = "thumbnail") -> ImageEncoder:
    return ImageEncoder(ClientConfig(transfer=transfer))


def encoded(image: Image.Image, image_format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def opened(file: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(file))
    image.load()
    return image


def pixels_of(file: bytes) -> NDArray[np.int16]:
    return np.asarray(opened(file).convert("RGB"), dtype=np.int16)


@pytest.mark.parametrize("transfer", ["thumbnail", "thumbnail-small"])
def test_a_large_file_becomes_the_pixels_that_the_model_takes(transfer: TransferName, tmp_path: Path) -> None:
    file = encoded(SCENE, "PNG", compress_level=0)
    path = tmp_path / "scene.png"
    path.write_bytes(file)
    assert encoder(transfer).unchanged(file) is None
    thumbnail = encoder(transfer).encode(file, model())
    assert thumbnail == encoder(transfer).encode(path, model()) == encoder(transfer).encode(SCENE, model())
    assert thumbnail == encoder(transfer).encode(np.asarray(SCENE), model())
    image = opened(thumbnail)
    assert (image.format, image.size) == ("JPEG", (48, 32))
    exact = preprocess(decode(file), CONFIG)
    assert abs(pixels_of(thumbnail) - exact).mean() < MEAN_LEVELS[transfer]
    for turned in (exact[::-1], exact[:, ::-1], exact[::-1, ::-1]):
        assert abs(pixels_of(thumbnail) - turned).mean() > 20


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_thumbnail_has_its_orientation_applied(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = encoded(SCENE, "JPEG", quality=95, subsampling=0, exif=exif.tobytes())
    file += b"\0" * (IMAGE_ENCODINGS["thumbnail"].unchanged_up_to + 1 - len(file))
    thumbnail = encoder().encode(file, model())
    upright = ImageOps.exif_transpose(opened(file)).resize((48, 32), Image.Resampling.BICUBIC)
    assert opened(thumbnail).getexif().get(0x0112, 1) == 1
    assert abs(pixels_of(thumbnail) - np.asarray(upright)).mean() < MEAN_LEVELS["thumbnail"]


def test_original_sends_the_file(tmp_path: Path) -> None:
    file = encoded(NOISE, "PNG")
    (tmp_path / "a").write_bytes(file)
    assert encoder("original").unchanged(file) == file
    assert encoder("original").encode(tmp_path / "a", model()) == file
    assert (pixels_of(encoder("original").encode(NOISE, model())) == np.asarray(NOISE)).all()


def test_a_small_file_is_sent_unchanged(tmp_path: Path) -> None:
    limit = IMAGE_ENCODINGS["thumbnail"].unchanged_up_to
    small, large = b"x" * limit, b"x" * (limit + 1)
    for source in (small, bytearray(small), memoryview(small)):
        assert encoder().unchanged(source) == small
    assert encoder().unchanged(large) is None
    assert encoder().unchanged(np.zeros((limit, 2), np.uint8).data) is None
    path = tmp_path / "small"
    path.write_bytes(small)
    assert encoder().unchanged(path) is None
    assert encoder().encode(path, model()) == small
    assert encoder().encode(io.BytesIO(small), model()) == small


def test_a_thumbnail_larger_than_its_file_is_not_sent() -> None:
    file = encoded(NOISE.resize((600, 400)), "JPEG", quality=3)
    file += b"\0" * (IMAGE_ENCODINGS["thumbnail"].unchanged_up_to + 1 - len(file))
    huge = {"size": [600, 600]}
    assert encoder().encode(file, model(**huge)) == file


def test_the_orientation_of_a_picture_in_memory_counts() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    sideways = opened(encoded(NOISE.transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif))
    assert encoder().encode(sideways, model()) == encoder().encode(NOISE, model())


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "I;16", "1"])
def test_a_picture_in_any_mode_looks_as_its_file_would(mode: str) -> None:
    picture = Image.fromarray(np.asarray(SCENE.convert("L"), np.uint16) << 8) if mode == "I;16" else SCENE.convert(mode)
    if mode in ("LA", "RGBA"):
        picture.putalpha(128)
    expected = preprocess(decode(encoder("original").encode(picture, model())), CONFIG)
    arrived = encoder().encode(picture, model())
    assert abs(preprocess(decode(arrived), CONFIG).astype(np.int16) - expected).mean() < MEAN_LEVELS["thumbnail"]


def test_a_bad_file_fails_with_the_code_and_the_sentence_of_the_server() -> None:
    file = encoded(NOISE, "PNG")
    for bad in (file[: len(file) // 2], b"no image" * 10_000):
        with pytest.raises(DecodeError) as there:
            decode(bad)
        with pytest.raises(ImageError) as here:
            encoder().encode(bad, model())
        assert (here.value.code, here.value.message) == (there.value.status.name, there.value.message)


def test_a_picture_in_memory_over_a_limit_fails_as_its_file_would() -> None:
    strip = np.random.default_rng(0).integers(0, 256, (4, 8000, 3), dtype=np.uint8)
    with pytest.raises(ImageError) as caught:
        encoder().encode(strip, model())
    assert caught.value.code == "LIMIT"


def test_unknown_preprocessing_is_not_an_image_error() -> None:
    with pytest.raises(ProtocolMismatch, match="transfer='original'"):
        encoder().encode(NOISE, model(resize_mode="seam carving"))


def test_one_thread_at_a_time_reads_an_object_that_is_passed_twice() -> None:
    data = encoded(Image.effect_noise((1200, 900), 60).convert("RGB"), "JPEG")
    load = encoder().encode
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            picture = Image.open(io.BytesIO(data))  # not decoded yet
            assert len(set(pool.map(lambda _, picture=picture: load(picture, model()), range(4)))) == 1
        file = io.BytesIO(data)
        sizes = [len(found) for found in pool.map(lambda _: load(file, model()), range(4))]
    assert sorted(map(bool, sizes)) == [False, False, False, True]
