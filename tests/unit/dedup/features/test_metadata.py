"""The metadata that is read from files, wherever a program has written it."""

from dataclasses import replace
from typing import Any

import pytest
from PIL import Image, PngImagePlugin

from clip_client.dedup.features.image_features import extract_features
from clip_client.dedup.metadata.facts import Facts, read_facts, read_sidecar_facts
from clip_client.dedup.metadata.summary import read_metadata
from clip_client.dedup.metadata.xmp import XmpError, read_xmp, texts_of, write_xmp
from tests.fixtures.images import phone_files
from tests.fixtures.images.camera_files import camera_jpeg, exif, packet, with_iptc
from tests.fixtures.images.image_files import encoded, file, jpeg
from tests.fixtures.images.metadata_files import png

WORDS = "<rdf:li>Wien</rdf:li><rdf:li>Caf\u00e9</rdf:li>"
TITLES = '<rdf:li xml:lang="de">Tor</rdf:li><rdf:li xml:lang="x-default">Gate</rdf:li>'
XMP_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ('xmp:Rating="4">', {"rating": {(4.0,)}}),
    ("><xmp:Rating>-1</xmp:Rating>", {"rating": {(-1.0,)}}),
    ('xmp:Rating="none">', {"rating": {"none"}}),
    (f"><dc:subject><rdf:Bag>{WORDS}</rdf:Bag></dc:subject>", {"keywords": {"Caf\u00e9", "Wien"}}),
    (f"><dc:title><rdf:Alt>{TITLES}</rdf:Alt></dc:title>", {"title": {"Gate", "Tor"}}),
    ("><dc:description><rdf:Alt><rdf:li>A &amp; B</rdf:li></rdf:Alt></dc:description>", {"caption": {"A & B"}}),
    ('exif:DateTimeOriginal="2019-05-03T10:11:12.34+02:00">', {"taken": "2019-05-03T10:11:12"}),
    ('photoshop:DateCreated="2019-05-03">', {"taken": "2019-05-03"}),
    ('xmp:CreateDate="2019-05-03T10:11">', {"taken": "2019-05-03T10:11"}),
    ('exif:GPSLatitude="48,12.0N" exif:GPSLongitude="16,22,12W">', {"latitude": 48.2, "longitude": -16.37}),
    ('exif:GPSLatitude="48,12.0N">', {}),
    ('exif:GPSLatitude="0,0N" exif:GPSLongitude="0,0E">', {}),
    ('exif:GPSLatitude="448,12.0N" exif:GPSLongitude="16,22,12W">', {}),
]


def approximately(expected: dict[str, Any]) -> dict[str, Any]:
    return {name: pytest.approx(value) if isinstance(value, float) else value for name, value in expected.items()}


READ = ("taken", "latitude", "longitude", "lens", "software", "has_maker_note", "has_exposure", "is_resized")


def said(data: bytes) -> dict[str, Any]:
    """The fields of ``READ`` that are not empty, and what people write."""
    metadata, facts = read_metadata(data), read_facts(data).said
    written = {name: facts[name] for name in ("rating", "keywords", "title", "caption") if name in facts}
    return {name: value for name in READ if (value := getattr(metadata, name)) not in ("", None, False)} | written


def bare(**changes: Any) -> Image.Exif:
    """EXIF without a field but these."""
    camera = ("Make", "Model", "Software", "DateTimeOriginal", "LensModel", "FNumber", "MakerNote", "ExifImageWidth")
    return exif(**{**dict.fromkeys(camera), "ExifImageHeight": None, **changes})


KEYWORDS = packet("><dc:subject><rdf:Bag><rdf:li>Wien</rdf:li><rdf:li>Tor</rdf:li></rdf:Bag></dc:subject>")
CAMERA = {"lens": "EF50mm f/1.8", "software": "Firmware Version 1.1.1", "has_maker_note": True, "has_exposure": True}
TAKEN = {"taken": "2019-05-03T10:11:12"}
FIELDS: list[tuple[bytes, dict[str, Any]]] = [
    (jpeg(exif=bare(Rating=99)), {"rating": {(99.0,)}}),
    (jpeg(exif=bare(ImageDescription="Caf\u00e9".encode())), {"caption": {"Caf\u00e9"}}),
    (jpeg(exif=bare(XPTitle="Gate\0".encode("utf-16-le"))), {"title": {"Gate"}}),
    (jpeg(exif=bare(XPComment="A gate".encode("utf-16-le"))), {"caption": {"A gate"}}),
    (jpeg(exif=bare(XPKeywords="Wien; Caf\u00e9".encode("utf-16-le"))), {"keywords": {"Caf\u00e9", "Wien"}}),
    (jpeg(exif=bare(DateTimeDigitized="2019:05:03 10:11:12")), TAKEN),
    (jpeg(exif=bare(DateTimeOriginal="0000:00:00 00:00:00")), {}),
    (jpeg(exif=bare(DateTimeOriginal="yesterday")), {}),
    (jpeg(exif=bare(ProcessingSoftware="GIMP")), {"software": "GIMP"}),
    (jpeg(exif=bare(ExposureTime=0.5)), {"has_exposure": True}),
    (jpeg(exif=bare(ExifImageWidth=640, ExifImageHeight=480)), {"is_resized": True}),
    (jpeg(exif=bare(ExifImageWidth=48, ExifImageHeight=64)), {}),
    (jpeg(exif=bare(ExifImageWidth=80, ExifImageHeight=64)), {}),
    (jpeg(exif=bare(ExifImageWidth=81, ExifImageHeight=48)), {"is_resized": True}),
    (jpeg(exif=bare(ExifImageWidth=0, ExifImageHeight=0)), {}),
    (jpeg(exif=bare(ImageWidth=640, ImageLength=480)), {"is_resized": True}),
    (camera_jpeg(gps=True), {**CAMERA, **TAKEN, "latitude": 48.2, "longitude": -16.37}),
    (with_iptc(jpeg(), [(5, b"Gate"), (120, "Caf\u00e9".encode())]), {"title": {"Gate"}, "caption": {"Caf\u00e9"}}),
    (with_iptc(jpeg(), [(120, b"Caf\xe9")]), {"caption": {"Caf\u00e9"}}),
    (with_iptc(jpeg(), [(25, b"Wien"), (25, b"Tor")]), {"keywords": {"Tor", "Wien"}}),
    (with_iptc(jpeg(), [(55, b"20190503"), (60, b"101112+0200")]), TAKEN),
    (
        with_iptc(jpeg(xmp=KEYWORDS, exif=bare(XPKeywords="Tor;Haus".encode("utf-16-le"))), [(25, b"Wien")]),
        {"keywords": {"Haus", "Tor", "Wien"}},
    ),
    (
        png(Title="Gate", Description="A gate", Software="GIMP"),
        {"title": {"Gate"}, "caption": {"A gate"}, "software": "GIMP"},
    ),
    *((encoded(Image.new("RGB", (8, 8)), name), {}) for name in ("PNG", "TIFF", "WEBP", "GIF", "BMP")),
]


