"""Parts and frames of a file are counted from its bytes, before Pillow reads it: each part may cost far more."""

import io
import struct
from collections.abc import Callable, Sequence

import pytest
from PIL import Image, PngImagePlugin, TiffImagePlugin

from preprocess_ensemble.imaging.decode import DecodeError, DecodeLimits, decode
from preprocess_ensemble.imaging.inspection import check_parts, count_frames, structure_end
from preprocess_ensemble.imaging.pillow_patches import TagReader, patch_pillow_tags
from preprocess_ensemble.imaging.quiet import quiet_libraries
from tests.fixtures.images import image_files
from tests.fixtures.images.good_files import animation

STRIPS, TILES, OTHER = TiffImagePlugin.STRIPOFFSETS, TiffImagePlugin.TILEOFFSETS, TiffImagePlugin.COLORMAP


def refusal(check: Callable[..., object], *arguments: object) -> str:
    """Return the status and the message of the refusal; empty if the file is let through."""
    try:
        check(*arguments)
    except DecodeError as error:
        return f"{error.status.name}: {error.message}"
    return ""


def too_many(name: str, data: bytes) -> str:
    return refusal(check_parts, name, data, 1000)


def _jpeg(segments: int, payload: bytes = b"Exif\0\0") -> bytes:
    data = image_files.jpeg()
    segment = b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload
    return data[:2] + segment * segments + data[2:]


def _gif(blocks: int) -> bytes:
    data = image_files.encoded(Image.new("L", (4, 4)), "GIF")
    start = 13 + (3 << ((data[10] & 7) + 1))
    return data[:start] + b"\x21\xfe" + b"\x01a" * blocks + b"\0" + data[start:]


def _tiff(tiles: int) -> bytes:
    """One pixel per tile, and the same byte for all tiles."""
    tags = [tag for tag in image_files.picture_tags((4, 4), [8], 1, 1) if tag[0] < 263]
    return image_files.tiff([*tags, (322, 3, [1]), (323, 3, [1]), (TILES, 4, [8] * tiles)], b"\0")


def _bmp(empty_runs: int) -> bytes:
    """Runs that hold no pixels, before those that do."""
    header = struct.pack("<IiiHHIIiiII", 40, 4, 4, 1, 8, 1, 0, 0, 0, 256, 0)
    start = b"BM" + struct.pack("<IHHI", 0, 0, 0, 54 + 1024) + header + bytes(1024)
    return start + b"\0\x02\0\0" * empty_runs + b"\x04\x01\0\0" * 4


def _ppm(kind: bytes) -> Callable[[int], bytes]:
    values, most = b"1 " * (11 if kind == b"P3" else 3), b"" if kind == b"P1" else b" 255"
    return lambda comments: kind + b" 2 2" + most + b"\n" + values + b"\n" + b"#\n" * comments + b"1\n"


