"""The results of one decode of a photo: features (of a RAW file, those of its preview), and the bytes for a model."""

import dataclasses
import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image

from clip_client import ClientConfig, ImageError
from clip_client._encoding import IMAGE_ENCODINGS, EncodedImage
from clip_client._model import ModelInfo
from clip_client._pipeline.encoder import ImageEncoder
from clip_client.dedup.features.image_features import BYTES_ONLY, ModelInput, extract_features
from clip_client.dedup.features.preview import NEEDS_RAWPY, raw_preview, thumbnail
from preprocess_ensemble.imaging import decode as decoding
from preprocess_ensemble.imaging.transform import PreprocessConfig
from tests.fixtures.albums import write
from tests.fixtures.images.image_files import encoded, oriented
from tests.fixtures.images.raw_files import dng
from tests.fixtures.models.model_info import model_info

LEVELS = np.linspace(0, 255, 240, dtype=np.uint8)[:, None, None] * np.ones((1, 320, 3), np.uint8)
LEVELS[:60, :80] = 255
PICTURE = Image.fromarray(LEVELS)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_features_are_those_of_the_oriented_preview(orientation: int, tmp_path: Path) -> None:
    jpeg = encoded(PICTURE, "JPEG", quality=90, exif=oriented(orientation))
    data = dng(PICTURE, orientation=orientation)
    features = extract_features(data, is_raw=True)[0]
    assert features.perceptual_hash == extract_features(jpeg)[0].perceptual_hash
    assert (features.width, features.height) == ((64, 48) if orientation < 5 else (48, 64))
    assert features.metadata.taken_ms == 1_588_748_889_000
    assert features.metadata.camera == "Maker Model"
    small = thumbnail(str(write(tmp_path / "a.dng", data)), 64)
    assert small is not None
    with Image.open(io.BytesIO(small)) as seen:
        assert (seen.width > seen.height) == (orientation < 5)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_preview_of_bare_pixels_is_an_upright_image_file(orientation: int) -> None:
    data = dng(PICTURE, orientation=orientation, is_jpeg=False)
    preview = raw_preview(data)
    assert preview is not None
    with Image.open(io.BytesIO(preview.data)) as seen:
        assert (seen.format, seen.tobytes()) == ("PNG", PICTURE.tobytes())
    of_png = extract_features(encoded(PICTURE, "PNG", exif=oriented(orientation)))[0]
    assert extract_features(data, is_raw=True)[0].perceptual_hash == of_png.perceptual_hash


def test_without_a_preview_or_rawpy_only_bytes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (dng(None), b"no RAW file at all", b""):
        features = extract_features(data, is_raw=True)[0]
        assert (features.code, features.is_flat) == (BYTES_ONLY, True)
    monkeypatch.setitem(sys.modules, "rawpy", None)  # as if it were not installed
    features = extract_features(dng(PICTURE), is_raw=True)[0]
    assert (features.code, features.message) == (BYTES_ONLY, NEEDS_RAWPY)


CONFIG = PreprocessConfig(size=(224, 224), resize_mode="shortest", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def model(transfer: Any = "thumbnail", **changes: Any) -> ModelInfo:
    described = {**dataclasses.replace(CONFIG, **changes).to_mapping()}
    return model_info(preprocess=described, transfer=IMAGE_ENCODINGS[transfer].id)


def photo(width: int, height: int, image_format: str = "JPEG", **options: Any) -> bytes:
    grains = np.random.default_rng(0).integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
    return encoded(Image.fromarray(grains).resize((width, height), Image.Resampling.BICUBIC), image_format, **options)


def sent(file: bytes, described: ModelInfo) -> tuple[EncodedImage | None, int]:
    """What a search sends of a file, and how often it decoded the file for it."""
    model_input = ModelInput.of(described)
    assert model_input is not None
    with patch.object(decoding, "decode", wraps=decoding.decode) as decode:
        _, image = extract_features(file, model_input)
    return image, decode.call_count


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(partial(photo, 4800, 3840, quality=20), id="an eighth"),
        pytest.param(partial(photo, 4000, 3008, quality=20), id="12 megapixels"),
        pytest.param(partial(photo, 1632, 1216, exif=oriented(6)), id="2 megapixels, turned"),
        pytest.param(partial(photo, 3776, 5600, quality=40, exif=oriented(8)), id="just large enough, turned"),
        pytest.param(partial(photo, 3760, 5600, quality=40), id="just too small"),
        pytest.param(partial(photo, 1024, 784), id="whole for the model"),
        pytest.param(partial(photo, 480, 496), id="whole for both"),
        pytest.param(partial(photo, 640, 480, "PNG"), id="PNG"),
        pytest.param(partial(photo, 800, 608, progressive=True), id="progressive"),
        pytest.param(partial(photo, 64, 64), id="sent unchanged"),
    ],
)
def test_one_decode_gives_the_bytes_that_the_client_would_send(make: Callable[[], bytes]) -> None:
    file = make()
    image, decoded = sent(file, model())
    assert (image, decoded) == (ImageEncoder(ClientConfig()).encode(file, model()), 1)
    assert image is not None
    assert image.file_bytes == len(file)


def test_models_of_other_input_sizes_and_small_thumbnails_have_the_clients_pixels() -> None:
    for file in (photo(4000, 3008, quality=40), photo(1024, 784, quality=10)):
        for size in ((64, 64), (112, 300), (336, 336), (600, 600)):
            described = model(size=size)
            assert sent(file, described)[0] == ImageEncoder(ClientConfig()).encode(file, described), size
        small = model("thumbnail-small")
        assert sent(file, small)[0] == ImageEncoder(ClientConfig(transfer="thumbnail-small")).encode(file, small)


def test_the_features_do_not_depend_on_the_model_input_and_the_whole_picture_is_kept() -> None:
    seen: list[tuple[int, int]] = []
    file = photo(640, 480, "PNG")
    found, _ = extract_features(file, ModelInput.of(model()), lambda decoded: seen.append(decoded.picture.size))
    assert found == extract_features(file)[0]
    assert seen == [(640, 480)]


def test_nothing_is_made_where_the_client_has_to_read_the_file() -> None:
    assert ModelInput.of(model("original")) is None
    assert ModelInput.of(model_info(preprocess={"size": "?"}, transfer=IMAGE_ENCODINGS["thumbnail"].id)) is None
    broken = photo(1600, 1200)[:20_000]
    assert sent(broken, model()) == (None, 1)


def test_an_encoded_image_is_sent_as_it_is_unless_its_file_is_too_large(tmp_path: Path) -> None:
    file = photo(320, 240, "PNG")
    path, image = write(tmp_path / "a.png", file), EncodedImage.of(b"x" * 100_000, file)
    assert ImageEncoder(ClientConfig()).unchanged(image) is image
    strict = ImageEncoder(ClientConfig(max_image_bytes=len(file) - 1))
    assert strict.unchanged(image) is None
    messages = []
    for source in (image, path):
        with pytest.raises(ImageError, match="max_image_bytes") as refused:
            strict.encode(source, model())
        messages.append((refused.value.code, refused.value.message))
    assert messages[0] == messages[1]
