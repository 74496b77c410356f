"""Parts and frames are counted from the bytes of a file; here the files are put together byte by byte."""

from __future__ import annotations

import io
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from PIL import GifImagePlugin, TiffImagePlugin

from preprocess_ensemble.imaging.limits import DecodeError
from preprocess_ensemble.imaging.structure_limits import (
    TagReader,
    check_parts,
    check_reads,
    count_frames,
    structure_end,
)
from tests.fixtures.images import image_files
from tests.fixtures.images.good_files import animation

if TYPE_CHECKING:
    from collections.abc import Sequence

STRIPS, TILES, OTHER = TiffImagePlugin.STRIPOFFSETS, TiffImagePlugin.TILEOFFSETS, TiffImagePlugin.COLORMAP


def refusal(name: str, data: bytes) -> str:
    """Return the status and the message of the refusal; empty if the file is let through."""
    try:
        check_parts(name, data, 1000)
    except DecodeError as error:
        return f"{error.status.name}: {error.message}"
    return ""


def png(*chunks: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


TEXT = image_files.png_chunk(b"tEXt", b"a\0" + b"b" * 300)
PNG_REFUSAL = "LIMIT: The PNG file has more than 1,000 chunks besides its pixels, which is the limit."


def test_chunks_of_a_png_are_counted_but_those_of_pixels() -> None:
    pixels = [image_files.png_chunk(kind, bytes(20)) for kind in (b"IDAT", b"fcTL", b"fdAT")] * 1000
    assert refusal("PNG", png(*pixels, *[TEXT] * 1000)) == ""
    assert refusal("PNG", png(*pixels, *[TEXT] * 1001)) == PNG_REFUSAL
    assert refusal("PNG", png(*[TEXT] * 1000, *pixels)) == ""


def test_empty_chunks_of_pixels_have_a_limit_too() -> None:
    pixels = [image_files.png_chunk(kind, b"") for kind in (b"IDAT", b"fdAT")] * 50_000
    assert refusal("PNG", png(*pixels)) == ""
    expected = "LIMIT: The PNG file has more than 100,000 chunks of pixels, which is the limit."
    assert refusal("PNG", png(*pixels, *pixels[:1])) == expected


def test_a_last_chunk_counts_once_its_type_is_there() -> None:
    data = png(*[TEXT] * 1000)
    assert refusal("PNG", data + TEXT[:7]) == ""
    assert refusal("PNG", data + TEXT[:8]) == PNG_REFUSAL


def test_comments_count_in_a_plain_ppm_only() -> None:
    message = "LIMIT: The PPM file has more than 1,000 comments, which is the limit."
    for kind in (b"P1", b"P2", b"P3"):
        assert refusal("PPM", kind + b"\n" + b"#\n" * 1000) == ""
        assert refusal("PPM", kind + b"\n" + b"#\n" * 1001) == message
    assert refusal("PPM", b"P6\n" + b"#\n" * 1001) == ""
    assert refusal("BMP", b"P2\n" + b"#\n" * 1001) == ""


class TiffLayout:
    """Writes TIFF files, classic or BigTIFF, in one byte order."""

    def __init__(self, order: str, *, big: bool) -> None:
        self._start = (b"II" if order == "<" else b"MM") + struct.pack(order + "H", 43 if big else 42)
        if big:
            self._start += struct.pack(order + "HH", 8, 0)
        self._entries = struct.Struct(order + ("Q" if big else "H"))
        self._entry = struct.Struct(order + ("HHQQ" if big else "HHII"))
        self.offset = struct.Struct(order + ("Q" if big else "I"))
        self.first = len(self._start) + self.offset.size
        """Where the first directory lies."""
        self.most_entries = 2 ** (8 * self._entries.size) - 1

    def header(self, first: int) -> bytes:
        return self._start + self.offset.pack(first)

    def directory(self, *entries: tuple[int, int], following: int = 0, count: int | None = None) -> bytes:
        """``entries`` are tags with their number of values; ``count`` is what the directory says of their number."""
        body = b"".join(self._entry.pack(tag, 4, values, 0) for tag, values in entries)
        return self._entries.pack(len(entries) if count is None else count) + body + self.offset.pack(following)

    def entries_behind(self, *entries: tuple[int, int]) -> bytes:
        """What a reader that does not stop at the end of a directory would take for more entries."""
        padding = bytes(self._entry.size - self.offset.size)
        return padding + b"".join(self._entry.pack(tag, 4, values, 0) for tag, values in entries)

    def chain(self, directories: int, *, last: int = 0) -> bytes:
        """Directories of one to three entries, with bytes between them; the last one leads to ``last``."""
        data = b""
        for number in range(directories):
            entries = [(OTHER, 1)] * (1 + number % 3)
            end = self.first + len(data) + len(self.directory(*entries)) + 5
            data += self.directory(*entries, following=end if number + 1 < directories else last) + bytes(5)
        return self.header(self.first) + data


LAYOUTS = {
    f"{'BigTIFF' if big else 'TIFF'} {order}": TiffLayout(order, big=big) for order in "<>" for big in (False, True)
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
TIFF_REFUSAL = "LIMIT: The TIFF file has more than 100,000 strips or tiles, which is the limit."


@every_layout
@pytest.mark.parametrize(
    ("entries", "refused"),
    [
        ([(STRIPS, 100_000), (TILES, 100_000)], False),
        ([(STRIPS, 100_001)], True),
        ([(OTHER, 5), (TILES, 100_001), (OTHER, 5)], True),
        ([(STRIPS, 100_001), (TILES, 1)], True),
        ([(OTHER, 100_001)], False),
        ([], False),
        ([(OTHER, 1)] * 9_999 + [(STRIPS, 100_001)], True),
        ([(OTHER, 1)] * 10_000 + [(STRIPS, 100_001)], False),  # so many tags are refused later, as parts
    ],
    ids=["most", "strips", "tiles", "both", "another tag", "none", "the last tag that is read", "behind the last tag"],
)
def test_strips_and_tiles_of_a_tiff_are_counted(
    layout: TiffLayout, entries: list[tuple[int, int]], refused: bool
) -> None:
    directory = layout.directory(*entries)
    behind = layout.entries_behind(*[(TILES, 100_001)] * 20)
    for gap in (0, 43 - layout.first):  # 43 is also the number of BigTIFF
        data = layout.header(layout.first + gap) + bytes(gap) + directory + behind
        assert refusal("TIFF", data) == (TIFF_REFUSAL if refused else "")


@every_layout
def test_a_tiff_that_is_cut_counts_with_what_is_there(layout: TiffLayout) -> None:
    data = layout.header(layout.first) + layout.directory((OTHER, 1), (STRIPS, 100_001), (OTHER, 1))
    needed = len(layout.header(0)) + len(layout.directory((OTHER, 1), (STRIPS, 1))) - layout.offset.size
    for length in range(4, len(data)):
        assert refusal("TIFF", data[:length]) == (TIFF_REFUSAL if length >= needed else ""), length


@every_layout
def test_large_numbers_in_a_tiff_are_not_negative(layout: TiffLayout) -> None:
    largest = 2 ** (8 * layout.offset.size) - 1
    assert refusal("TIFF", layout.header(layout.first) + layout.directory((STRIPS, largest))) == TIFF_REFUSAL
    for count in (2**15, layout.most_entries):
        data = layout.header(layout.first) + layout.directory((STRIPS, 100_001), count=count)
        assert refusal("TIFF", data) == TIFF_REFUSAL
    directory = layout.directory((STRIPS, 100_001))
    far = largest + 1 - len(directory)  # as a negative number, it would lead to the directory at the end
    assert refusal("TIFF", layout.header(far) + directory) == ""
    assert frames(layout.header(far) + layout.directory((STRIPS, 1), following=layout.first)) == 1


def test_reads_and_bytes_of_a_header_have_a_limit() -> None:
    check_reads(10_000, 2000, 2000)
    with pytest.raises(DecodeError) as caught:
        check_reads(10_001, 0, 2000)
    assert caught.value.message == "The image's header has more than 10,000 parts, which is the limit."
    with pytest.raises(DecodeError) as caught:
        check_reads(0, 2001, 2000)
    assert caught.value.message == "The image's header has more than 2,000 bytes, which is the limit."


def frames(data: bytes, at_most: int = 9, *, kind: str = "TIFF") -> int:
    """Count the frames in ``data``, as if Pillow had opened it."""
    with io.BytesIO(animation(kind, 1)) as source:
        opened = TiffImagePlugin.TiffImageFile(source) if kind == "TIFF" else GifImagePlugin.GifImageFile(source)
        return count_frames(opened, data, at_most)


@every_layout
def test_directories_of_a_tiff_are_followed(layout: TiffLayout) -> None:
    for directories in range(1, 9):
        assert frames(layout.chain(directories)) == directories
        assert frames(layout.chain(directories), directories) == directories
        assert frames(layout.chain(directories), directories - 1) == directories
    assert frames(layout.chain(9), 3) == 4, "one more than allowed"
    assert frames(layout.chain(3, last=layout.first)) == 10, "a loop has no end"
    assert frames(layout.header(0)) == 1
    # The place where a directory should be counts, though nothing can be read there.
    assert frames(layout.chain(3, last=100_000)) == 4
    assert frames(layout.chain(3, last=2 ** (8 * layout.offset.size) - 1)) == 4
    for length in range(4, layout.first):
        assert frames(layout.chain(3)[:length]) == 1


def sub_blocks(*sizes: int) -> bytes:
    # Each byte would start an image, should it be read as a block.
    return b"".join(bytes([size]) + b"\x2c" * size for size in sizes) + b"\0"


def gif(*blocks: bytes, flags: int = 0, end: bytes = b"\x3b") -> bytes:
    table = bytes(3 * 2 ** ((flags & 7) + 1)) if flags & 0x80 else b""
    return b"GIF89a" + struct.pack("<HHBBB", 4, 4, flags, 0, 0) + table + b"".join(blocks) + end


def gif_image(flags: int = 0, sizes: Sequence[int] = (3,)) -> bytes:
    table = b"\x2c" * (3 * 2 ** ((flags & 7) + 1)) if flags & 0x80 else b""
    return b"\x2c" + struct.pack("<HHHHB", 0, 0, 4, 4, flags) + table + b"\x02" + sub_blocks(*sizes)


COMMENT = b"\x21\xfe" + sub_blocks(200, 55)
CONTROL = b"\x21\xf9" + sub_blocks(4)


@pytest.mark.parametrize("flags", [0x00, 0x07, 0x80, 0x83, 0x87, 0xF2])
def test_images_of_a_gif_are_counted(flags: int) -> None:
    blocks = [COMMENT, CONTROL, gif_image(flags), COMMENT, gif_image(0x80), gif_image(0x87, (255, 1)), gif_image(0x07)]
    data = gif(*blocks, flags=flags)
    assert frames(data, kind="GIF") == 4
    assert frames(data, 4, kind="GIF") == 4
    assert frames(data, 2, kind="GIF") == 3, "one more than allowed"
    assert frames(data + gif_image(), kind="GIF") == 4, "nothing counts behind the end"


def test_a_gif_that_is_cut_has_the_images_whose_start_is_there() -> None:
    blocks = [CONTROL, gif_image(), CONTROL, gif_image(0x80), CONTROL, gif_image()]
    data = gif(*blocks, flags=0x80)
    starts = [len(gif(*blocks[:count], flags=0x80, end=b"")) for count in (1, 3, 5)]
    for length in range(6, len(data)):
        assert frames(data[:length], kind="GIF") == max(1, sum(start < length for start in starts)), length
    assert frames(gif(), kind="GIF") == 1


def test_other_files_have_the_frames_that_pillow_says() -> None:
    several: Any = SimpleNamespace(n_frames=3)
    one: Any = SimpleNamespace()
    assert [count_frames(image, b"", 9) for image in (several, one)] == [3, 1]


def box(kind: bytes, payload: int) -> bytes:
    return struct.pack(">I4s", 8 + payload, kind) + bytes(payload)


@pytest.mark.parametrize(
    ("boxes", "end"),
    [
        ([box(b"ftyp", 16), box(b"free", 0), box(b"mdat", 300)], 24 + 8 + 308),
        ([box(b"ftyp", 16), struct.pack(">I4sQ", 1, b"mdat", 2**32 + 7)], 24 + 2**32 + 7),
        ([box(b"ftyp", 16), struct.pack(">I4sQ", 1, b"mdat", 2**60 + 7)], 24 + 2**60 + 7),
        ([box(b"ftyp", 16), struct.pack(">I4sQ", 1, b"mdat", 2**32 + 7)[:-1]], 24),
        ([box(b"ftyp", 16), struct.pack(">I4sQ", 1, b"mdat", 7), bytes(30)], 24),
        ([box(b"ftyp", 16), struct.pack(">I4sQ", 1, b"mdat", 8), struct.pack(">I4sQ", 9, b"mdat", 0)], 24 + 8),
        ([box(b"ftyp", 16), struct.pack(">I4sQ", 2, b"mdat", 400)], 24),
        ([box(b"ftyp", 16), struct.pack(">I4s", 0, b"mdat") + bytes(50)], 24),
        ([box(b"ftyp", 7)], 0),
        ([box(b"ftyp", 8)], 16),
    ],
    ids=[
        "an empty box",
        "64 bits at the very end",
        "all of 64 bits",
        "64 bits that are cut",
        "64 bits less than a header",
        "64 bits as a header",
        "less than a header",
        "up to the end",
        "too short to be looked at",
        "just long enough",
    ],
)
def test_the_end_of_iso_media_follows_the_sizes_of_its_boxes(boxes: Sequence[bytes], end: int) -> None:
    assert structure_end("AVIF", None, b"".join(boxes)) == end


class Tagged(TiffImagePlugin.TiffImageFile):
    """An opened TIFF of which only the tags are known."""

    def __init__(self, **tags: object) -> None:
        names = {"strips": STRIPS, "strip_bytes": 279, "tiles": TILES, "tile_bytes": 325}
        self.tag_v2: Any = {names[name]: value for name, value in tags.items()}
        self.fp = None


@pytest.mark.parametrize(
    ("tags", "end"),
    [
        ({}, 0),
        ({"strips": 5, "strip_bytes": 7}, 12),
        ({"tiles": (50, 5), "tile_bytes": (3, 60)}, 65),
        ({"strips": (9, 1), "strip_bytes": (1, 2), "tiles": (3,), "tile_bytes": (4,)}, 10),
        ({"strips": (3,), "strip_bytes": (4,), "tiles": (9, 1), "tile_bytes": (1, 2)}, 10),
        ({"strips": (9, 90), "strip_bytes": (1,)}, 10),
        ({"strips": (9,), "tile_bytes": (1,)}, 0),
        ({"strips": "far", "strip_bytes": (1,)}, 0),
        ({"strips": (9, 2.5), "strip_bytes": (1, 100)}, 10),
    ],
)
def test_the_end_of_a_tiff_is_that_of_its_last_part(tags: dict[str, object], end: int) -> None:
    assert structure_end("TIFF", Tagged(**tags), b"") == end


def test_a_reader_of_tags_begins_where_its_source_stands() -> None:
    source = io.BytesIO(b"0123456789")
    source.seek(4)
    reader = TagReader(source)
    assert reader.tell() == 4
    assert reader.read(2) == b"45"
    assert reader.read() == b"6789"
    for _ in range(7):
        reader.seek(0)
        reader.read(2)
    reader.seek(0)
    with pytest.raises(OSError, match=r"^The tags claim more bytes than the file has\.$"):
        reader.read(1)
