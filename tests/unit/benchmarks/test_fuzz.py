"""A small part of ``make fuzz``, and the bugs that larger runs have found."""

from __future__ import annotations

import struct
import threading

import pytest
from PIL import Image

from benchmarks.experiments.imaging.fuzz import LEAST_HEADER_SHARE, Inputs, attempt, try_inputs
from benchmarks.fixtures.damaged_images import seeds
from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.decode import DecodeError, DecodeLimits, decode
from preprocess_ensemble.imaging.formats import identify
from preprocess_ensemble.imaging.pillow_decoder import large_image_lock
from tests.fixtures.images import image_files

INPUTS = 2000


def test_a_slice(capfd: pytest.CaptureFixture[str]) -> None:
    outcome = try_inputs(Inputs(seed=7), range(INPUTS))
    capfd.readouterr()  # libtiff prints complaints to the standard error stream
    assert outcome.findings == {}
    assert outcome.statuses.total() == INPUTS
    assert outcome.passed_header >= LEAST_HEADER_SHARE * INPUTS
    assert {"OK", "CORRUPT", "TRUNCATED", "UNSUPPORTED_FORMAT", "TOO_LARGE", "LIMIT"} <= outcome.statuses.keys()


def test_inputs_follow_from_seed_and_number() -> None:
    assert Inputs(seed=3)[41] == Inputs(seed=3)[41]
    assert Inputs(seed=3)[41] != Inputs(seed=4)[41]


def test_every_seed_is_a_good_image_of_its_format() -> None:
    for name, files in seeds().items():
        for data in files:
            known = identify(data)
            assert known is not None
            assert known.name == name
            assert attempt(data, DecodeLimits(), (448, 448)) is ImageStatus.OK


def status_of(data: bytes, at_least: tuple[int, int] | None = None) -> ImageStatus:
    with pytest.raises(DecodeError) as caught:
        decode(data, at_least=at_least)
    return caught.value.status


def test_found_a_palette_image_without_a_palette() -> None:
    data = image_files.png(4, 4, 8, 3, bytes(5 * 4))
    assert status_of(data) is ImageStatus.CORRUPT


@pytest.mark.parametrize("at_least", [None, (16, 16)])
def test_found_a_jpeg_with_exif_that_pillow_cannot_open(at_least: tuple[int, int] | None) -> None:
    data = image_files.jpeg(exif=b"Exif\0\0")
    table = data.index(b"\xff\xdb")
    broken = data[: table + 2] + struct.pack(">H", 5) + b"\x00\x01\x02" + data[table:]
    assert status_of(broken, at_least) is ImageStatus.CORRUPT


def test_found_an_animation_with_a_huge_canvas() -> None:
    """4 KB that took 1.9 GB: within the megapixels, but the decoder holds an animation's canvas several times."""
    pictures = [image_files.picture(seed=seed) for seed in (0, 1)]
    data = bytearray(image_files.encoded(pictures[0], "WEBP", save_all=True, append_images=pictures[1:]))
    canvas = data.index(b"VP8X") + 12  # 24 bits of width - 1, then of height - 1
    data[canvas : canvas + 6] = (9999).to_bytes(3, "little") + (4999).to_bytes(3, "little")
    assert status_of(bytes(data)) is ImageStatus.TOO_LARGE


def test_found_large_images_needing_memory_all_at_once() -> None:
    data = image_files.encoded(Image.new("1", (5700, 5700)), "PNG")  # 32.5 megapixels
    decoded: list[Image.Image] = []
    thread = threading.Thread(target=lambda: decoded.append(decode(data)))
    with large_image_lock(32_000_001):
        thread.start()
        decode(image_files.encoded(image_files.picture(size=(20, 20)), "PNG"))  # a small image does not wait
        assert not decoded
    thread.join()
    assert decoded[0].size == (5700, 5700)
