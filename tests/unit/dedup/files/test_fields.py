"""Every field of a file by the name that people know, and which of them another file lacks."""

from __future__ import annotations

import os
import plistlib
import random
import struct
import sys
from typing import TYPE_CHECKING, Any

import pytest
from PIL import PngImagePlugin

from clip_client.dedup.files.fields import Fields, read_attributes, read_fields, read_sidecar_fields
from clip_client.dedup.files.metadata import read_metadata
from clip_client.dedup.types import Metadata
from tests.fixtures.images import phone_files
from tests.fixtures.images.camera_files import camera_jpeg, exif, packet, with_iptc
from tests.fixtures.images.image_files import file, jpeg, jpeg_with_segment, png_with_chunk, with_segment

if TYPE_CHECKING:
    from pathlib import Path

NAMESPACES = " ".join(
    f'xmlns:{prefix}="{uri}"'
    for prefix, uri in {
        "tiff": "http://ns.adobe.com/tiff/1.0/",
        "aux": "http://ns.adobe.com/exif/1.0/aux/",
        "crs": "http://ns.adobe.com/camera-raw-settings/1.0/",
        "lr": "http://ns.adobe.com/lightroom/1.0/",
        "mwg-rs": "http://www.metadataworkinggroup.com/schemas/regions/",
        "stArea": "http://ns.adobe.com/xmp/sType/Area#",
        "MP": "http://ns.microsoft.com/photo/1.2/",
        "MPRI": "http://ns.microsoft.com/photo/1.2/t/RegionInfo#",
        "MPReg": "http://ns.microsoft.com/photo/1.2/t/Region#",
        "Iptc4xmpExt": "http://iptc.org/std/Iptc4xmpExt/2008-02-29/",
        "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
        "xmpMM": "http://ns.adobe.com/xap/1.0/mm/",
        "stEvt": "http://ns.adobe.com/xap/1.0/sType/ResourceEvent#",
        "digiKam": "http://www.digikam.org/ns/1.0/",
        "own": "http://example.org/own/1.0/",
    }.items()
)
REGIONS = """<mwg-rs:Regions rdf:parseType="Resource"><mwg-rs:AppliedToDimensions stArea:w="4000" stArea:h="3000"/>
<mwg-rs:RegionList><rdf:Bag><rdf:li><rdf:Description mwg-rs:Name="{}" mwg-rs:Type="Face">
<mwg-rs:Area stArea:x="{}" stArea:y="0.5" stArea:w="0.1" stArea:h="0.1"/></rdf:Description></rdf:li></rdf:Bag>
</mwg-rs:RegionList></mwg-rs:Regions>"""
WINDOWS_REGIONS = """<MP:RegionInfo rdf:parseType="Resource"><MPRI:Regions><rdf:Bag><rdf:li
MPReg:Rectangle="0.4, 0.4, 0.1, 0.1" MPReg:PersonDisplayName="{}"/></rdf:Bag></MPRI:Regions></MP:RegionInfo>"""
HISTORY = """<xmpMM:History><rdf:Seq><rdf:li stEvt:action="saved" stEvt:when="2024-01-01T10:00:00"/></rdf:Seq>
</xmpMM:History>"""


def xmp(inner: str) -> bytes:
    return packet(f"{NAMESPACES} {inner}")


def listed(name: str, *items: str, of: str = "Bag") -> str:
    inside = "".join(f"<rdf:li>{item}</rdf:li>" for item in items)
    return f"<{name}><rdf:{of}>{inside}</rdf:{of}></{name}>"


def png(**texts: str) -> bytes:
    info = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        info.add_text(name.replace("_", " "), text)
    return file("PNG", pnginfo=info)


def raw_profile(kind: str, block: bytes) -> dict[str, str]:
    """How ImageMagick puts a block into a PNG."""
    return {f"Raw_profile_type_{kind}": f"\n{kind}\n{len(block):8}\n{block.hex()}\n"}


def gif(*, before: bytes = b"", behind: bytes = b"") -> bytes:
    """A GIF with XMP before or behind its picture, as the specification of XMP puts it there."""
    blocks = [
        b"\x21\xff\x0bXMP DataXMP" + one + b"\1" + bytes(range(255, -1, -1)) + b"\0" if one else b""
        for one in (before, behind)
    ]
    data = file("GIF", "P")
    picture_at = 13 + 3 * 2 ** ((data[10] & 7) + 1)
    return b"GIF89a" + data[6:picture_at] + blocks[0] + data[picture_at:-1] + blocks[1] + data[-1:]


