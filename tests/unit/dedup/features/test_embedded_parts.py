"""What files hold beyond their picture."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from clip_client.dedup.features.embedded_parts import embedded_parts
from clip_client.dedup.features.image_features import extract_features
from clip_client.dedup.features.pixel_hash import pixel_hash
from tests.fixtures.images import image_files
from tests.fixtures.images.embedded_files import (
    MP4,
    OTHER,
    STILL,
    XMP_EXTENSION,
    box,
    iso_media,
    samsung_trailer,
    ultra_hdr,
    with_pictures,
    with_segments,
    with_xmp,
)
from tests.fixtures.images.good_files import animation

PIXEL_FILM = with_xmp(b'<rdf:Description GCamera:MotionPhoto="1" GCamera:MicroVideoOffset="280"/>')
DEPTH_IN_XMP = XMP_EXTENSION + b"0" * 32 + bytes(8) + b'<rdf:Description GDepth:Data="' + b"A" * 900 + b'"/>'
UTC = (0x0A01, b"Image_UTC_Data", b"1700000000000")


def layered_tiff() -> bytes:
    layers = Image.Exif()
    layers[37724] = b"Adobe Photoshop Document Data Block\0"
    return image_files.encoded(image_files.picture(), "TIFF", exif=layers)


@pytest.mark.parametrize(
    ("data", "kinds"),
    [
        pytest.param(PIXEL_FILM + MP4, ("film",), id="Pixel motion photo"),
        pytest.param(
            STILL + samsung_trailer(UTC, (0x0A30, b"MotionPhoto_Data", MP4)), ("film",), id="Samsung motion photo"
        ),
        pytest.param(ultra_hdr(), ("gain map",), id="Ultra HDR"),
        pytest.param(ultra_hdr() + MP4, ("film", "gain map"), id="Ultra HDR motion photo"),
        pytest.param(with_pictures((0x020002, OTHER)), ("further pictures",), id="stereo MPO"),
        pytest.param(with_pictures((0x020002, OTHER), gap=bytes(500)), ("further pictures",), id="MPO with padding"),
        pytest.param(
            image_files.encoded(
                image_files.picture(), "MPO", save_all=True, append_images=[image_files.picture(seed=1)]
            ),
            ("further pictures",),
            id="Pillow's MPO",
        ),
        pytest.param(with_xmp(b'<rdf:li Item:Semantic="Depth"/>') + OTHER, ("depth map",), id="dynamic depth"),
        pytest.param(
            STILL + samsung_trailer((0x0AB1, b"DualShot_DepthMap_1", bytes(300))),
            ("depth map",),
            id="Samsung depth map",
        ),
        pytest.param(with_segments((0xE1, DEPTH_IN_XMP)), ("depth map",), id="depth map in XMP"),
        pytest.param(STILL + b"?" * 1024, ("appended data",), id="appended data"),
        pytest.param(image_files.encoded(image_files.picture(), "PNG") + MP4, ("film",), id="PNG with a film"),
        pytest.param(image_files.encoded(image_files.picture(), "WEBP") + MP4, ("film",), id="WebP with a film"),
        pytest.param(animation("PNG", 2), ("further frames",), id="animated PNG"),
        pytest.param(animation("WEBP", 2), ("further frames",), id="animated WebP"),
        pytest.param(animation("GIF", 2), ("further frames",), id="animated GIF"),
        pytest.param(animation("TIFF", 2), ("further frames",), id="TIFF pages"),
        pytest.param(layered_tiff(), ("layers",), id="Photoshop layers"),
        pytest.param(iso_media(box(b"moov", bytes(99)), brand=b"msf1"), ("further frames",), id="HEIC sequence"),
        pytest.param(iso_media(box(b"moov", bytes(99)), brand=b"avis"), ("further frames",), id="AVIF sequence"),
        pytest.param(iso_media(box(b"mpvd", MP4)), ("film",), id="HEIC motion photo"),
        pytest.param(iso_media() + samsung_trailer((0x0A30, b"MotionPhoto_Data", MP4)), ("film",), id="SEF"),
        pytest.param(
            iso_media(auxiliary=(b"urn:com:apple:photo:2020:aux:hdrgainmap",)), ("gain map",), id="Apple gain map"
        ),
        pytest.param(iso_media(items=(b"hvc1", b"tmap")), ("gain map",), id="ISO gain map"),
        pytest.param(
            iso_media(auxiliary=(b"urn:mpeg:mpegB:cicp:systems:auxiliary:depth", b"urn:mpeg:hevc:2015:auxid:2")),
            ("depth map",),
            id="depth maps",
        ),
        pytest.param(
            iso_media(auxiliary=(b"urn:com:apple:photo:2018:aux:portraiteffectsmatte",)),
            ("further pictures",),
            id="matte",
        ),
    ],
)
def test_what_lies_beyond_the_picture_is_found(data: bytes, kinds: tuple[str, ...]) -> None:
    found = embedded_parts(data)
    assert found.kinds == kinds
    assert found.digest


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(STILL, id="still"),
        pytest.param(image_files.jpeg(progressive=True, size=(300, 200)), id="progressive"),
        pytest.param(PIXEL_FILM, id="says that there is a film, which was cut off"),
        pytest.param(ultra_hdr()[: ultra_hdr().index(b"\xff\xd9") + 2], id="says that there is a gain map"),
        pytest.param(STILL + bytes(100_000), id="zeros"),
        pytest.param(STILL + b"?" * 1023 + bytes(5000), id="junk"),
        pytest.param(STILL + samsung_trailer(UTC), id="Samsung time stamp"),
        pytest.param(with_pictures((0x010001, OTHER), (0x010002, OTHER), gap=bytes(700)), id="large thumbnails"),
        pytest.param(with_segments((0xE1, XMP_EXTENSION + bytes(40) + b"<crs:Edits/>" * 500)), id="long XMP"),
        pytest.param(with_segments((0xE1, b"Exif\0\0" + OTHER)), id="picture inside the metadata"),
        pytest.param(image_files.encoded(image_files.picture(), "PNG") + b"\n", id="PNG"),
        pytest.param(image_files.encoded(image_files.picture(), "WEBP") + b"\n", id="WebP"),
        pytest.param(image_files.encoded(image_files.picture(), "GIF"), id="GIF"),
        pytest.param(image_files.encoded(image_files.picture(), "TIFF"), id="TIFF"),
        pytest.param(iso_media(auxiliary=(b"urn:mpeg:hevc:2015:auxid:1",), items=(b"hvc1", b"Exif")), id="alpha"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff\xd8\xff", id="start of a JPEG"),
    ],
)
def test_a_picture_alone_holds_nothing_more(data: bytes) -> None:
    assert embedded_parts(data).kinds == ()
    assert embedded_parts(data).digest == ""


def test_the_digest_is_that_of_the_parts_and_not_of_the_picture() -> None:
    other_still = image_files.jpeg(quality=60)
    assert embedded_parts(STILL + MP4) == embedded_parts(other_still + MP4 + bytes(64))
    assert embedded_parts(STILL + MP4).digest != embedded_parts(STILL + MP4 + b"!").digest
    first, second = (with_segments((0xE1, DEPTH_IN_XMP.replace(b"AAAA", four))) for four in (b"AAAB", b"AAAC"))
    assert embedded_parts(first).digest != embedded_parts(second).digest


def test_a_still_has_the_pixels_of_the_file_that_holds_more() -> None:
    """It may be moved as a copy of that file, but not the other way round."""
    with Image.open(io.BytesIO(STILL)) as image:
        export = image_files.encoded(image, "PNG")
    assert {pixel_hash(data) for data in (STILL, PIXEL_FILM + MP4, ultra_hdr(), export)} == {pixel_hash(STILL)}
    assert pixel_hash(STILL)
    assert extract_features(ultra_hdr()).embedded == "gain map"
    assert extract_features(STILL).embedded == ""


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    seed=st.sampled_from(
        [
            PIXEL_FILM + MP4,
            ultra_hdr(),
            with_segments((0xE1, DEPTH_IN_XMP)),
            animation("PNG", 2),
            animation("GIF", 2),
            layered_tiff(),
            iso_media(box(b"mpvd", MP4), auxiliary=(b"urn:x:depth",), items=(b"tmap",)),
        ]
    ),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=8),
    length=st.integers(0, 2**16),
)
def test_damaged_files_never_raise(seed: bytes, changes: list[tuple[int, int]], length: int) -> None:
    data = bytearray(seed[:length])
    for position, value in changes:
        if data:
            data[position % len(data)] = value
    found = embedded_parts(bytes(data))
    assert bool(found.kinds) == bool(found.digest)


@pytest.mark.parametrize(
    ("data", "kinds"),
    [
        pytest.param(b"\xff\xd8\xff" + b"\xff\xfe\0\2" * 2_000_000, ("appended data",), id="comments"),
        pytest.param(b"\xff\xd8" + b"\xff" * 8_000_000, (), id="fill bytes"),
        pytest.param(b"\xff\xd8\xff\xda\0\2" + b"\xff\0" * 4_000_000, (), id="stuffed pixels"),
        pytest.param(with_pictures(*[(0x010001, b"")] * 900, gap=bytes(8_000)), (), id="pictures"),
        pytest.param(
            b"\x89PNG\r\n\x1a\n" + b"\0\0\0\0IDAT\0\0\0\0" * 600_000, ("appended data",), id="chunks of a PNG"
        ),
        pytest.param(box(b"ftyp", b"heic") + b"\0\0\0\x08free" * 1_000_000, ("appended data",), id="boxes"),
        pytest.param(
            box(b"ftyp", b"heic") + box(b"meta", bytes(4), box(b"iprp", b"") * 900_000),
            ("appended data",),
            id="boxes in a box",
        ),
    ],
)
def test_the_work_has_limits_and_what_lies_beyond_counts_as_content(data: bytes, kinds: tuple[str, ...]) -> None:
    """Work that grew with the square of the file would take hours here."""
    assert embedded_parts(data).kinds == kinds
