"""HEIC, AVIF and JPEG XL: what their boxes say, the right way up exactly once, and refused before they cost much."""

import io
import struct
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from PIL import Image, features

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.containers.iso_media import IsoMedia
from preprocess_ensemble.imaging.decode import DecodeError, DecodeLimits, decode
from preprocess_ensemble.imaging.formats import limit_decoder_threads, open_image
from preprocess_ensemble.imaging.jpeg_xl import JxlFile
from tests.fixtures.images import image_files, phone_files
from tests.fixtures.images.embedded_files import box
from tests.fixtures.images.good_files import reference, refused


def heif(items: Mapping[int, bytes], references: Sequence[tuple[bytes, int, tuple[int, ...]]] = ()) -> bytes:
    """A file of pictures of a megapixel, with references between them and without pixels."""
    entries = [box(b"infe", b"\2\0\0\0", struct.pack(">HH", number, 0), kind) for number, kind in items.items()]
    lists = [box(kind, struct.pack(f">HH{len(to)}H", item, len(to), *to)) for kind, item, to in references]
    owners = b"".join(struct.pack(">HBB", number, 1, 0x81) for number in items)
    return box(b"ftyp", b"heic", bytes(4)) + box(
        b"meta",
        bytes(4),
        box(b"pitm", bytes(4), struct.pack(">H", 1)),
        box(b"iinf", bytes(4), struct.pack(">H", len(items)), *entries),
        box(b"iref", bytes(4), *lists),
        box(b"iprp", box(b"ipco", box(b"ispe", bytes(4), struct.pack(">II", 1000, 1000))),
            box(b"ipma", bytes(4), struct.pack(">I", len(items)), owners)),
    )  # fmt: skip


def decoded_megapixels(data: bytes, at_most: int = 50) -> float:
    return IsoMedia(data).decoded_pixels(at_most * 10**6) / 1e6


def test_a_picture_costs_what_its_parts_cost_as_often_as_they_are_used() -> None:
    items = {1: b"grid", 2: b"hvc1", 3: b"hvc1", 4: b"hvc1", 5: b"hvc1"}
    assert decoded_megapixels(heif({1: b"hvc1"})) == 1
    assert decoded_megapixels(heif(items, [(b"dimg", 1, (2, 3, 4))])) == 3
    assert decoded_megapixels(heif(items, [(b"dimg", 1, (2, 2, 2, 2, 3))])) == 5
    assert decoded_megapixels(heif(items, [(b"dimg", 1, (2, 3)), (b"dimg", 1, (4,))])) == 3
    transparent = [(b"dimg", 1, (2,)), (b"auxl", 3, (1,)), (b"thmb", 4, (1,))]
    assert decoded_megapixels(heif(items, transparent)) == 2, "its transparency is decoded, its thumbnail is not"
    assert decoded_megapixels(heif(items, [(b"dimg", 1, (2,) * 1000)])) > 50
    items = dict.fromkeys(range(1, 8), b"iovl") | {8: b"hvc1"}
    chain = [(b"dimg", number, (number + 1,) * 10) for number in range(1, 8)]
    assert decoded_megapixels(heif(items, chain), 10**9) == 10**7, "parts of parts multiply"
    long_chain = [(b"dimg", number, (number + 1,)) for number in range(1, 12)]
    circle, itself = [(b"dimg", 1, (2,)), (b"dimg", 2, (1,))], [(b"dimg", 1, (1,))]
    for references in (long_chain, circle, itself):
        assert decoded_megapixels(heif(dict.fromkeys(range(1, 13), b"iovl"), references)) > 50, "nested too deep"


def test_references_have_a_limit() -> None:
    # The property of one item makes two references.
    lists = [[(b"dimg", 1, (2,) * count) for count in (50_000, rest)] for rest in (49_998, 49_999)]
    most, more = (heif({1: b"grid"}, two) for two in lists)
    assert len(IsoMedia(most).references) == 2
    with pytest.raises(DecodeError) as caught:
        IsoMedia(more)
    message = "The image file has more than 100,000 references, which is the limit."
    assert (caught.value.status, caught.value.message) == (ImageStatus.LIMIT, message)