def detailed(**details: Any) -> bytes:
    """A JPEG of a camera with more fields in the directory of details, by their numbers as ``f9286``."""
    made = exif()
    made.get_ifd(0x8769).update({int(name[1:], 16): value for name, value in details.items()})
    return jpeg(exif=made)


def placed(**fields: Any) -> bytes:
    """A JPEG of a camera with a position and more fields of GPS, by their numbers as ``f6``."""
    made = exif(gps=True)
    made.get_ifd(0x8825).update({int(name[1:]): value for name, value in fields.items()})
    return jpeg(exif=made)


PLAIN = camera_jpeg(gps=True)
LACKING: dict[str, tuple[bytes, set[str]]] = {
    "a label": (jpeg(xmp=xmp('xmp:Label="Red">')), {"colour label"}),
    "a label of digiKam": (jpeg(xmp=xmp('digiKam:ColorLabel="3" digiKam:PickLabel="0">')), {"colour label"}),
    "people": (jpeg(xmp=xmp(">" + listed("Iptc4xmpExt:PersonInImage", "Anna"))), {"people"}),
    "face regions": (jpeg(xmp=xmp(">" + REGIONS.format("Anna", 0.5))), {"face regions"}),
    "a face without a name": (jpeg(xmp=xmp(">" + REGIONS.format("", 0.5))), {"face regions"}),
    "face regions of Windows": (jpeg(xmp=xmp(">" + WINDOWS_REGIONS.format("Anna"))), {"face regions"}),
    "a creator in XMP": (jpeg(xmp=xmp(">" + listed("dc:creator", "Ann", of="Seq"))), {"creator"}),
    "a creator in EXIF": (camera_jpeg(Artist="Ann"), {"creator"}),
    "a creator in IPTC": (with_iptc(jpeg(), [(80, b"Ann")]), {"creator"}),
    "a creator in a PNG": (png(Author="Ann"), {"creator"}),
    "rights": (jpeg(xmp=xmp(">" + listed("dc:rights", "Ann", of="Alt"))), {"copyright"}),
    "a copyright": (camera_jpeg(Copyright="Ann"), {"copyright"}),
    "settings": (jpeg(xmp=xmp('crs:Exposure2012="+0.50" crs:Tint="3">')), {"develop settings"}),
    "a hierarchy": (jpeg(xmp=xmp(">" + listed("lr:hierarchicalSubject", "a|b"))), {"hierarchical keywords"}),
    "a comment": (detailed(f9286=b"ASCII\0\0\0At the gate"), {"comment"}),
    "a comment in Unicode": (detailed(f9286=b"UNICODE\0" + "Caf\u00e9".encode("utf-16-be")), {"comment"}),
    "a comment of a JPEG": (jpeg(comment=b"At the gate"), {"comment"}),
    "a comment before another one": (
        with_segment(jpeg(comment=b"CREATOR: gd-jpeg v1.0"), 0xFE, b"At the gate"), {"comment"},
    ),
    "two comments in a PNG": (
        png_with_chunk(b"tEXt", b"Comment\0At the gate", png(Comment="Created with GIMP")), {"comment"},
    ),
    "a prompt": (png(parameters="a gate, 35mm"), {"prompt"}),
    "another prompt": (png(prompt='{"1": {}}', workflow="{}"), {"prompt"}),
    "text of an unknown program": (png(Mood="calm"), {"mood"}),
    "text behind the pixels": (
        (made := png(Author="Ann"))[: made.index(b"tEXt") - 4] + png()[33:-12]
        + made[made.index(b"tEXt") - 4 : made.index(b"IDAT") - 4] + made[-12:],
        {"creator"},
    ),
    "XMP of ImageMagick": (png(**raw_profile("xmp", xmp('xmp:Label="Red">'))), {"colour label"}),
    "IPTC of ImageMagick": (
        png(**raw_profile("iptc", b"8BIM\4\4\0\0\0\0\0\x08\x1c\2\x50\0\3Ann")), {"creator"},
    ),
    "an address": (
        jpeg(xmp=xmp('><Iptc4xmpCore:CreatorContactInfo Iptc4xmpCore:CiEmailWork="a@b.org"/>')), {"contact"},
    ),
    "a field of an unknown program": (jpeg(xmp=xmp('own:moodOfThePhoto="calm">')), {"mood of the photo"}),
    "a city": (with_iptc(jpeg(), [(90, b"Wien")]), {"city"}),
    "an unknown dataset": (with_iptc(jpeg(), [(150, b"Wien")]), {"IPTC field 2:150"}),
    "an unknown tag": (detailed(f9999="x"), {"EXIF field 0x9999"}),
    "an altitude": (placed(f6=340.5), {"altitude"}),
    "a second date": (
        jpeg(exif=exif(), xmp=xmp('photoshop:DateCreated="1975-06-07">')), {"date"},
    ),
    "XMP of 64 KiB": (
        jpeg_with_segment(
            0xE1, b"http://ns.adobe.com/xmp/extension/\0" + b"A" * 32 + struct.pack(">II", 999, 0)
            + xmp('crs:Tint="3">'),
        ),
        {"develop settings"},
    ),
    "XMP before other XMP": (
        with_segment(
            jpeg(xmp=xmp('crs:Tint="3">')), 0xE1, b"http://ns.adobe.com/xap/1.0/\0" + xmp('xmp:Label="Red">')
        ),
        {"colour label", "develop settings"},
    ),
    "XMP before the picture of a GIF": (gif(before=xmp('xmp:Label="Red">')), {"colour label"}),
    "XMP behind the picture of a GIF": (gif(behind=xmp('xmp:Label="Red">')), {"colour label"}),
    "metadata of a HEIC": (phone_files.heic(exif=exif(), xmp=xmp('xmp:Label="Red">')), {"colour label"}),
    "metadata of a WebP": (file("WEBP", xmp=xmp('xmp:Label="Red">')), {"colour label"}),
    "metadata of a TIFF": (file("TIFF", tiffinfo={700: xmp('xmp:Label="Red">')}), {"colour label"}),
}  # fmt: skip


