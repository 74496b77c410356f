"""Decoding into memory that the caller gives: which files, which statuses, and nothing beside that memory."""

from __future__ import annotations

import numpy as np
import pytest

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.decode import DecodeError, DecodeLimits, DecodePath, Decoder, decode, decode_image
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from tests.fixtures.images import image_files

CONFIG = PreprocessConfig(size=(64, 64), mean=(0, 0, 0), std=(1, 1, 1))
AT_LEAST = CONFIG.decode_at_least
NO_TURBOJPEG = "PyTurboJPEG and libturbojpeg are not both installed"


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("at_least", [None, AT_LEAST])
def test_files_of_the_very_size_are_decoded_in_place(mode: str, at_least: tuple[int, int] | None) -> None:
    if turbojpeg_decoder.library() is None:
        pytest.skip(NO_TURBOJPEG)
    data = image_files.jpeg(mode, (64, 64))
    out = np.zeros((64, 64, 3), np.uint8)
    decoded = decode_image(data, at_least=at_least, out=out)
    assert (decoded.image, decoded.decoder) == (None, Decoder.TURBOJPEG)
    assert decoded.decode_path is (DecodePath.SMALL if at_least else DecodePath.OFF)
    assert np.array_equal(out, preprocess(decode(data), CONFIG))


@pytest.mark.parametrize(
    "data",
    [
        image_files.jpeg(size=(64, 48)),
        image_files.jpeg("CMYK", (64, 64)),
        image_files.encoded(image_files.picture(size=(64, 64)), "PNG"),
        image_files.rotated_jpeg(6, (64, 64)),
    ],
)
def test_other_files_are_not_decoded_in_place(data: bytes) -> None:
    out = np.full((64, 64, 3), 7, np.uint8)
    image = decode_image(data, out=out).image
    assert (out == 7).all()
    assert image is not None
    assert np.array_equal(np.asarray(image), np.asarray(decode(data)))


@pytest.mark.parametrize(
    ("data", "limits", "status"),
    [
        (image_files.jpeg(size=(64, 64)), DecodeLimits(max_pixels=4000), ImageStatus.TOO_LARGE),
        (image_files.jpeg(size=(64, 64))[:-2], DecodeLimits(), ImageStatus.TRUNCATED),
        (image_files.jpeg(size=(64, 64))[:300], DecodeLimits(), ImageStatus.TRUNCATED),
        (b"", DecodeLimits(), ImageStatus.EMPTY),
        (b"\xff\xd8", DecodeLimits(), ImageStatus.NOT_AN_IMAGE),
    ],
)
def test_limits_and_damage_have_their_status_in_place_too(
    data: bytes, limits: DecodeLimits, status: ImageStatus
) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_image(data, limits, out=np.zeros((64, 64, 3), np.uint8))
    assert caught.value.status is status


def test_a_file_that_may_be_truncated_is_left_to_pillow() -> None:
    limits = DecodeLimits(allow_truncated=True)
    out = np.zeros((64, 64, 3), np.uint8)
    assert decode_image(image_files.jpeg(size=(64, 64)), limits, out=out).decoder is Decoder.PILLOW


def test_a_damaged_file_is_left_to_pillow() -> None:
    good = image_files.jpeg(size=(64, 64))
    damaged = good[: len(good) // 2] + b"\xff\xd9"
    assert decode_image(damaged, out=np.zeros((64, 64, 3), np.uint8)).decoder is Decoder.PILLOW


@pytest.mark.parametrize("size", [(65, 64), (64, 640), (2000, 1000), (9, 9)])
def test_nothing_is_written_outside_the_given_memory(size: tuple[int, int]) -> None:
    turbojpeg = turbojpeg_decoder.installed()
    if turbojpeg is None:
        pytest.skip(NO_TURBOJPEG)
    memory = np.full((3, 64, 64, 3), 7, np.uint8)
    turbojpeg.decode_into(image_files.jpeg(size=size), memory[1])
    assert (memory[[0, 2]] == 7).all()