def test_lists_that_claim_more_than_there_is_end_with_their_box() -> None:
    cut = box(b"iref", bytes(4), box(b"dimg", struct.pack(">HHH", 1, 60_000, 2)))
    data = box(b"ftyp", b"heic", bytes(4)) + box(b"meta", bytes(4), cut)
    assert [one.to for one in IsoMedia(data).references] == [(2,)]


@pytest.mark.parametrize("wide", [False, True], ids=["16 bits", "32 bits"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_the_bytes_of_all_items_are_added_up(wide: bool, pieces: int) -> None:
    number = ">I" if wide else ">H"
    one = struct.pack(">II", 20, 30)
    method_and_source = bytes(4 if wide else 2)
    item = struct.pack(number, 1) + method_and_source + struct.pack(">IH", 100, pieces) + one * pieces
    header = bytes([2 if wide else 0, 0, 0, 0]) + b"\x44\x40" + struct.pack(number, 2)
    located = box(b"meta", bytes(4), box(b"iloc", header, item * 2))
    media = IsoMedia(located + bytes(1000))
    assert (media.stored_bytes, media.stored_end) == (2 * pieces * 30, 150)
    media = IsoMedia(located)
    there = min(30, max(0, len(located) - 120))
    assert (media.stored_bytes, media.stored_end) == (2 * pieces * there, 150)


LETTER = Image.new("RGB", (64, 48), "white")  # differs in all eight orientations
LETTER.paste("navy", (8, 8, 20, 40))
LETTER.paste("navy", (20, 8, 56, 16))


def assert_alike(image: Image.Image, expected: Image.Image) -> None:
    """Assert that two pictures are the same but for what a lossy format changes."""
    assert image.size == expected.size
    difference = np.abs(np.asarray(image.convert("L"), np.int16) - np.asarray(expected.convert("L"), np.int16))
    assert difference.mean() < 8


WRITERS: dict[str, Callable[[int], bytes]] = {
    "HEIC of tiles, with a thumbnail": lambda orientation: phone_files.heic(
        LETTER.resize((128, 96)), exif=phone_files.exif(orientation), tile_size=64, thumbnails=[64]
    ),
    "HEIC, by irot and imir": lambda orientation: phone_files.heic(LETTER, exif=phone_files.exif(orientation)),
    "JPEG XL, by EXIF": lambda orientation: phone_files.jxl(LETTER, exif=phone_files.exif(orientation)),
    "JPEG XL of a JPEG": lambda orientation: phone_files.jxl_of(
        image_files.encoded(LETTER, "JPEG", exif=phone_files.exif(orientation))
    ),
}
if features.check("avif"):
    WRITERS["AVIF, by irot and imir"] = lambda orientation: image_files.encoded(
        LETTER, "AVIF", speed=10, exif=phone_files.exif(orientation)
    )


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("writer", WRITERS)
def test_a_picture_is_turned_exactly_once(writer: str, orientation: int) -> None:
    decoded = decode(WRITERS[writer](orientation))
    expected = reference(image_files.encoded(LETTER, "PNG", exif=phone_files.exif(orientation)))
    assert_alike(decoded.resize(expected.size) if decoded.width > 64 else decoded, expected)


@pytest.mark.parametrize("orientation", range(2, 9))
def test_the_codestream_of_a_jpeg_xl_comes_before_its_exif(orientation: int) -> None:
    turned = decode(phone_files.turned_jxl(orientation))
    assert turned.size == ((8, 16) if orientation > 4 else (16, 8))
    both = phone_files.turned_jxl(orientation, phone_files.exif(orientation).tobytes().removeprefix(b"Exif\0\0"))
    assert decode(both).tobytes() == turned.tobytes()
    with open_image(both) as image:
        assert image.getexif()[0x0110] == "iPhone 15"


def test_exif_alone_does_not_turn_a_heic() -> None:
    """HEIF (23008-12, annex A.2.1): readers ignore the orientation in EXIF."""
    plain = phone_files.heic(LETTER, exif=phone_files.exif(1))
    entry = struct.pack(">HHIH", image_files.ORIENTATION, 3, 1, 1)
    assert entry in plain
    assert_alike(decode(plain.replace(entry, entry[:-1] + b"\x06")), LETTER)


def with_size(data: bytes, width: int, height: int) -> bytes:
    start = data.index(b"ispe") + 8
    return data[:start] + struct.pack(">II", width, height) + data[start + 8 :]


def with_shared_bytes() -> bytes:
    """A HEIC of a megabyte, of five pictures that all consist of all bytes."""
    data = bytearray(phone_files.heic(append_images=[image_files.picture(seed=seed) for seed in range(4)]))
    data += box(b"free", bytes(2**20))
    start = data.index(b"mdat") + 4
    locations = data.index(b"iloc") + 4
    assert struct.unpack_from(">H", data, locations + 6) == (5,)
    for number in range(5):
        # Version 0: item, source, base of 4 bytes, one piece with offset and length of 4 bytes.
        struct.pack_into(">IHII", data, locations + 12 + 18 * number, start, 1, 0, len(data) - start)
    return bytes(data)


def codestream(*fields: tuple[int, int]) -> bytes:
    """The header of a JPEG XL of these fields, (value, bits)."""
    bits = position = 0
    for value, count in fields:
        bits |= value << position
        position += count
    return b"\xff\x0a" + bits.to_bytes(16, "little")


def jxl_header(width: int, height: int) -> bytes:
    return codestream((0, 1), (3, 2), (height - 1, 30), (0, 3), (3, 2), (width - 1, 30), (1, 1))


SQUARE = ((1, 1), (1, 5), (1, 3))  # small, 16 pixels high, and as wide by ratio


def jxl_of_channels(channels: int) -> bytes:
    """A JPEG XL whose header names this number of channels besides the colours, two or more."""
    return codestream(*SQUARE, (0, 1), (0, 1), (0, 1), (0, 2), (1, 1), (2, 2), (channels - 2, 4))


def jxl_of_scans() -> bytes:
    progressive = image_files.jpeg(progressive=True)
    comment = b"\xff\xda" * 1001  # what looks like a scan counts as one
    return phone_files.jxl_of(progressive[:2] + b"\xff\xfe\x07\xd4" + comment + progressive[2:])


HEIC = phone_files.heic()  # 64 x 48 pixels, cropped from the 64 x 64 that HEVC needs
TILES = phone_files.heic(image_files.picture(size=(150, 100)), tile_size=64)  # six tiles of 64 x 64 are 24,576 pixels
SEQUENCE = box(b"moov", bytes(200)) + box(b"mdat", bytes(200))
REFUSED: dict[str, tuple[bytes, ImageStatus, str]] = {
    "cropped from too much": (
        with_size(HEIC, 30_000, 30_000), ImageStatus.TOO_LARGE,
        "The HEIC file makes its picture of 900.0 megapixels in all; the limit is 384: save a smaller copy and use it.",
    ),
    "more pixels than it claims": (with_size(HEIC, 32, 32), ImageStatus.CORRUPT, "corrupt"),
    "bytes that count each time they are used": (with_shared_bytes(), ImageStatus.LIMIT, "The HEIC file has more than"),
    "a lost tile": (TILES[:-1], ImageStatus.TRUNCATED, "truncated"),
    "a codec that is not installed": (
        HEIC.replace(b"hvc1", b"unci"), ImageStatus.UNSUPPORTED_FORMAT, "This variant of HEIC cannot be read here.",
    ),
    "boxes of a HEIC": (HEIC + b"\0\0\0\x08free" * 10_000, ImageStatus.LIMIT, "more than 10,000 boxes"),
    **{
        f"a sequence, {brand!r}": (box(b"ftyp", brand, bytes(4)) + SEQUENCE, ImageStatus.UNSUPPORTED_FORMAT, "sequence")
        for brand in (b"hevc", b"msf1", b"avis")
    },
    "a large JPEG XL": (
        jxl_header(30_000, 20_000), ImageStatus.TOO_LARGE,
        "The image has 600.0 megapixels (30000 x 20000); the limit is 128: save a smaller copy and use it.",
    ),
    "a JPEG XL that ends": (jxl_header(300, 200), ImageStatus.CORRUPT, "corrupt"),
    # Its decoder returns the last frame, and decodes them all.
    "an animation": (phone_files.JXL_ANIMATION, ImageStatus.UNSUPPORTED_FORMAT, "variant"),
    "many channels": (jxl_of_channels(5), ImageStatus.UNSUPPORTED_FORMAT, "variant"),
    "boxes of a JPEG XL": (
        phone_files.jxl(use_container=True) + b"\0\0\0\x08free" * 1000, ImageStatus.LIMIT,
        "The JPEG XL file has more than 1,000 boxes, which is the limit.",
    ),
    "scans": (jxl_of_scans(), ImageStatus.LIMIT, "The JPEG XL file holds a JPEG of 1,0"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "status", "words"), REFUSED.values(), ids=REFUSED)
def test_a_file_is_refused_before_it_costs_much(data: bytes, status: ImageStatus, words: str) -> None:
    error = refused(data)
    assert error.status is status
    assert words in error.message


def test_a_tile_that_a_heic_uses_again_and_again_counts_each_time_and_one_may_be_missing_if_allowed() -> None:
    assert decode(TILES, DecodeLimits(max_pixels=15_000)).size == (150, 100)
    error = refused(TILES, max_pixels=8_191)
    assert (error.status, "in all" in error.message) == (ImageStatus.TOO_LARGE, True)
    assert decode(TILES[:-1], DecodeLimits(allow_truncated=True)).size == (150, 100)


def test_a_jpeg_xl_of_four_channels_is_opened() -> None:
    assert JxlFile(io.BytesIO(jxl_of_channels(4))).size == (16, 16)


@pytest.mark.parametrize(
    "preview", [((1, 1), (2, 2), (15, 5), (1, 3)), ((0, 1), (0, 2), (15, 6), (0, 3), (0, 2), (15, 6))]
)
@pytest.mark.parametrize(
    ("depth", "bits"), [(((1, 1), (1, 2), (0, 4)), 16), (((0, 1), (2, 2)), 12)], ids=["floats", "integers"]
)
def test_the_depth_of_a_jpeg_xl_is_found_behind_all_else(
    preview: tuple[tuple[int, int], ...], depth: tuple[tuple[int, int], ...], bits: int
) -> None:
    orientation, intrinsic_size = ((1, 1), (5, 3)), ((1, 1), *SQUARE)
    header = codestream(
        *SQUARE, (0, 1), *orientation, *intrinsic_size, (1, 1), *preview, (0, 1), *depth, (1, 1), (1, 2)
    )
    image = JxlFile(io.BytesIO(header))
    assert (image.info["bit_depth"], image.mode) == (bits, "RGBA")


def test_decoders_get_one_thread_each() -> None:
    import pillow_heif
    from PIL import AvifImagePlugin

    before = AvifImagePlugin.DEFAULT_MAX_THREADS, pillow_heif.options.DECODE_THREADS
    try:
        limit_decoder_threads()
        assert (AvifImagePlugin.DEFAULT_MAX_THREADS, pillow_heif.options.DECODE_THREADS) == (1, 1)
    finally:
        AvifImagePlugin.DEFAULT_MAX_THREADS, pillow_heif.options.DECODE_THREADS = before
