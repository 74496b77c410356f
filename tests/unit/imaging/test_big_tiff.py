"""BigTIFF in both byte orders; Pillow's own reader takes the big-endian one for a classic TIFF."""

import struct
import zlib
from collections.abc import Sequence

import pytest
from PIL import TiffImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.containers.read import read
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.formats import open_image
from tests.fixtures.images.good_files import refused

PIXELS = bytes(range(0, 240, 5))  # 4 x 4 pixels of RGB
NONE, DEFLATE = 1, 8
SHORT, LONG8 = 3, 16


def big_tiff(order: str, compression: int, more: Sequence[tuple[int, int]] = (), pages: int = 1) -> bytes:
    """A file of pages with the same pixels; ``more`` are tags with one number each."""
    pixels = PIXELS if compression == NONE else zlib.compress(PIXELS)
    entries = [
        (256, SHORT, [4]), (257, SHORT, [4]), (258, SHORT, [8, 8, 8]), (259, SHORT, [compression]), (262, SHORT, [2]),
        (273, LONG8, [16]), (277, SHORT, [3]), (278, SHORT, [4]), (279, LONG8, [len(pixels)]),
        *[(tag, SHORT, [value]) for tag, value in more],
    ]  # fmt: skip
    directory = struct.pack(order + "Q", len(entries))
    for tag, kind, values in sorted(entries):
        content = struct.pack(f"{order}{len(values)}{'H' if kind == SHORT else 'Q'}", *values)
        directory += struct.pack(order + "HHQ8s", tag, kind, len(values), content)
    first = 16 + len(pixels)
    data = (b"II" if order == "<" else b"MM") + struct.pack(order + "HHHQ", 43, 8, 0, first) + pixels
    for page in range(1, pages + 1):
        following = first + page * (len(directory) + 8) if page < pages else 0
        data += directory + struct.pack(order + "Q", following)
    return data


every_order = pytest.mark.parametrize("order", "<>")


@every_order
@pytest.mark.parametrize("compression", [NONE, DEFLATE])
def test_a_big_tiff_is_read_in_both_byte_orders(order: str, compression: int) -> None:
    data = big_tiff(order, compression)
    assert decode(data).tobytes() == PIXELS
    assert refused(data[:100]).status is ImageStatus.TRUNCATED


@every_order
def test_the_tags_of_a_big_tiff_are_its_exif(order: str) -> None:
    turned = big_tiff(order, NONE, [(274, 3)])
    whole = decode(big_tiff(order, NONE))
    assert decode(turned).tobytes() == whole.rotate(180).tobytes()
    with open_image(turned) as image:
        assert image.getexif()[274] == 3


@every_order
def test_the_pages_of_a_big_tiff_are_counted_and_found(order: str) -> None:
    data = big_tiff(order, NONE, pages=3)
    container = read(data + b"?")
    assert container.layout is not None
    assert (container.end, container.layout.pages, container.layout.depth) == (len(data), 3, 8)
    with open_image(data) as image:
        assert isinstance(image, TiffImagePlugin.TiffImageFile)
        assert image.n_frames == 3
        for page in (2, 0):
            image.seek(page)
            assert image.tobytes() == PIXELS
    assert "more than 2 frames" in refused(data, max_frames=2).message


@pytest.mark.parametrize("offset", [2**63, 2**64 - 1, 8])
def test_a_big_tiff_whose_directory_lies_nowhere_is_refused(offset: int) -> None:
    data = b"MM" + struct.pack(">HHHQ", 43, 8, 0, offset) + bytes(100)
    assert refused(data).status in (ImageStatus.CORRUPT, ImageStatus.TRUNCATED)
