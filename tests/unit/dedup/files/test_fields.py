"""Every field of a file by the name that people know, and all names that ExifTool sees in one."""

import json
import random
import shutil
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import ExifTags

from clip_client.dedup.metadata.facts import Facts, read_facts
from clip_client.dedup.metadata.fields import read_fields
from clip_client.dedup.metadata.names import LAYOUT
from clip_client.dedup.metadata.summary import read_metadata
from clip_client.dedup.types import Metadata
from tests.fixtures.images.camera_files import camera_jpeg, exif, with_iptc
from tests.fixtures.images.embedded_files import box, with_meta, with_pictures
from tests.fixtures.images.image_files import (
    Tag,
    file,
    jpeg,
    jpeg_with_segment,
    png_chunk,
    png_with_chunk,
    tiff,
    tiff_directory,
    with_segment,
)
from tests.fixtures.images.metadata_files import (
    HISTORY,
    REGIONS,
    WINDOWS_REGIONS,
    detailed,
    gif,
    in_xmp,
    listed,
    only,
    placed,
    png,
    raw_profile,
    tiff_with,
    xmp,
)

PLAIN = camera_jpeg(gps=True)
PHOTOSHOP = b"Photoshop 3.0\0"
BY_ANN = b"\x1c\2\x50\0\3Ann"
"""A creator in IPTC."""
DESCRIPTION = '<rdf:Description xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="4"/>'
LONG_IPTC = b"\x1c\2\x78\x80\4" + struct.pack(">I", 33_000) + b"gate " * 6_600


def resource(name: bytes, content: bytes) -> bytes:
    return name + b"\0\0" + struct.pack(">I", len(content)) + content + bytes(len(content) % 2)


IPTC_BY_ANN = resource(b"8BIM\4\4", BY_ANN)


def with_property(name: bytes, *content: bytes) -> bytes:
    def change(outer: bytes, inner: bytes) -> bytes:
        if outer != b"iprp":
            return box(outer, inner)
        size = int.from_bytes(inner[:4], "big")
        return box(outer, box(b"ipco", inner[8:size], box(name, *content)), inner[size:])

    return with_meta(file("AVIF"), change)


def with_thumbnail(*fields: Tag) -> bytes:
    first = tiff([(271, 2, b"Canon\0")])
    start = len(first)
    return jpeg_with_segment(0xE1, b"Exif\0\0" + tiff([(271, 2, b"Canon\0")], next_directory=start)
                             + tiff_directory(fields, start))  # fmt: skip


def photoshop(*resources: bytes) -> bytes:
    return jpeg_with_segment(0xED, PHOTOSHOP + b"".join(resources))


def with_resource(number: int, content: bytes) -> bytes:
    return photoshop(resource(b"8BIM" + struct.pack(">H", number), content))


