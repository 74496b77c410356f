"""Pillow and libtiff say nothing about unusual files, and are as before afterwards."""

import io
import logging
import struct
import threading
import warnings

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from clip_client.dedup.compare.aligner import keypoints_in
from clip_client.dedup.features.image_features import extract_features
from clip_client.dedup.formats.encoding import read_encoding
from clip_client.dedup.metadata.facts import read_facts
from clip_client.dedup.metadata.summary import read_metadata
from preprocess_ensemble.imaging.decode import DecodeError, decode
from preprocess_ensemble.imaging.quiet import quiet_libraries
from tests.fixtures.images import image_files


def damaged_fax() -> bytes:
    """A TIFF of which libtiff says for each row that it is damaged, and which Pillow shows nevertheless."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60), dtype=np.uint8)).convert("1")
    data = bytearray(image_files.encoded(noise, "TIFF", compression="group4"))
    with TiffImagePlugin.TiffImageFile(io.BytesIO(data)) as image:
        start = image.tag_v2[TiffImagePlugin.STRIPOFFSETS][0]
    for position in range(start + 20, start + 200, 10):
        data[position] ^= 0x5A
    return bytes(data)


def with_far_tags() -> bytes:
    entries = [(0x010F, 2, 5000, 90_000), (0x0112, 3, 1, 1), (0x8769, 4, 1, 99_999)]
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return image_files.jpeg_with_segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0" + directory)


def load(data: bytes) -> None:
    with TiffImagePlugin.TiffImageFile(io.BytesIO(data)) as image:
        image.load()


def test_what_libtiff_says_is_heard_outside_alone(capfd: pytest.CaptureFixture[str]) -> None:
    data = damaged_fax()
    decode(data)
    with quiet_libraries():
        load(data)
        with quiet_libraries():
            pass
        load(data)
        thread = threading.Thread(target=decode, args=(data,))
        thread.start()
        thread.join()
        load(data)
    assert capfd.readouterr().err == ""
    load(data)
    assert "Fax4Decode" in capfd.readouterr().err


@pytest.mark.parametrize("read", [read_metadata, read_facts, read_encoding, keypoints_in, extract_features])
def test_nothing_warns_of_what_a_file_lacks(read: object) -> None:
    assert callable(read)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read(with_far_tags())
    assert [str(one.message) for one in caught] == []


def test_pillow_logs_nothing_of_a_file(caplog: pytest.LogCaptureFixture) -> None:
    data = image_files.tiff(image_files.picture_tags((4, 4), [8] * 9, 1, 144), bytes(144))
    with caplog.at_level(logging.WARNING, "PIL"):
        with pytest.raises(DecodeError):
            decode(data)
        assert caplog.messages == []
        with pytest.raises(SyntaxError):
            load(data)
        assert caplog.messages == ["More samples per pixel than can be decoded: 9"]