@pytest.mark.parametrize(("data", "expected"), FIELDS)
def test_each_field_of_exif_iptc_and_texts(data: bytes, expected: dict[str, Any]) -> None:
    assert said(data) == approximately(expected)


@pytest.mark.parametrize(("inner", "expected"), XMP_FIELDS)
def test_each_field_of_xmp_in_files_and_sidecars(inner: str, expected: dict[str, Any]) -> None:
    text, xmp = PngImagePlugin.PngInfo(), packet(inner)
    text.add_itxt("XML:com.adobe.xmp", xmp.decode())
    tiff = file("TIFF", tiffinfo={700: xmp})
    files = (jpeg(xmp=xmp), file("PNG", pnginfo=text), tiff, file("WEBP", xmp=xmp))
    for data in files:
        assert said(data) == approximately(expected)
        assert read_facts(data).said == read_sidecar_facts(xmp).said


@pytest.mark.parametrize(
    "hostile",
    [
        b"no XML",
        packet(">").replace(b"<?xpacket begin", b'<!DOCTYPE x [<!ENTITY a "b">]><?xpacket begin', 1),
        b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><x>&a;</x>',
        b"<a>" * 100_000,
        b"<a>" * 100_000 + b"</a>" * 100_000,
        b'<?xml version="1.0" encoding="no-such"?><a/>',
        packet(">" + " " * 2**20),
    ],
)
def test_a_hostile_packet_says_nothing_and_is_marked(hostile: bytes) -> None:
    with_packet = file("TIFF", tiffinfo={700: hostile})
    assert said(with_packet) == {}
    is_whole = hostile.endswith(b"</a>")  # but deep
    assert read_facts(with_packet) == read_sidecar_facts(hostile) == Facts(is_unreadable=not is_whole)
    if not is_whole:
        with pytest.raises(XmpError):
            read_xmp(hostile)


def test_texts_hold_no_control_characters() -> None:
    facts = read_facts(jpeg(exif=exif(ImageDescription="a\x1b[2J\x07b\r\nc")))
    assert facts.said["caption"] == {"a[2Jb c"}
    assert facts.texts["caption", "a[2Jb c"] == "a[2Jb\nc"


def test_what_is_written_is_read_again() -> None:
    properties: dict[str, str | list[str]] = {
        "xmp:Rating": "4",
        "dc:subject": ["Caf\u00e9", "<b>&"],
        "dc:title": "Tor & Haus",
        "exif:GPSLatitude": "48,12.000000N",
    }
    expected = {name: [value] if isinstance(value, str) else value for name, value in properties.items()}
    assert {name: texts_of(items) for name, items in read_xmp(write_xmp(properties)).items()} == expected


XMP = packet('xmp:Rating="4">')
JPEG = jpeg(exif=phone_files.exif(6), xmp=XMP)


PHONES = {
    "HEIC": phone_files.heic(exif=phone_files.exif(6), xmp=XMP),
    "AVIF": file("AVIF", exif=phone_files.exif(6), xmp=XMP),
    "JPEG XL": phone_files.jxl(exif=phone_files.exif(6), xmp=XMP),
    "JPEG XL of a JPEG, with compressed metadata": phone_files.jxl_of(JPEG),
}


@pytest.mark.parametrize("name", PHONES)
def test_metadata_is_read_as_that_of_a_jpeg(name: str) -> None:
    expected, found = extract_features(JPEG)[0], extract_features(PHONES[name])[0]
    assert (found.code, found.format, found.embedded) == ("", name.partition(" of ")[0], "")
    assert (found.width, found.height) == (48, 64)
    assert found.metadata.camera == "Apple iPhone 15"
    assert replace(found.metadata, fields=0) == replace(expected.metadata, fields=0)
    assert found.metadata.taken == "2024-05-06T07:08:09"
    assert read_facts(PHONES[name]).said["rating"] == {(4.0,)}


def test_compressed_metadata_of_a_jpeg_xl_counts_as_incomplete() -> None:
    compressed = phone_files.jxl(exif=phone_files.exif(), xmp=XMP * 20, compress_metadata=True)
    assert b"brob" in compressed
    assert read_facts(compressed).is_unreadable