XAP = b"http://ns.adobe.com/xap/1.0/\0"
LABEL, LABELLED, BY_SOMEBODY, COMMENT = xmp('xmp:Label="Red">'), {"colour label"}, {"creator"}, {"comment"}
XMP_BOX = box(b"uuid", bytes.fromhex("be7acfcb97a942e89c71999491e3afac"), LABEL)
LACKING: dict[str, tuple[bytes, set[str]]] = {
    "fields of a laboratory": (
        tiff_with((50838, 4, [28, 90]), (50839, 1, b"IJIJ of a region")), {"EXIF field 0xc696", "EXIF field 0xc697"},
    ),
    "a private field": (tiff_with((65001, 3, [7])), {"EXIF field 0xfde9"}),
    "a page, a printer and a computer": (
        tiff_with((297, 3, [3, 9]), (337, 2, b"Laser\0"), (316, 2, b"Indy\0")),
        {"page number", "target printer", "host computer"},
    ),
    "a time in a PNG": (png(Creation_Time="Sun, 7 Nov 2004 10:00"), {"date"}),
    "a date in a PNG": (png(Creation_Time="2004-11-07T10:00:00"), {"date"}),
    "a second block of EXIF": (
        with_segment(camera_jpeg(), 0xE1, jpeg(exif=only(Artist="Ann")).split(b"\xff\xe1")[1][2:]), BY_SOMEBODY,
    ),
    "a comment behind the scan": (jpeg()[:-2] + b"\xff\xfe\0\x0dAt the gate\xff\xd9", COMMENT),
    "a comment after the picture of a GIF": (file("GIF", "P")[:-1] + b"\x21\xfe\x0bAt the gate\0\x3b", COMMENT),
    "a text beside the thumbnail": (with_thumbnail((256, 3, [160]), (315, 2, b"Ann\0")), BY_SOMEBODY),
    "a typed node in XMP": (
        jpeg(xmp=LABEL.replace(b"rdf:Description ", b"own:Photo ").replace(
            b"/rdf:Description", b"/own:Photo")),
        LABELLED,
    ),
    "the envelope of IPTC": (with_resource(0x0404, b"\x1c\1\x32\0\3Ann" + BY_ANN), {"IPTC field 1:50", "creator"}),
    "a picture number of IPTC": (with_resource(0x0404, b"\x1c\3\x0a\0\3Ann"), {"IPTC field 3:10"}),
    "an address of Photoshop": (with_resource(1035, b"https://example.org"), {"web address"}),
    "channels of Photoshop": (with_resource(1006, b"\4mask"), {"alpha channel names"}),
    "bits of a PNG": (png_with_chunk(b"sBIT", b"\5\6\5"), {"significant bits"}),
    "a display of a PNG": (png_with_chunk(b"mDCV", b"?" * 24), {"mastering display"}),
    "pixels that are not square": (with_property(b"pasp", b"\0\0\0\1", b"\0\0\0\2"), {"pixel aspect ratio"}),
    "pixels of a PNG that are not square": (png_with_chunk(b"pHYs", b"\0\0\0\x0a\0\0\0\x0b\0"), {"pixel aspect ratio"}),
    "pixels of a JPEG that are not square": (jpeg(dpi=(204, 98)), {"pixel aspect ratio"}),
    "pixels of a JPEG that are nearly square": (jpeg(size=(480, 400), dpi=(200, 201)), {"pixel aspect ratio"}),
    "a side of a JPEG that was rounded": (jpeg(size=(480, 400), dpi=(201, 202)), set()),
    "pixels of a TIFF that are not square": (file("TIFF", dpi=(204, 98)), {"pixel aspect ratio"}),
    "a small chunk of a PNG": (png_with_chunk(b"priv", b"Ann"), {"unknown data"}),
    "a small segment": (jpeg_with_segment(0xEC, b"[picture info]Ann"), {"unknown data"}),
    "a time stamp behind a thumbnail": (
        with_pictures((0x010001, bytes(range(256)) * 8)) + b"1700000000000", {"unknown data"},
    ),
    "a comment for the web": (jpeg_with_segment(0xEC, b"Ducky\0\2\0\4\0\0\0\2\0\x41"), {"unknown data"}),
    "a time stamp behind a JPEG": (jpeg() + b"1700000000000\n", {"unknown data"}),
    "a comment of a PPM": (b"P6 # At the gate\n" + file("PPM")[3:], COMMENT),
    "a clipping path": (with_resource(2000, b"\1\2"), {"clipping path"}),
    "metadata of a JPEG 2000": (file("JPEG2000") + XMP_BOX, LABELLED),
    "a position of a JPEG 2000": (
        file("JPEG2000") + box(b"uuid", bytes.fromhex("b14bf8bd083d4b43a5ae8cd7d5a6ce03") + b"II*\0"), {"map position"},
    ),
    "rights of a JPEG 2000": (file("JPEG2000") + box(b"jp2i", b"<by>Ann</by>"), {"box jp2i"}),
    "a description of an AVIF": (with_property(b"udes", bytes(4), b"en\0Gate\0\0\0"), {"description"}),
    "an alternative text of an AVIF": (with_property(b"altt", bytes(4), b"At the gate\0en\0"), {"alternative text"}),
    "a label of digiKam": (in_xmp('digiKam:ColorLabel="3" digiKam:PickLabel="0">'), LABELLED),
    "people": (in_xmp(">" + listed("Iptc4xmpExt:PersonInImage", "Anna")), {"people"}),
    "a face without a name": (in_xmp(">" + REGIONS.format("", 0.5)), {"face regions"}),
    "face regions of Windows": (in_xmp(">" + WINDOWS_REGIONS.format("Anna")), {"face regions"}),
    "rights": (in_xmp(">" + listed("dc:rights", "Ann", of="Alt")), {"copyright"}),
    "a copyright": (camera_jpeg(Copyright="Ann"), {"copyright"}),
    "a hierarchy": (in_xmp(">" + listed("lr:hierarchicalSubject", "a|b")), {"hierarchical keywords"}),
    "a comment": (detailed(f9286=b"ASCII\0\0\0At the gate"), COMMENT),
    "a comment in Unicode": (detailed(f9286=b"UNICODE\0" + "Caf\u00e9".encode("utf-16-be")), COMMENT),
    "a comment in Unicode that names no charset": (detailed(f9286=bytes(8) + "Caf\u00e9".encode("utf-16-be")), COMMENT),
    "a comment behind a zero": (jpeg(comment=b"\0At the gate"), COMMENT),
    "a comment before another one": (
        with_segment(jpeg(comment=b"CREATOR: gd-jpeg v1.0"), 0xFE, b"At the gate"), COMMENT,
    ),
    "two comments in a PNG": (
        png_with_chunk(b"tEXt", b"Comment\0At the gate", png(Comment="Created with GIMP")), COMMENT,
    ),
    "a prompt": (png(parameters="a gate, 35mm"), {"prompt"}),
    "another prompt": (png(prompt='{"1": {}}', workflow="{}"), {"prompt"}),
    "texts whose keywords have a prefix": (
        png(**{"lab:sample": "37b", "Raw profile type label": "A"}), {"sample", "raw profile type label"},
    ),
    "texts that begin as the signs of programs do": (
        png_with_chunk(b"tEXt", b"Comment\0Processed by Ann", png(Title="File source: box 12", Mood="Optimized")),
        {"comment", "title", "mood"},
    ),
    "a text without a keyword": (png_with_chunk(b"tEXt", b"At the gate"), {"text"}),
    "a text that is damaged": (png_with_chunk(b"zTXt", b"Mood\0\0calm"), {"mood"}),
    "a calibration": (png_with_chunk(b"pCAL", b"bias\0"), {"pixel calibration"}),
    "text behind the pixels": (
        (made := png(Author="Ann"))[: made.index(b"tEXt") - 4] + png()[33:-12]
        + made[made.index(b"tEXt") - 4 : made.index(b"IDAT") - 4] + made[-12:],
        BY_SOMEBODY,
    ),
    "EXIF of ImageMagick": (png(**raw_profile("exif", only(Artist="Ann").tobytes())), BY_SOMEBODY),
    "EXIF of Pillow in a text": (png(**raw_profile("APP1", only(Artist="Ann").tobytes()[6:])), BY_SOMEBODY),
    "a comment of a codestream": (file("JPEG2000", comment="At the gate"), COMMENT),
    "XMP of ImageMagick": (png(**raw_profile("xmp", LABEL)), LABELLED),
    "IPTC of ImageMagick": (png(**raw_profile("iptc", IPTC_BY_ANN)), BY_SOMEBODY),
    "IPTC of ExifTool in a PNG": (
        png(Raw_profile_type_iptc=f"\nIPTC profile\n       8\n{BY_ANN.hex()}\n"), BY_SOMEBODY,
    ),
    "an address": (in_xmp('><Iptc4xmpCore:CreatorContactInfo Iptc4xmpCore:CiEmailWork="a@b.org"/>'), {"contact"}),
    "a field of an unknown program": (in_xmp('own:moodOfThePhoto="calm">'), {"mood of the photo"}),
    "another position in XMP": (
        jpeg(exif=exif(gps=True), xmp=xmp('exif:GPSLatitude="1,0N" exif:GPSLongitude="2,0E">')), {"GPS position"},
    ),
    "a city": (with_iptc(jpeg(), [(90, b"Wien")]), {"city"}),
    "a name behind 32 KiB of IPTC": (with_resource(0x0404, LONG_IPTC + BY_ANN), {"caption", "creator"}),
    "IPTC of Photoshop 2.5": (jpeg_with_segment(0xED, b"Adobe_Photoshop2.5:" + bytes(8) + IPTC_BY_ANN), BY_SOMEBODY),
    "IPTC that is cut off": (with_resource(0x0404, BY_ANN + b"\x1c"), BY_SOMEBODY),
    "IPTC behind what Lightroom writes": (photoshop(resource(b"AgHg\0\0", b"?"), IPTC_BY_ANN), BY_SOMEBODY),
    "IPTC in the second of two segments": (
        with_segment(photoshop(bytes(100), IPTC_BY_ANN), 0xED, PHOTOSHOP + resource(b"8BIM\4\x22", bytes(200))[:-100]),
        BY_SOMEBODY,
    ),
    "an unknown dataset": (with_iptc(jpeg(), [(150, b"Wien")]), {"IPTC field 2:150"}),
    "an unknown tag": (detailed(f9999="x"), {"EXIF field 0x9999"}),
    "a speed in knots, and a datum": (
        placed(f12="N", f13=7.5, f18="TOKYO"), {"GPS speed", "GPS speed ref", "GPS map datum"},
    ),
    "a second date": (jpeg(exif=exif(), xmp=xmp('photoshop:DateCreated="1975-06-07">')), {"date"}),
    "XMP of 64 KiB": (
        jpeg_with_segment(
            0xE1, b"http://ns.adobe.com/xmp/extension/\0" + b"A" * 32 + struct.pack(">II", 999, 0)
            + xmp('crs:Tint="3">'),
        ),
        {"develop settings"},
    ),
    "XMP before other XMP": (with_segment(in_xmp('crs:Tint="3">'), 0xE1, XAP + LABEL), {*LABELLED, "develop settings"}),
    "XMP that says a property twice": (
        jpeg(xmp=xmp('xmp:Rating="0">').replace(b"</rdf:RDF>", DESCRIPTION.encode() + b"</rdf:RDF>")), {"rating"},
    ),
    "XMP without a zero before it": (jpeg_with_segment(0xE1, XAP[:-1] + LABEL), LABELLED),
    "EXIF behind another byte than zero": (
        jpeg_with_segment(0xE1, b"Exif\0\xff" + only(Artist="Ann").tobytes()[6:]), BY_SOMEBODY,
    ),
    "XMP before the picture of a GIF": (gif(before=LABEL), LABELLED),
    "XMP after the picture of a GIF": (gif(behind=LABEL), LABELLED),
    "metadata of an AVIF in a box": (file("AVIF") + XMP_BOX, LABELLED),
    "metadata of a WebP by another name": (file("WEBP", xmp=LABEL).replace(b"XMP ", b"XMP\0"), LABELLED),
}  # fmt: skip


