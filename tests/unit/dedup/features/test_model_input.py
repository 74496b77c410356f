"""What a search sends of a decoded photo is what the client would send for its file, byte for byte."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from clip_client import ClientConfig, ImageError
from clip_client._encoding import IMAGE_ENCODINGS, EncodedImage
from clip_client._pipeline.encoder import ImageEncoder
from clip_client.dedup.features.image_features import ModelInput, extract_features
from preprocess_ensemble.imaging import decode as decoding
from preprocess_ensemble.imaging.transform import PreprocessConfig
from tests.fixtures.images.image_files import encoded, oriented
from tests.fixtures.models.model_info import model_info

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from clip_client._model import ModelInfo

CONFIG = PreprocessConfig(size=(224, 224), resize_mode="shortest", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def model(transfer: Any = "thumbnail", **changes: Any) -> ModelInfo:
    described = {**dataclasses.replace(CONFIG, **changes).to_mapping()}
    return model_info(preprocess=described, transfer=IMAGE_ENCODINGS[transfer].id)


def photo(width: int, height: int, image_format: str = "JPEG", **options: Any) -> bytes:
    grains = np.random.default_rng(0).integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
    return encoded(Image.fromarray(grains).resize((width, height), Image.Resampling.BICUBIC), image_format, **options)


def sent(file: bytes, described: ModelInfo) -> tuple[EncodedImage | None, int]:
    """Return what a search sends of a file, and how often it decoded the file for it."""
    model_input = ModelInput.of(described)
    assert model_input is not None
    decoded = 0
    whole = decoding.decode

    def counted(*arguments: Any, **options: Any) -> Image.Image:
        nonlocal decoded
        decoded += 1
        return whole(*arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(decoding, "decode", counted)
        _, image = extract_features(file, model_input, is_raw=False)
    return image, decoded


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
    assert image == ImageEncoder(ClientConfig()).encode(file, model())
    assert decoded == 1
    assert image is not None
    assert image.file_bytes == len(file)


def test_a_small_thumbnail_is_that_of_the_client_too() -> None:
    file, described = photo(1024, 784), model("thumbnail-small")
    assert sent(file, described)[0] == ImageEncoder(ClientConfig(transfer="thumbnail-small")).encode(file, described)


def test_models_of_other_input_sizes_get_the_pixels_that_they_need() -> None:
    for file in (photo(4000, 3008, quality=40), photo(1024, 784, quality=10)):
        for size in ((64, 64), (112, 300), (336, 336), (600, 600)):
            described = model(size=size)
            assert sent(file, described)[0] == ImageEncoder(ClientConfig()).encode(file, described), size


def test_the_features_do_not_depend_on_the_model_input_and_the_whole_picture_is_kept() -> None:
    seen: list[tuple[int, int]] = []
    model_input = ModelInput.of(model())
    assert model_input is not None
    file = photo(640, 480, "PNG")
    found, _ = extract_features(file, model_input, lambda decoded: seen.append(decoded.picture.size), is_raw=False)
    assert found == extract_features(file)[0]
    assert seen == [(640, 480)]


def test_nothing_is_made_where_the_client_has_to_read_the_file() -> None:
    assert ModelInput.of(model("original")) is None
    assert ModelInput.of(model_info(preprocess={"size": "?"}, transfer=IMAGE_ENCODINGS["thumbnail"].id)) is None
    broken = photo(1600, 1200)[:20_000]
    assert sent(broken, model()) == (None, 1)


def test_an_encoded_image_is_sent_as_it_is_unless_its_file_is_too_large(tmp_path: Path) -> None:
    file = photo(320, 240, "PNG")
    (tmp_path / "a.png").write_bytes(file)
    image = EncodedImage.of(b"x" * 100_000, file)
    assert ImageEncoder(ClientConfig()).unchanged(image) is image
    strict = ImageEncoder(ClientConfig(max_image_bytes=len(file) - 1))
    assert strict.unchanged(image) is None
    messages = []
    for source in (image, tmp_path / "a.png"):
        with pytest.raises(ImageError, match="max_image_bytes") as refused:
            strict.encode(source, model())
        messages.append((refused.value.code, refused.value.message))
    assert messages[0] == messages[1]