@pytest.mark.parametrize(("data", "names"), LACKING.values(), ids=LACKING)
def test_what_another_file_lacks_is_named(data: bytes, names: set[str]) -> None:
    found = read_fields(data)
    assert set(found.lost_in([read_fields(PLAIN)])) == names
    assert found.lost_in([read_fields(PLAIN), found]) == {}


SAME: dict[str, tuple[bytes, bytes]] = {
    "a creator in IPTC and XMP": (
        with_iptc(jpeg(), [(80, b"Ann")]), jpeg(xmp=xmp(">" + listed("dc:creator", "Ann", of="Seq"))),
    ),
    "a text that IPTC cut off": (
        with_iptc(jpeg(), [(105, b"x" * 64)]), jpeg(xmp=xmp(f'photoshop:Headline="{"x" * 80}">')),
    ),
    "a camera in XMP": (jpeg(xmp=xmp('tiff:Make="Canon" tiff:Model="Canon EOS 5D">')), camera_jpeg()),
    "an aperture in XMP": (jpeg(xmp=xmp('exif:FNumber="28/10" exif:ApertureValue="3">')), camera_jpeg()),
    "a list of numbers in XMP": (jpeg(xmp=xmp(">" + listed("exif:FNumber", "2.8", of="Seq"))), camera_jpeg()),
    "a lens that is in the maker's notes": (jpeg(xmp=xmp('aux:Lens="EF50mm" aux:LensID="7">')), camera_jpeg()),
    "a date in XMP": (jpeg(xmp=xmp('photoshop:DateCreated="2019-05-03T10:11:12.50+02:00">')), camera_jpeg()),
    "a time zone and a fraction": (
        detailed(f9011="+02:00", f9291="50"),
        jpeg(exif=exif(), xmp=xmp('photoshop:DateCreated="2019-05-03T10:11:12.5+02:00">')),
    ),
    "a comment in another form": (detailed(f9286=b"ASCII\0\0\0Tor"), detailed(f9286=b"UNICODE\0T\0o\0r\0")),
    "a face in another program's form": (
        jpeg(xmp=xmp(">" + WINDOWS_REGIONS.format("Anna"))), jpeg(xmp=xmp(">" + REGIONS.format("Anna", 0.5))),
    ),
    "a face of a cropped copy": (
        jpeg(xmp=xmp(">" + REGIONS.format("Anna", 0.7))), jpeg(xmp=xmp(">" + REGIONS.format("Anna", 0.5))),
    ),
    "a face without a name": (
        jpeg(xmp=xmp(">" + REGIONS.format("", 0.5))), jpeg(xmp=xmp(">" + REGIONS.format("Anna", 0.5))),
    ),
    "a rating as a text": (jpeg(xmp=xmp('xmp:Rating="4.0">')), camera_jpeg(Rating=4)),
    "keywords of Windows": (
        camera_jpeg(XPKeywords="a;b\0".encode("utf-16-le")),
        jpeg(exif=exif(), xmp=xmp(">" + listed("dc:subject", "a", "b"))),
    ),
    "a hierarchy by another separator": (
        jpeg(xmp=xmp(">" + listed("digiKam:TagsList", "a/b"))),
        jpeg(xmp=xmp(">" + listed("lr:hierarchicalSubject", "a|b"))),
    ),
    "an altitude that was rounded": (placed(f6=340.5), placed(f6=341.0)),
    "notes of a maker that were moved": (camera_jpeg(MakerNote=b"other offsets"), camera_jpeg()),
    "a text that Pillow wrote": (camera_jpeg(Artist="J??rgen"), camera_jpeg(Artist="J\u00fcrgen".encode())),
    "a list in another order": (
        jpeg(xmp=xmp(">" + listed("dc:creator", "a", "b"))), jpeg(xmp=xmp(">" + listed("dc:creator", "b", "a"))),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "other"), SAME.values(), ids=SAME)
