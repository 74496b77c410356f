"""What a search knows of HEIC, AVIF and JPEG XL files: metadata, what else they hold, and whether pixels are equal."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any

import pillow_heif
import pytest

from clip_client.dedup.features.embedded_parts import embedded_parts
from clip_client.dedup.features.image_features import extract_features
from clip_client.dedup.features.pixel_hash import pixel_hash
from clip_client.dedup.files.metadata import read_metadata
from clip_client.dedup.types import SAME_PIXELS
from tests.fixtures.albums import member, planned, report, write
from tests.fixtures.images import image_files, phone_files
from tests.fixtures.images.embedded_files import MP4, box, ultra_hdr

if TYPE_CHECKING:
    from pathlib import Path

XMP = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Descri\
ption xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="4"/></rdf:RDF></x:xmpmeta>'
)
JPEG = image_files.jpeg(exif=phone_files.exif(6), xmp=XMP)
HEIC = phone_files.heic(exif=phone_files.exif(6), xmp=XMP)
JXL = phone_files.jxl(exif=phone_files.exif(6), xmp=XMP)


@pytest.mark.parametrize(
    ("data", "image_format"),
    [
        pytest.param(HEIC, "HEIC", id="HEIC"),
        pytest.param(
            image_files.encoded(image_files.picture(), "AVIF", exif=phone_files.exif(6), xmp=XMP), "AVIF", id="AVIF"
        ),
        pytest.param(JXL, "JPEG XL", id="JPEG XL"),
        pytest.param(phone_files.jxl_of(JPEG), "JPEG XL", id="JPEG XL of a JPEG, with compressed metadata"),
    ],
)
def test_metadata_is_read_as_that_of_a_jpeg(data: bytes, image_format: str) -> None:
    expected, found = extract_features(JPEG), extract_features(data)
    assert (found.code, found.format, found.embedded) == ("", image_format, "")
    assert (found.width, found.height) == (48, 64)
    assert found.capture_time.taken_ms == expected.capture_time.taken_ms
    assert found.capture_time.camera == "Apple iPhone 15"
    assert found.metadata.latitude == pytest.approx(48.208333)
    assert found.metadata.taken == "2024-05-06T07:08:09"
    assert found.metadata.rating == 4
    assert not found.metadata.is_incomplete


def test_compressed_metadata_of_a_jpeg_xl_counts_as_incomplete() -> None:
    compressed = phone_files.jxl(exif=phone_files.exif(), xmp=XMP * 20, compress_metadata=True)
    assert b"brob" in compressed
    assert read_metadata(compressed)[1].is_incomplete


def with_auxiliary(urn: bytes) -> bytes:
    """A HEIC whose second picture is called auxiliary to the first, as depth maps are."""
    data = phone_files.heic(append_images=[image_files.picture(seed=1)])
    auxiliary = box(b"auxC", bytes(4), urn + b"\0")
    reference = box(b"iref", bytes(4), box(b"auxl", struct.pack(">HHH", 2, 1, 1)))
    start = data.index(b"ipco") - 4
    stop = start + struct.unpack_from(">I", data, start)[0]
    grown = bytearray(data[:stop] + auxiliary + data[stop:])
    for name in (b"ipco", b"iprp", b"meta"):
        position = grown.index(name) - 4
        more = len(auxiliary) + (len(reference) if name == b"meta" else 0)
        struct.pack_into(">I", grown, position, struct.unpack_from(">I", grown, position)[0] + more)
    first = grown.index(b"meta") + 8
    return bytes(grown[:first] + reference + grown[first:])


@pytest.mark.parametrize(
    ("data", "kinds"),
    [
        pytest.param(HEIC, (), id="HEIC"),
        pytest.param(phone_files.heic(image_files.picture(size=(150, 100)), tile_size=64), (), id="tiles"),
        pytest.param(phone_files.heic(image_files.picture(size=(150, 100)), thumbnails=[64]), (), id="thumbnail"),
        pytest.param(phone_files.heic(image_files.picture("RGBA")), (), id="transparency"),
        pytest.param(
            phone_files.heic(append_images=[image_files.picture(seed=1)]), ("further pictures",), id="several pictures"
        ),
        pytest.param(with_auxiliary(b"urn:mpeg:hevc:2015:auxid:2"), ("depth map",), id="depth map"),
        pytest.param(
            with_auxiliary(b"urn:com:apple:photo:2020:aux:hdrgainmap"), ("gain map",), id="gain map of an iPhone"
        ),
        pytest.param(HEIC + box(b"mpvd", MP4), ("film",), id="motion photo of a Samsung"),
        pytest.param(HEIC + MP4 + box(b"moov", bytes(99)), ("film",), id="motion photo of a Pixel"),
        pytest.param(HEIC + box(b"moov", bytes(99)), ("further frames",), id="HEIC sequence"),
        pytest.param(HEIC + box(b"sefd", bytes(90)), (), id="a small box of a Samsung"),
        pytest.param(HEIC + box(b"sefd", b"?" * 1024), ("appended data",), id="a box of unknown kind"),
        pytest.param(image_files.encoded(image_files.picture(), "AVIF"), (), id="AVIF"),
        pytest.param(JXL, (), id="JPEG XL"),
        pytest.param(phone_files.jxl(lossless=True), (), id="bare JPEG XL"),
        pytest.param(JXL + MP4, ("film",), id="JPEG XL with a film"),
        pytest.param(phone_files.jxl(lossless=True) + MP4, ("film",), id="bare JPEG XL with a film"),
        pytest.param(JXL + box(b"jhgm", bytes(9)), ("gain map",), id="JPEG XL with a gain map"),
        pytest.param(phone_files.jxl_of(JPEG), (), id="JPEG XL of a JPEG"),
        pytest.param(phone_files.jxl_of(JPEG + MP4), ("film",), id="JPEG XL of a motion photo"),
        pytest.param(phone_files.jxl_of(ultra_hdr()), ("gain map",), id="JPEG XL of an Ultra HDR photo"),
    ],
)
def test_what_lies_beyond_the_picture_is_found(data: bytes, kinds: tuple[str, ...]) -> None:
    found = embedded_parts(data)
    assert found.kinds == kinds
    assert bool(found.digest) == bool(kinds)


@pytest.mark.parametrize(
    ("motion", "still"),
    [
        (HEIC + box(b"mpvd", MP4), HEIC),
        (HEIC + MP4, HEIC),
        (phone_files.jxl_of(JPEG + MP4), JPEG),
        (phone_files.jxl_of(JPEG), JPEG + MP4),
    ],
    ids=["Samsung", "Pixel", "JPEG XL of a motion photo", "JPEG XL of the still"],
)
def test_a_still_moves_as_a_copy_of_a_motion_photo_and_never_the_other_way(
    motion: bytes, still: bytes, tmp_path: Path
) -> None:
    if not embedded_parts(motion).kinds:
        motion, still = still, motion
    assert pixel_hash(motion) == pixel_hash(still) != ""
    members = {}
    for name, data in (("motion", motion), ("still", still)):
        parts = embedded_parts(data)
        path = write(tmp_path / f"{name}.heic", data)
        kinds = ", ".join(parts.kinds)
        members[name] = member(path, tier=SAME_PIXELS, embedded=kinds, embedded_digest=parts.digest)
    (move,) = planned(report((members["motion"], members["still"])), [tmp_path]).moves
    assert move.duplicate == members["still"].photo
    (skip,) = planned(report((members["still"], members["motion"])), [tmp_path]).skipped
    assert skip.reason == "It holds more than its picture (film), which the kept photo lacks."


@pytest.mark.parametrize(
    "data",
    [
        phone_files.deep_heic(10),
        phone_files.avif_of_10_bits(),
        phone_files.JXL_OF_10_BITS,
        phone_files.heic(append_images=[image_files.picture(seed=1)]),
        HEIC + box(b"moov"),
        phone_files.heic(image_files.picture("RGBA")),
        phone_files.jxl(image_files.picture("RGBA")),
        image_files.encoded(
            image_files.picture(), "AVIF", save_all=True, append_images=[image_files.picture(seed=1)], speed=10
        ),
    ],
    ids=[
        "10 bits",
        "AVIF of 10 bits",
        "JPEG XL of 10 bits",
        "two pictures",
        "HEIC sequence",
        "alpha",
        "alpha in JPEG XL",
        "sequence",
    ],
)
def test_files_that_are_not_shown_in_full_have_no_hash_of_pixels(data: bytes) -> None:
    assert extract_features(data).code == ""
    assert pixel_hash(data) == ""


def heic_in(primaries: int, transfer: int) -> bytes:
    buffer = io.BytesIO()
    options: Any = {"color_primaries": primaries, "transfer_characteristics": transfer}
    pillow_heif.from_pillow(image_files.picture()).save(buffer, quality=60, **options)
    return buffer.getvalue()


def test_equal_numbers_in_another_colour_space_are_other_colours() -> None:
    srgb, unspecified, hdr, p3 = heic_in(1, 13), heic_in(2, 2), heic_in(9, 16), heic_in(12, 13)
    assert pixel_hash(srgb) == pixel_hash(unspecified) != ""
    assert len({pixel_hash(data) for data in (srgb, hdr, p3)}) == 3
    profile = phone_files.heic(icc_profile=b"a profile of Display P3" * 9)
    assert pixel_hash(profile) not in {pixel_hash(phone_files.heic()), ""}


def test_lossless_forms_of_one_picture_have_equal_pixels() -> None:
    assert pixel_hash(phone_files.jxl_of(JPEG)) == pixel_hash(JPEG) != ""
    lossless = phone_files.jxl(lossless=True)
    assert pixel_hash(lossless) == pixel_hash(phone_files.jxl(lossless=True, effort=1)) != ""
