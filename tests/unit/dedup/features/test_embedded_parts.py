"""Parts of files beside their picture."""

import io
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from clip_client.dedup.features.hashes import pixel_hash
from clip_client.dedup.features.image_features import extract_features
from clip_client.dedup.formats.embedded_parts import EmbeddedParts, embedded_parts
from tests.fixtures.images import image_files, phone_files
from tests.fixtures.images.embedded_files import (
    MP4,
    OTHER,
    STILL,
    XMP_EXTENSION,
    box,
    iso_media,
    samsung_trailer,
    ultra_hdr,
    with_meta,
    with_pictures,
    with_segments,
    with_xmp,
)
from tests.fixtures.images.good_files import animation, two
from tests.unit.dedup.compare.comparisons import with_peak_bytes

PIXEL_FILM = with_xmp(b'<rdf:Description GCamera:MotionPhoto="1" GCamera:MicroVideoOffset="280"/>')
DEPTH_IN_XMP = XMP_EXTENSION + b"0" * 32 + bytes(8) + b'<rdf:Description GDepth:Data="' + b"A" * 900 + b'"/>'
UTC = (0x0A01, b"Image_UTC_Data", b"1700000000000")
JPEG = image_files.jpeg()
HEIC = phone_files.heic()
JXL = phone_files.jxl(exif=phone_files.exif())


def with_auxiliary(urn: bytes) -> bytes:
    """A HEIC whose second picture is auxiliary to the first, as depth maps are."""
    reference = box(b"iref", bytes(4), box(b"auxl", struct.pack(">HHH", 2, 1, 1)))

    def change(name: bytes, content: bytes) -> bytes:
        if name != b"iprp":
            return box(name, content)
        size = int.from_bytes(content[:4], "big")
        return box(name, box(b"ipco", content[8:size], box(b"auxC", bytes(4), urn + b"\0")), content[size:]) + reference

    return with_meta(phone_files.heic(append_images=[image_files.picture(seed=1)]), change)


def layered_tiff() -> bytes:
    layers = Image.Exif()
    layers[37724] = b"Adobe Photoshop Document Data Block\0"
    return image_files.encoded(image_files.picture(), "TIFF", exif=layers)


def riff_chunk(name: bytes, size: int) -> bytes:
    data = image_files.file("WEBP") + name + struct.pack("<I", size) + b"?" * size
    return data[:4] + struct.pack("<I", len(data) - 8) + data[8:]


def tiff_with_another(subfile_type: int, count: int = 1) -> bytes:
    """A TIFF that names ``count`` times a directory of another picture, of this type (1: a smaller version)."""
    tags = [*image_files.picture_tags((4, 4), [8], 1, 16), (330, image_files.LONG, [0x01020304] * count)]
    data = image_files.tiff(tags, bytes(16))
    other = image_files.tiff_directory([(254, image_files.LONG, [subfile_type])], len(data))
    return data.replace(struct.pack("<L", 0x01020304), struct.pack("<L", len(data))) + other


CREDENTIALS = b"JP\0\1" + struct.pack(">II4sI", 1, 4000, b"jumb", 40) + b"jumdc2pa"
THERMAL = (0xE1, b"FLIR\0\1\0\0" + b"?" * 600)
LAYERS_OF_FIREWORKS = image_files.png_with_chunk(b"mkTS", b"?" * 1024)


def bmp_with_gap(gap: bytes) -> bytes:
    data = image_files.file("BMP")
    return data[:10] + struct.pack("<I", 54 + len(gap)) + data[14:54] + gap + data[54:]