@pytest.mark.parametrize(("data", "names"), LACKING.values(), ids=LACKING)
def test_what_another_file_lacks_is_named(data: bytes, names: set[str]) -> None:
    found = read_facts(data)
    assert set(found.lost_in([read_facts(PLAIN)])) == names
    assert found.lost_in([read_facts(PLAIN), found]) == {}


def test_damaged_files_raise_nothing() -> None:
    data = with_iptc(
        jpeg(exif=exif(gps=True, Rating=3, XPTitle="Gate".encode("utf-16-le")), xmp=xmp(f'xmp:Label="Red">{HISTORY}')),
        [(5, b"Gate"), (80, b"Ann"), (55, b"20190503")],
    )
    generator = random.Random(11)
    for _ in range(80):
        damaged = bytearray(data[:2500])
        for _ in range(generator.randint(1, 12)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        assert isinstance(read_facts(bytes(damaged)), Facts)
        assert isinstance(read_metadata(bytes(damaged)), Metadata)


@pytest.mark.timeout(20)
def test_texts_that_inflate_to_gigabytes_and_a_gif_full_of_beginnings_of_xmp_are_read_at_once() -> None:
    bomb = png_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(10**7)))
    data = file("PNG")
    assert not read_facts(data[:33] + bomb * 500 + data[33:]).is_unreadable
    # To look for the end of each of them took 49 s in a file of 300 KB.
    assert not read_facts(file("GIF", "P") + b"\x21\xff\x0bXMP DataXMP?" * 20_000).is_unreadable