def test_a_fact_that_is_written_in_another_place_is_not_lost(data: bytes, other: bytes) -> None:
    assert read_fields(data).lost_in([read_fields(other)]) == {}


def test_a_name_is_lost_if_the_other_face_has_none() -> None:
    named, nameless = (read_fields(jpeg(xmp=xmp(">" + REGIONS.format(name, 0.5)))) for name in ("Anna", ""))
    assert named.lost_in([nameless]) == {"face regions": {"Anna"}}


HOUSEKEEPING: dict[str, bytes] = {
    "a history": jpeg(xmp=xmp(f'xmpMM:DocumentID="1" xmpMM:InstanceID="2">{HISTORY}')),
    "an id in RDF": jpeg(xmp=xmp(">").replace(b'rdf:about=""', b'rdf:about="uuid:faf5bdd5"')),
    "programs": camera_jpeg(
        Software="GIMP 3", ProcessingSoftware="x", HostComputer="y", DateTime="2024:01:01 10:00:00"
    ),
    "programs in XMP": jpeg(xmp=xmp('xmp:CreatorTool="x" xmp:ModifyDate="2024-01-01" xmp:MetadataDate="2024-01-01">')),
    "sizes": camera_jpeg(ExifImageWidth=1, ExifImageHeight=2, XResolution=300.0, YResolution=300.0, Orientation=6),
    "sizes in XMP": jpeg(xmp=xmp('tiff:ImageWidth="1" exif:PixelXDimension="2" tiff:XResolution="300/1">')),
    "versions": detailed(f9000=b"0232", fA000=b"0100", fA001=1),
    "empty fields": detailed(f9286=bytes(64), f9999=""),
    "a sign of a program": jpeg(comment=b"CREATOR: gd-jpeg v1.0 (using IJG JPEG v62), quality = 90"),
    "a sign of a program in a PNG": png(comment="Created with GIMP"),
    "a code of Facebook": with_iptc(jpeg(), [(40, b"FBMD0a000a"), (103, b"xYz")]),
    "the version of IPTC": with_iptc(jpeg(), [(0, b"\0\4"), (65, b"x"), (70, b"1")]),
    "what thumbnailers and ImageMagick write": png(
        **{"date:create": "2024", "Thumb::URI": "file:///a", "Software": "x", "exif:FNumber": "28/10", "signature": "a"}
    ),
    "no rating": camera_jpeg(Rating=0),
    "no rating in XMP": jpeg(xmp=xmp('xmp:Rating="0">')),
    "no position": jpeg(xmp=xmp('exif:GPSLatitude="0,0.0N" exif:GPSLongitude="0,0.0E">')),
    "layout of a TIFF": file("TIFF"),
    "date of digitisation of an export": jpeg(exif=exif(), xmp=xmp('xmp:CreateDate="2024-01-01">')),
}