READS = "The image's header has more than 10,000 parts, which is the limit."
TEXT = image_files.png_chunk(b"tEXt", b"a\0" + b"b" * 300)
TOO_MANY: dict[str, tuple[Callable[[int], bytes], int, int, str]] = {
    "jpeg": (_jpeg, 1000, 4000, READS),
    "gif": (_gif, 1000, 10_000, READS),
    "png": (  # its header and its end are two chunks
        lambda count: image_files.png(1, 1, 8, 0, b"\0\0", *[TEXT] * count), 998, 999,
        "The PNG file has more than 1,000 chunks besides its pixels, which is the limit.",
    ),
    **{
        f"ppm {kind!r}": (_ppm(kind), 1000, 1001, "The PPM file has more than 1,000 comments, which is the limit.")
        for kind in (b"P1", b"P2", b"P3")
    },
    "tiff": (_tiff, 16, 100_001, "The TIFF file has more than 100,000 strips or tiles, which is the limit."),
    "bmp": (
        _bmp, 0, 17_000, "The BMP file has 69,094 bytes; the limit is 65,584 for 4 x 4 pixels with run-length coding.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "good", "bad", "parts"), TOO_MANY.values(), ids=TOO_MANY)
def test_a_file_of_too_many_parts_is_refused(make: Callable[[int], bytes], good: int, bad: int, parts: str) -> None:
    assert refusal(decode, make(good)) == ""
    assert refusal(decode, make(bad)) == f"LIMIT: {parts}"


def test_pillow_is_not_asked_for_the_orientation_in_too_much_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow joins the segments of EXIF in quadratic time: 60 MB of them took over a minute."""
    joined: list[bytes] = []
    monkeypatch.setattr(Image.Exif, "load", lambda _, data: joined.append(data))
    limits = DecodeLimits(max_metadata_bytes=2000)
    said = refusal(decode, _jpeg(60, b"Exif\0\0" + bytes(20_000)), limits)
    assert said == "LIMIT: The image's header has more than 1,052,576 bytes, which is the limit."
    assert joined == []


def test_a_photo_with_ordinary_metadata_is_read() -> None:
    exif = image_files.oriented(6)
    exif[0x010E] = "words " * 5000
    text = PngImagePlugin.PngInfo()
    for number in range(50):
        text.add_text(f"key {number}", "value")
    assert decode(image_files.jpeg(exif=exif.tobytes(), icc_profile=bytes(500_000))).size == (48, 64)
    assert decode(image_files.file("PNG", pnginfo=text, exif=exif)).size == (48, 64)


def test_chunks_of_pixels_have_another_limit() -> None:
    one, *others = (image_files.png_chunk(kind, b"") for kind in (b"IDAT", b"fcTL", b"fdAT", b"IDAT"))
    data = b"\x89PNG\r\n\x1a\n" + b"".join([one, *others]) * 25_000
    assert too_many("PNG", data) == ""
    expected = "LIMIT: The PNG file has more than 100,000 chunks of pixels, which is the limit."
    assert too_many("PNG", data + one) == expected


class TiffLayout:
    """Writes TIFF files, classic or BigTIFF, in one byte order."""

    def __init__(self, order: str, *, big: bool) -> None:
        self._start = (b"II" if order == "<" else b"MM") + struct.pack(order + "H", 43 if big else 42)
        if big:
            self._start += struct.pack(order + "HH", 8, 0)
        self._entries = struct.Struct(order + ("Q" if big else "H"))
        self._entry = struct.Struct(order + ("HHQQ" if big else "HHII"))
        self.offset = struct.Struct(order + ("Q" if big else "I"))
        self.first = len(self._start) + self.offset.size  # offset of the first directory
        self.most_entries = 2 ** (8 * self._entries.size) - 1

    def header(self, first: int) -> bytes:
        return self._start + self.offset.pack(first)

    def directory(self, *entries: tuple[int, int], following: int = 0, count: int | None = None) -> bytes:
        """``entries`` are tags with their number of values; ``count`` is what the directory says of their number."""
        body = b"".join(self._entry.pack(tag, 4, values, 0) for tag, values in entries)
        return self._entries.pack(len(entries) if count is None else count) + body + self.offset.pack(following)

    def entries_behind(self, *entries: tuple[int, int]) -> bytes:
        """Return bytes that a reader takes for more entries if it does not stop at the end of a directory."""
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
TAGS = {
    "most": ([(STRIPS, 100_000), (TILES, 100_000)], False),
    "strips": ([(STRIPS, 100_001)], True),
    "tiles": ([(OTHER, 5), (TILES, 100_001), (OTHER, 5)], True),
    "both": ([(STRIPS, 100_001), (TILES, 1)], True),
    "another tag": ([(OTHER, 100_001)], False),
    "none": ([], False),
    "the last tag that is read": ([(OTHER, 1)] * 9_999 + [(STRIPS, 100_001)], True),
    # The number of tags has a limit of its own, which refuses such a file.
    "behind the last tag that is read": ([(OTHER, 1)] * 10_000 + [(STRIPS, 100_001)], False),
}


@every_layout
@pytest.mark.parametrize("name", TAGS)
def test_strips_and_tiles_of_a_tiff_are_counted(layout: TiffLayout, name: str) -> None:
    entries, refused = TAGS[name]
    directory = layout.directory(*entries) + layout.entries_behind(*[(TILES, 100_001)] * 20)
    for gap in (0, 43 - layout.first):  # 43 is also the number of BigTIFF
        data = layout.header(layout.first + gap) + bytes(gap) + directory
        assert too_many("TIFF", data) == (TIFF_REFUSAL if refused else "")


@every_layout
def test_a_tiff_that_is_cut_counts_with_what_is_there(layout: TiffLayout) -> None:
    data = layout.header(layout.first) + layout.directory((OTHER, 1), (STRIPS, 100_001), (OTHER, 1))
    needed = len(layout.header(0)) + len(layout.directory((OTHER, 1), (STRIPS, 1))) - layout.offset.size
    for length in range(4, len(data)):
        assert too_many("TIFF", data[:length]) == (TIFF_REFUSAL if length >= needed else ""), length


@every_layout
def test_large_numbers_in_a_tiff_are_not_negative(layout: TiffLayout) -> None:
    largest = 2 ** (8 * layout.offset.size) - 1
    assert too_many("TIFF", layout.header(layout.first) + layout.directory((STRIPS, largest))) == TIFF_REFUSAL
    for count in (2**15, layout.most_entries):
        data = layout.header(layout.first) + layout.directory((STRIPS, 100_001), count=count)
        assert too_many("TIFF", data) == TIFF_REFUSAL
    directory = layout.directory((STRIPS, 100_001))
    far = largest + 1 - len(directory)  # as a negative number, it would lead to the directory at the end
    assert too_many("TIFF", layout.header(far) + directory) == ""
    assert frames(layout.header(far) + layout.directory((STRIPS, 1), following=layout.first)) == 1


def frames(data: bytes, at_most: int = 9, *, kind: str = "TIFF") -> int:
    with Image.open(io.BytesIO(animation(kind, 1))) as opened:
        return count_frames(kind, opened, data, at_most)


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
    for last in (100_000, 2 ** (8 * layout.offset.size) - 1):
        assert frames(layout.chain(3, last=last)) == 4
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
    assert [frames(data, most, kind="GIF") for most in (9, 4, 2)] == [4, 4, 3], "one more than allowed"
    assert frames(data + gif_image(), kind="GIF") == 4, "nothing counts behind the end"


def test_a_gif_that_is_cut_has_the_images_whose_start_is_there() -> None:
    blocks = [CONTROL, gif_image(), CONTROL, gif_image(0x80), CONTROL, gif_image()]
    data = gif(*blocks, flags=0x80)
    starts = [len(gif(*blocks[:count], flags=0x80, end=b"")) for count in (1, 3, 5)]
    for length in range(6, len(data)):
        assert frames(data[:length], kind="GIF") == max(1, sum(start < length for start in starts)), length
    assert frames(gif(), kind="GIF") == 1


FTYP = struct.pack(">I4s", 24, b"ftyp") + bytes(16)
BOXES = {
    "an empty box": (FTYP + struct.pack(">I4s", 8, b"free") + struct.pack(">I4s", 308, b"mdat") + bytes(300), 340),
    "64 bits at the very end": (FTYP + struct.pack(">I4sQ", 1, b"mdat", 2**32 + 7), 24 + 2**32 + 7),
    "all of 64 bits": (FTYP + struct.pack(">I4sQ", 1, b"mdat", 2**60 + 7), 24 + 2**60 + 7),
    "64 bits that are cut": (FTYP + struct.pack(">I4sQ", 1, b"mdat", 2**32 + 7)[:-1], 24),
    "64 bits less than a header": (FTYP + struct.pack(">I4sQ", 1, b"mdat", 7) + bytes(30), 24),
    "64 bits as a header": (FTYP + struct.pack(">I4sQI4sQ", 1, b"mdat", 8, 9, b"mdat", 0), 24 + 8),
    "less than a header": (FTYP + struct.pack(">I4sQ", 2, b"mdat", 400), 24),
    "up to the end": (FTYP + struct.pack(">I4s", 0, b"mdat") + bytes(50), 24),
    "too short to be looked at": (struct.pack(">I4s", 15, b"ftyp") + bytes(7), 0),
    "just long enough": (struct.pack(">I4s", 16, b"ftyp") + bytes(8), 16),
}


@pytest.mark.parametrize(("data", "end"), BOXES.values(), ids=BOXES)
def test_the_end_of_iso_media_follows_the_sizes_of_its_boxes(data: bytes, end: int) -> None:
    assert structure_end("AVIF", data) == end


@pytest.mark.parametrize(
    ("tags", "end"),
    [({}, 0), ({STRIPS: [5], 279: [7]}, 12), ({TILES: [50, 5], 325: [3, 60]}, 65),
     ({STRIPS: [9, 1], 279: [1, 2], TILES: [3], 325: [4]}, 10),
     ({STRIPS: [3], 279: [4], TILES: [9, 1], 325: [1, 2]}, 10),
     ({STRIPS: [9, 90], 279: [1]}, 10), ({STRIPS: [9], 325: [1]}, 0)],
)  # fmt: skip
def test_the_end_of_a_tiff_is_that_of_its_last_part(tags: dict[int, list[int]], end: int) -> None:
    assert structure_end("TIFF", image_files.tiff([(tag, image_files.LONG, tags[tag]) for tag in sorted(tags)])) == end


def test_tags_that_all_name_the_same_bytes_are_read_twice_at_most() -> None:
    source = io.BytesIO(b"0123456789")
    source.seek(4)
    reader = TagReader(source)
    assert (reader.tell(), reader.read(2), reader.read()) == (4, b"45", b"6789")
    for _ in range(7):
        reader.seek(0)
        reader.read(2)
    reader.seek(0)
    with pytest.raises(OSError, match=r"^The tags claim more bytes than the file has\.$"):
        reader.read(1)


@pytest.mark.parametrize("version", ["12.3.0", "13.0.0"])
def test_only_an_old_pillow_needs_bounded_tags(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[object, object]] = []
    monkeypatch.setattr("PIL.__version__", version)
    monkeypatch.setattr(TiffImagePlugin.ImageFileDirectory_v2, "load", lambda *loaded: read.append(loaded))
    patch_pillow_tags()
    directory = TiffImagePlugin.ImageFileDirectory_v2()
    directory.load(io.BytesIO(b""))
    assert read[0][0] is directory
    assert isinstance(read[0][1], TagReader) == (version == "12.3.0")


def test_memory_for_tags_is_bounded_by_the_file() -> None:
    """The limit holds with any Pillow: 500 tags of 100 KB each, in a file of 100 KB."""
    size, count = 100_000, 500
    exif = b"II*\0\x08\0\0\0" + struct.pack("<H", count)
    exif += b"".join(struct.pack("<HHII", 1000 + number, 1, size - 100, 8) for number in range(count))
    directory = TiffImagePlugin.ImageFileDirectory_v2(exif[:8])
    source = io.BytesIO(exif.ljust(size, b"\0"))
    source.seek(8)
    with quiet_libraries():
        directory.load(source)
    assert sum(len(value) for value in directory._tagdata.values()) <= 2 * size