FORMATS = ("PNG", "WEBP", "BMP", "QOI", "PPM", "TIFF", "JPEG2000")
FTYP = box(b"ftyp", b"heic")
PARTS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "Pixel motion photo": (PIXEL_FILM + MP4, ("film",)),
    "Samsung motion photo": (STILL + samsung_trailer(UTC, (0x0A30, b"MotionPhoto_Data", MP4)), ("film",)),
    "Ultra HDR": (ultra_hdr(), ("gain map",)),
    "Ultra HDR motion photo": (ultra_hdr() + MP4, ("film", "gain map")),
    "stereo MPO": (with_pictures((0x020002, OTHER)), ("further pictures",)),
    "Pillow's MPO": (two("MPO"), ("further pictures",)),
    "dynamic depth": (with_xmp(b'<rdf:li Item:Semantic="Depth"/>') + OTHER, ("depth map",)),
    "Samsung depth map": (STILL + samsung_trailer((0x0AB1, b"DualShot_DepthMap_1", bytes(300))), ("depth map",)),
    "depth map in XMP": (with_segments((0xE1, DEPTH_IN_XMP)), ("depth map",)),
    "appended data": (STILL + b"?" * 1024, ("unknown data",)),
    **{f"{name} with a film": (image_files.file(name) + MP4, ("film",)) for name in FORMATS},
    "BMP with a film before its pixels": (bmp_with_gap(MP4), ("film",)),
    "QOI with data": (image_files.file("QOI") + bytes([7]) * 1024, ("unknown data",)),
    "plain PPM with data": (b"P3 1 1 255 1 2 3\n" + b"?" * 1024, ("unknown data",)),
    "two pictures in a PPM": (image_files.file("PPM") * 2, ("further frames", "unknown data")),
    "GIF with a film": (image_files.file("GIF", "P") + MP4, ("film",)),
    "JPEG 2000 with data": (image_files.file("JPEG2000") + b"?" * 1024, ("unknown data",)),
    "codestream with data": (image_files.file("JPEG2000", no_jp2=True) + b"?" * 1024, ("unknown data",)),
    "thermal camera": (with_segments(THERMAL, THERMAL), ("unknown data",)),
    "what only begins as Adobe's segment": (with_segments((0xED, b"Adobe_X" + b"?" * 1024)), ("unknown data",)),
    "JUMBF of another kind": (with_segments((0xEB, b"JP\0\1" + b"?" * 1024)), ("unknown data",)),
    "Fireworks": (LAYERS_OF_FIREWORKS, ("unknown data",)),
    "WebP with a chunk of unknown kind": (riff_chunk(b"priv", 1024), ("unknown data",)),
    "TIFF with a second picture": (tiff_with_another(0), ("further pictures",)),
    "TIFF with many small versions": (tiff_with_another(1, 101), ("further pictures",)),
    "animated PNG": (animation("PNG", 2), ("further frames",)),
    "animated WebP": (animation("WEBP", 2), ("further frames",)),
    "animated GIF": (animation("GIF", 2), ("further frames",)),
    "TIFF pages": (animation("TIFF", 2), ("further frames",)),
    "Photoshop layers": (layered_tiff(), ("layers",)),
    "HEIC sequence": (iso_media(box(b"moov", bytes(99)), brand=b"msf1"), ("further frames",)),
    "HEIC motion photo": (iso_media(box(b"mpvd", MP4)), ("film",)),
    "Apple gain map": (iso_media(auxiliary=(b"urn:com:apple:photo:2020:aux:hdrgainmap",)), ("gain map",)),
    "ISO gain map": (iso_media(items=(b"hvc1", b"tmap")), ("gain map",)),
    "depth maps": (
        iso_media(auxiliary=(b"urn:mpeg:mpegB:cicp:systems:auxiliary:depth", b"urn:mpeg:hevc:2015:auxid:2")),
        ("depth map",),
    ),
    "matte": (iso_media(auxiliary=(b"urn:com:apple:photo:2018:aux:portraiteffectsmatte",)), ("further pictures",)),
    "depth map": (with_auxiliary(b"urn:mpeg:hevc:2015:auxid:2"), ("depth map",)),
    "motion photo of a Samsung": (HEIC + box(b"mpvd", MP4), ("film",)),
    "motion photo of a Pixel": (HEIC + MP4 + box(b"moov", bytes(99)), ("film",)),
    "a box of unknown kind": (HEIC + box(b"sefd", b"?" * 1024), ("unknown data",)),
    "data that is of no picture": (HEIC + box(b"mdat", MP4), ("film",)),
    "a box of its own identity": (HEIC + box(b"uuid", b"?" * 1024), ("unknown data",)),
    "an item of unknown kind": (phone_files.heic(xmp=b"?" * 1024), ("unknown data",)),
    "JPEG XL with a film": (JXL + MP4, ("film",)),
    "bare JPEG XL with a film": (phone_files.jxl(lossless=True) + MP4, ("film",)),
    "JPEG XL with a gain map": (JXL + box(b"jhgm", bytes(9)), ("gain map",)),
    "JPEG XL of a motion photo": (phone_files.jxl_of(JPEG + MP4), ("film",)),
    "JPEG XL of an Ultra HDR photo": (phone_files.jxl_of(ultra_hdr()), ("gain map",)),
    # The work has limits, and what lies beyond counts as content. With the square of the file, it would take hours.
    "comments": (b"\xff\xd8\xff" + b"\xff\xfe\0\2" * 2_000_000, ("unknown data",)),
    "chunks of a PNG": (b"\x89PNG\r\n\x1a\n" + b"\0\0\0\0IDAT\0\0\0\0" * 600_000, ("unknown data",)),
    "boxes": (FTYP + b"\0\0\0\x08free" * 1_000_000, ("unknown data",)),
    "boxes in a box": (FTYP + box(b"meta", bytes(4), box(b"iprp", b"") * 900_000), ("unknown data",)),
}  # fmt: skip