GROUPS = ("EXIF", "GPS", "IPTC", "XMP-dc", "XMP-xmp", "XMP-photoshop", "XMP-iptcCore", "XMP-exif", "XMP-tiff")
DIRECTORIES = {"IFD0": ExifTags.TAGS, "ExifIFD": ExifTags.TAGS, "GPS": ExifTags.GPSTAGS}


def exiftool(*arguments: str) -> str:
    return subprocess.run(["exiftool", *arguments], capture_output=True, text=True, check=False).stdout


def with_all_fields(path: Path, data: bytes) -> Path:
    """Let ExifTool write a 1 into each field that takes it, apart from those that hold pictures."""
    path.write_bytes(data)
    names = exiftool("-listw", *(f"-{group}:All" for group in GROUPS)).split()
    names = [name for name in names if name[0].isupper() and not name.endswith("Image")]
    settings = [f"-{group}:{name}=1" for group in GROUPS for name in names]
    (path.parent / "settings").write_text("\n".join(settings), encoding="utf-8")
    exiftool("-q", "-q", "-n", "-overwrite_original", "-@", str(path.parent / "settings"), str(path))
    return path


@pytest.mark.skipif(shutil.which("exiftool") is None, reason="ExifTool is not installed")
def test_all_that_exiftool_sees_is_known(tmp_path: Path) -> None:
    path = with_all_fields(tmp_path / "a.jpg", jpeg())
    fields = read_fields(path.read_bytes())
    seen: list[dict[str, Any]] = json.loads(exiftool("-j", "-n", "-D", "-a", "-u", "-G1", str(path)))
    locals_of_xmp = {name.rpartition(":")[2].lower() for name in fields.values}
    is_known: dict[str, bool] = {}
    for name, found in seen[0].items():
        group, _, local = name.partition(":")
        tag = found["id"] if isinstance(found, dict) else ""
        if group in DIRECTORIES and not (group == "IFD0" and int(tag) in LAYOUT):
            is_known[name] = DIRECTORIES[group].get(int(tag), f"EXIF field 0x{int(tag):04x}") in fields.values
        elif group == "IPTC":
            is_known[name] = f"iptc:{tag}" in fields.values
        elif group in GROUPS:
            is_known[name] = not locals_of_xmp.isdisjoint({local.lower(), str(tag).lower()})
    assert [name for name, known in is_known.items() if not known] == []
    assert len(is_known) > 100