@pytest.mark.parametrize("data", HOUSEKEEPING.values(), ids=HOUSEKEEPING)
def test_housekeeping_says_nothing(data: bytes) -> None:
    assert read_fields(data).lost_in([read_fields(camera_jpeg())]) == {}


@pytest.mark.parametrize("image_format", ["JPEG", "WEBP", "PNG", "TIFF", "AVIF", "HEIF"])
def test_a_copy_with_all_metadata_says_nothing_that_the_original_lacks(image_format: str) -> None:
    made = exif(gps=True, Artist="Ann", Copyright="Ann", ImageDescription="A gate", Orientation=1)
    made.get_ifd(0x8769).update({0x9286: b"ASCII\0\0\0At the gate", 0x829A: 0.0166666, 0x9204: -1 / 3})
    said = xmp(f'xmp:Label="Red" crs:Tint="3" xmp:Rating="4">{REGIONS.format("Anna", 0.5)}')
    original = jpeg(exif=made, xmp=said)
    options = {"xmp": said} if image_format != "TIFF" else {"tiffinfo": {700: said}}
    copy = phone_files.heic(exif=made, xmp=said) if image_format == "HEIF" else file(image_format, exif=made, **options)
    assert read_fields(copy).lost_in([read_fields(original)]) == {}
    if image_format not in ("TIFF", "PNG"):  # whose writers leave out one of the blocks
        assert read_fields(original).lost_in([read_fields(copy)]) == {}


def test_a_sidecar_may_say_it() -> None:
    said = xmp('xmp:Label="Red">')
    assert read_fields(jpeg(xmp=said)).lost_in([read_fields(jpeg()), read_sidecar_fields(said)]) == {}
    assert read_sidecar_fields(b"no XMP") == Fields()


def test_files_that_cannot_be_read_are_told_from_files_that_say_nothing() -> None:
    assert read_fields(b"no image") == Fields()
    assert read_fields(jpeg()[:40]).is_unreadable


def test_a_structure_of_any_depth_is_read_at_once() -> None:
    deep = "<own:a>" * 20_000 + "x" + "</own:a>" * 20_000
    assert read_fields(file("TIFF", tiffinfo={700: xmp(f">{deep}")})) == read_fields(jpeg())


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
        assert isinstance(read_fields(bytes(damaged)), Fields)
        assert isinstance(read_metadata(bytes(damaged))[1], Metadata)


@pytest.mark.timeout(20)
def test_a_gif_full_of_beginnings_of_xmp_is_read_at_once() -> None:
    """To look for the end of each of them took 49 s in a file of 300 KB."""
    said = read_fields(file("GIF", "P") + b"\x21\xff\x0bXMP DataXMP?" * 20_000)
    assert not said.is_unreadable


def test_many_words_are_compared_without_each_with_each() -> None:
    one, other = (Fields(said={"words": {f"{start} {number:40}" for number in range(50_000)}}) for start in "ab")
    assert len(one.lost_in([other])["words"]) == 50_000  # each with each would take minutes
    assert one.lost_in([other, one]) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="sets attributes as Linux does")
def test_tags_and_comments_of_file_managers_are_read(tmp_path: Path) -> None:
    one, other = tmp_path / "1.jpg", tmp_path / "2.jpg"
    for path in (one, other):
        path.write_bytes(b"x")
    try:
        os.setxattr(one, "user.xdg.tags", b"red,blue")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    finder = plistlib.dumps(["Red\n6"], fmt=plistlib.FMT_BINARY)
    os.setxattr(one, "user.com.apple.metadata:_kMDItemUserTags", finder)
    os.setxattr(one, "user.com.apple.FinderInfo", bytes(9) + b"\x0c" + bytes(22))
    os.setxattr(one, "user.xdg.comment", b"At the gate")
    os.setxattr(one, "user.own", b"\xff")
    for housekeeping in ("user.com.apple.quarantine", "user.com.dropbox.attrs", "user.DOSATTRIB"):
        os.setxattr(one, housekeeping, b"1")
    lost = read_attributes(str(one)).lost_in([read_attributes(str(other))])
    assert set(lost) == {"file tags", "Finder tags", "Finder label", "file comment", "own"}
    os.setxattr(other, "user.xdg.tags", b"blue,red")
    assert "file tags" not in read_attributes(str(one)).lost_in([read_attributes(str(other))])
    assert read_attributes(str(tmp_path / "gone")) == Fields()