@pytest.mark.parametrize(("data", "kinds"), PARTS.values(), ids=PARTS)
def test_what_lies_beyond_the_picture_is_found(data: bytes, kinds: tuple[str, ...]) -> None:
    found = embedded_parts(data)
    assert found.kinds == kinds
    assert found.digest


ALONE = {
    "still": STILL,
    "says that there is a film, which was cut off": PIXEL_FILM,
    "says that there is a gain map": ultra_hdr()[: ultra_hdr().index(b"\xff\xd9") + 2],
    "junk": STILL + b"?" * 1023 + bytes(5000),
    "Samsung time stamp": STILL + samsung_trailer(UTC),
    "large thumbnails": with_pictures((0x010001, OTHER), (0x010002, OTHER), gap=bytes(700)),
    "long XMP": with_segments((0xE1, XMP_EXTENSION + bytes(40) + b"<crs:Edits/>" * 500)),
    "picture inside the metadata": with_segments((0xE1, b"Exif\0\0" + OTHER)),
    **{name: image_files.file(name) + b"\n" for name in FORMATS},
    "alpha": iso_media(auxiliary=(b"urn:mpeg:hevc:2015:auxid:1",), items=(b"hvc1", b"Exif")),
    "a short segment": with_segments(THERMAL),
    "credentials in a HEIC": HEIC + box(b"uuid", bytes.fromhex("d8fec3d61b0e483c92975828877ec481"), b"?" * 1024),
    "credentials": with_segments((0xEB, CREDENTIALS + bytes(16) + b"?" * 900), (0xEB, CREDENTIALS[:16] + b"?" * 900)),
    "credentials in a PNG": image_files.png_with_chunk(b"caBX", b"?" * 2000),
    "credentials in a WebP": riff_chunk(b"C2PA", 2000),
    "resources of Photoshop": with_segments((0xED, b"Photoshop 3.0\0" + b"?" * 2000)),
    "smaller version in a TIFF": tiff_with_another(1),
    "nothing": b"",
    "BMP with a palette": image_files.file("BMP", "P"),
    "plain PPM": b"P3 1 1 255 # a comment\n1 2 3\n",
    "GIF": image_files.file("GIF", "P"),
    "compressed TIFF": image_files.file("TIFF", compression="tiff_lzw", exif=phone_files.exif()),
    "codestream": image_files.file("JPEG2000", no_jp2=True),
    "HEIC": HEIC,
    "tiles": phone_files.heic(image_files.picture(size=(150, 100)), tile_size=64),
    "thumbnail": phone_files.heic(image_files.picture(size=(150, 100)), thumbnails=[64]),
    "transparency": phone_files.heic(image_files.picture("RGBA")),
    "a small box of a Samsung": HEIC + box(b"sefd", bytes(90)),
    "AVIF": image_files.file("AVIF"),
    "JPEG XL": JXL,
    "bare JPEG XL": phone_files.jxl(lossless=True),
    "JPEG XL of a JPEG": phone_files.jxl_of(JPEG),
    # Work that grew with the square of the file would take hours with these.
    "fill bytes": b"\xff\xd8" + b"\xff" * 8_000_000,
    "stuffed pixels": b"\xff\xd8\xff\xda\0\2" + b"\xff\0" * 4_000_000,
    "many pictures": with_pictures(*[(0x010001, b"")] * 900, gap=bytes(8_000)),
}  # fmt: skip


@pytest.mark.parametrize("data", ALONE.values(), ids=ALONE)
def test_a_picture_alone_holds_nothing_more(data: bytes) -> None:
    assert embedded_parts(data) == EmbeddedParts()


def test_the_digest_is_that_of_the_parts_and_not_of_the_picture() -> None:
    other_still = image_files.jpeg(quality=60)
    assert embedded_parts(STILL + MP4) == embedded_parts(other_still + MP4 + bytes(64))
    assert embedded_parts(STILL + MP4).digest != embedded_parts(STILL + MP4 + b"!").digest
    thermal, other_thermal = (with_segments(THERMAL, THERMAL, still=still) for still in (STILL, other_still))
    assert embedded_parts(thermal) == embedded_parts(other_thermal)
    first, second = (with_segments((0xE1, DEPTH_IN_XMP.replace(b"AAAA", four))) for four in (b"AAAB", b"AAAC"))
    assert embedded_parts(first).digest != embedded_parts(second).digest


def test_a_still_has_the_pixels_of_the_file_that_holds_more() -> None:
    with Image.open(io.BytesIO(STILL)) as image:
        export = image_files.encoded(image, "PNG")
    jxl, jxl_of_film = phone_files.jxl_of(JPEG), phone_files.jxl_of(JPEG + MP4)
    for still, *more in (
        (STILL, PIXEL_FILM + MP4, ultra_hdr(), export),
        (HEIC, HEIC + box(b"mpvd", MP4), HEIC + MP4),
        (JPEG, jxl, JPEG + MP4, jxl_of_film),
    ):
        assert pixel_hash(still)
        assert {pixel_hash(data) for data in more} == {pixel_hash(still)}
    assert extract_features(ultra_hdr())[0].embedded == "gain map"
    assert extract_features(STILL)[0].embedded == ""


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    seed=st.sampled_from(
        [
            PIXEL_FILM + MP4,
            ultra_hdr(),
            with_segments((0xE1, DEPTH_IN_XMP)),
            animation("PNG", 2),
            animation("GIF", 2),
            layered_tiff(),
            *(image_files.file(name) + MP4 for name in ("BMP", "QOI", "PPM", "JPEG2000", "WEBP")),
            iso_media(box(b"mpvd", MP4), auxiliary=(b"urn:x:depth",), items=(b"tmap",)),
        ]
    ),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=8),
    length=st.integers(0, 2**16),
)
def test_damaged_files_never_raise(seed: bytes, changes: list[tuple[int, int]], length: int) -> None:
    data = bytearray(seed[:length])
    for position, value in changes if data else ():
        data[position % len(data)] = value
    found = embedded_parts(bytes(data))
    assert bool(found.kinds) == bool(found.digest)


def test_a_picture_in_digits_takes_no_memory_for_each_of_them() -> None:
    data = b"P3 200 200 255\n" + b"1 2 3 " * 40_000
    _, peak_bytes = with_peak_bytes(lambda: embedded_parts(data))
    assert peak_bytes < len(data)
