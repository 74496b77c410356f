"""Which facts of a file another file lacks, wherever programs have written them."""

import os
import plistlib
import sys
from pathlib import Path

import pytest

from clip_client.dedup.metadata.facts import Facts, Value, read_attributes, read_facts, read_sidecar_facts
from clip_client.dedup.metadata.merging import merged, sidecar_text
from clip_client.dedup.metadata.xmp import read_xmp, texts_of
from tests.fixtures.images import phone_files
from tests.fixtures.images.camera_files import camera_jpeg, exif, packet, with_iptc
from tests.fixtures.images.embedded_files import box
from tests.fixtures.images.image_files import file, jpeg, jpeg_with_segment, png_with_chunk
from tests.fixtures.images.metadata_files import (
    HISTORY,
    REGIONS,
    WINDOWS_REGIONS,
    detailed,
    in_xmp,
    listed,
    placed,
    png,
    xmp,
)

SAME: dict[str, tuple[bytes, bytes]] = {
    "a creator in IPTC and XMP": (
        with_iptc(jpeg(), [(80, b"Ann")]), in_xmp(">" + listed("dc:creator", "Ann", of="Seq")),
    ),
    "a text that IPTC cut off": (with_iptc(jpeg(), [(105, b"x" * 64)]), in_xmp(f'photoshop:Headline="{"x" * 80}">')),
    "a camera in XMP": (in_xmp('tiff:Make="Canon" tiff:Model="Canon EOS 5D">'), camera_jpeg()),
    "an aperture in XMP": (in_xmp('exif:FNumber="28/10" exif:ApertureValue="3">'), camera_jpeg()),
    "a list of numbers in XMP": (in_xmp(">" + listed("exif:FNumber", "2.8", of="Seq")), camera_jpeg()),
    "a lens that is in the maker's notes": (in_xmp('aux:Lens="EF50mm" aux:LensID="7">'), camera_jpeg()),
    "a date in XMP": (in_xmp('photoshop:DateCreated="2019-05-03T10:11:12.50+02:00">'), camera_jpeg()),
    "a time zone and a fraction": (
        detailed(f9011="+02:00", f9291="50"),
        jpeg(exif=exif(), xmp=xmp('photoshop:DateCreated="2019-05-03T10:11:12.5+02:00">')),
    ),
    "a comment in another form": (detailed(f9286=b"ASCII\0\0\0Tor"), detailed(f9286=b"UNICODE\0T\0o\0r\0")),
    "a face in another program's form": (
        in_xmp(">" + WINDOWS_REGIONS.format("Anna")), in_xmp(">" + REGIONS.format("Anna", 0.5)),
    ),
    "a face of a cropped copy": (in_xmp(">" + REGIONS.format("Anna", 0.7)), in_xmp(">" + REGIONS.format("Anna", 0.5))),
    "a face without a name": (in_xmp(">" + REGIONS.format("", 0.5)), in_xmp(">" + REGIONS.format("Anna", 0.5))),
    "a rating as a text": (in_xmp('xmp:Rating="4.0">'), camera_jpeg(Rating=4)),
    "keywords of Windows": (
        camera_jpeg(XPKeywords="a;b\0".encode("utf-16-le")),
        jpeg(exif=exif(), xmp=xmp(">" + listed("dc:subject", "a", "b"))),
    ),
    "a hierarchy by another separator": (
        in_xmp(">" + listed("digiKam:TagsList", "a/b")), in_xmp(">" + listed("lr:hierarchicalSubject", "a|b")),
    ),
    "an altitude that was rounded": (placed(f6=340.5), placed(f6=341.0)),
    "notes of a maker that were moved": (camera_jpeg(MakerNote=b"other offsets"), camera_jpeg()),
    "a text that Pillow wrote": (camera_jpeg(Artist="J??rgen"), camera_jpeg(Artist="J\u00fcrgen".encode())),
    "a list in another order": (
        in_xmp(">" + listed("dc:creator", "a", "b")), in_xmp(">" + listed("dc:creator", "b", "a")),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "other"), SAME.values(), ids=SAME)
def test_a_fact_that_is_written_in_another_place_is_not_lost(data: bytes, other: bytes) -> None:
    assert read_facts(data).lost_in([read_facts(other)]) == {}


@pytest.mark.parametrize(
    ("kept", "copy"),
    [
        ({"seven"}, {(7.0,)}),
        ({(7.0,)}, {"seven"}),
        ({None}, {"seven"}),
        ({(7.0,), ""}, {(8.0,)}),
        ({(99.0,)}, {(100.0,)}),
    ],
)
def test_a_value_of_another_type_is_not_the_same_value(kept: set[Value], copy: set[Value]) -> None:
    assert Facts(said={"mood": copy}).lost_in([Facts(said={"mood": kept})]) == {"mood": copy}
    assert Facts(said={"mood": {(7.0,)}}).lost_in([Facts(said={"mood": {"7"}})]) == {}


def test_numbers_of_private_fields_are_never_rounded_or_cut_off() -> None:
    def tied(*numbers: float) -> Facts:
        return read_facts(file("TIFF", tiffinfo={33922: numbers}))

    kept = tied(0.5, 0.5, 0.0, 440720.5, 5301234.25, 0.0)
    for other in (
        tied(0.5, 0.5, 0.0, 446720.5, 5301234.25, 0.0),
        tied(*(0.5, 0.5, 0.0, 440720.5, 5301234.25, 0.0) * 4),
    ):
        assert set(other.lost_in([kept])) == {"EXIF field 0x8482"}


def test_a_name_is_lost_if_the_other_face_has_none() -> None:
    named, nameless = (read_facts(in_xmp(">" + REGIONS.format(name, 0.5))) for name in ("Anna", ""))
    assert named.lost_in([nameless]) == {"face regions": {"Anna"}}


HOUSEKEEPING: dict[str, bytes] = {
    "a history": in_xmp(f'xmpMM:DocumentID="1" xmpMM:InstanceID="2">{HISTORY}'),
    "an id in RDF": jpeg(xmp=xmp(">").replace(b'rdf:about=""', b'rdf:about="uuid:faf5bdd5"')),
    "programs": camera_jpeg(Software="GIMP 3", ProcessingSoftware="x", DateTime="2024:01:01 10:00:00"),
    "programs in XMP": in_xmp('xmp:CreatorTool="x" xmp:ModifyDate="2024-01-01" xmp:MetadataDate="2024-01-01">'),
    "sizes": camera_jpeg(ExifImageWidth=1, ExifImageHeight=2, XResolution=300.0, YResolution=300.0, Orientation=6),
    "sizes in XMP": in_xmp('tiff:ImageWidth="1" exif:PixelXDimension="2" tiff:XResolution="300/1">'),
    "versions": detailed(f9000=b"0232", fA000=b"0100", fA001=1),
    "empty fields": detailed(f9286=bytes(64), f9999=""),
    "a sign of a program": jpeg(comment=b"CREATOR: gd-jpeg v1.0 (using IJG JPEG v62), quality = 90"),
    "a sign of a program in a PNG": png(comment="Created with GIMP"),
    "a sign of a program that compresses": jpeg(comment=b"Compressed by jpeg-recompress"),
    "a sign of a shop": jpeg(comment=b"Processed By eBay with ImageMagick, z1.1.0. ||B2"),
    "a code of Facebook": with_iptc(jpeg(), [(40, b"FBMD0a000a"), (103, b"xYz")]),
    "the version of IPTC": with_iptc(jpeg(), [(0, b"\0\4"), (65, b"x"), (70, b"1")]),
    "what thumbnailers and ImageMagick write": png(
        **{"date:create": "2024", "Thumb::URI": "file:///a", "Software": "x", "exif:FNumber": "28/10", "signature": "a"}
    ),
    "the character set of IPTC": jpeg_with_segment(
        0xED, b"Photoshop 3.0\0" + b"8BIM\4\4\0\0\0\0\0\x08\x1c\1\x5a\0\3\x1b%G"
    ),
    "resolutions": jpeg(dpi=(300, 300)),
    "resolutions of a PNG": file("PNG", dpi=(300, 300)),
    "resolutions of a TIFF": file("TIFF", dpi=(300, 300)),
    "bits of a PNG": png_with_chunk(b"sBIT", b"\x08\x08\x08"),
    "a chunk of Apple": png_with_chunk(b"iDOT", b"?" * 28),
    "quality for the web": jpeg_with_segment(0xEC, b"Ducky\0\1\0\4\0\0\0\x3c\0\0"),
    "a line break behind a JPEG": jpeg() + b"\r\n",
    "no rating": camera_jpeg(Rating=0),
    "no rating in XMP": in_xmp('xmp:Rating="0">'),
    "no position": in_xmp('exif:GPSLatitude="0,0.0N" exif:GPSLongitude="0,0.0E">'),
    "layout of a TIFF": file("TIFF"),
    "date of digitisation of an export": jpeg(exif=exif(), xmp=xmp('xmp:CreateDate="2024-01-01">')),
}


@pytest.mark.parametrize("data", HOUSEKEEPING.values(), ids=HOUSEKEEPING)
def test_housekeeping_says_nothing(data: bytes) -> None:
    assert read_facts(data).lost_in([read_facts(camera_jpeg())]) == {}


@pytest.mark.parametrize("image_format", ["JPEG", "WEBP", "PNG", "TIFF", "AVIF", "HEIF"])
def test_a_copy_with_all_metadata_says_nothing_that_the_original_lacks(image_format: str) -> None:
    made = exif(gps=True, Artist="Ann", Copyright="Ann", ImageDescription="A gate", Orientation=1)
    made.get_ifd(0x8769).update({0x9286: b"ASCII\0\0\0At the gate", 0x829A: 0.0166666, 0x9204: -1 / 3})
    said = xmp(f'xmp:Label="Red" crs:Tint="3" xmp:Rating="4">{REGIONS.format("Anna", 0.5)}')
    original = jpeg(exif=made, xmp=said)
    options = {"xmp": said} if image_format != "TIFF" else {"tiffinfo": {700: said}}
    copy = phone_files.heic(exif=made, xmp=said) if image_format == "HEIF" else file(image_format, exif=made, **options)
    assert read_facts(copy).lost_in([read_facts(original)]) == {}
    if image_format not in ("TIFF", "PNG"):  # whose writers leave out one of the blocks
        assert read_facts(original).lost_in([read_facts(copy)]) == {}


def test_what_stands_behind_a_zero_counts() -> None:
    whole, beginning = (read_facts(jpeg(comment=text)) for text in (b"Ann\0at the gate", b"Ann\0\0"))
    assert whole.lost_in([beginning]) == {"comment": {"Ann at the gate"}}
    both, one = (read_facts(camera_jpeg(Artist=text)) for text in ("Ann\0Bob", "Ann"))
    assert (both.lost_in([one]), one.lost_in([both])) == ({"creator": {"Bob"}}, {})


def test_a_depth_is_not_an_altitude() -> None:
    above, below = (read_facts(placed(f5=reference, f6=340.5)) for reference in (b"\0", b"\1"))
    assert (set(above.lost_in([below])), set(below.lost_in([above]))) == ({"altitude"}, {"altitude"})
    in_xmp = read_facts(jpeg(exif=exif(gps=True), xmp=xmp('exif:GPSAltitude="681/2" exif:GPSAltitudeRef="1">')))
    assert in_xmp.lost_in([below]) == below.lost_in([in_xmp]) == {}


def test_creators_are_written_in_their_order() -> None:
    kept, copy = (read_facts(in_xmp(">" + listed("dc:creator", *names, of="Seq"))) for names in ("yx", "zax"))
    written = read_xmp(sidecar_text(merged(Facts(), copy, [kept])))
    assert texts_of(written["dc:creator"]) == ["y", "x", "z", "a"]


def test_files_that_cannot_be_read_are_told_from_files_that_say_nothing() -> None:
    assert read_facts(b"no image") == Facts()
    assert read_facts(jpeg()[:40]).is_unreadable
    assert read_facts(box(b"ftyp", b"mif3heic") + box(b"mini", b"Exif")).is_unreadable
    assert read_facts(png(Raw_profile_type_exif="\nexif\n 8\nno digits\n")).is_unreadable


def test_a_structure_of_any_depth_is_read_at_once() -> None:
    deep = "<own:a>" * 20_000 + "x" + "</own:a>" * 20_000
    assert read_facts(file("TIFF", tiffinfo={700: xmp(f">{deep}")})) == read_facts(jpeg())


def test_many_words_are_compared_without_each_with_each() -> None:
    one, other = (Facts(said={"words": {f"{start} {number:40}" for number in range(50_000)}}) for start in "ab")
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
    os.setxattr(one, "user.list", b"red\0blue")
    os.setxattr(other, "user.list", b"red")
    os.setxattr(one, "user.number", b"x\1")
    os.setxattr(other, "user.number", b"x\2")
    for housekeeping in ("user.com.apple.quarantine", "user.com.dropbox.attrs", "user.DOSATTRIB"):
        os.setxattr(one, housekeeping, b"1")
    lost = read_attributes(str(one)).lost_in([read_attributes(str(other))])
    assert set(lost) == {"file tags", "Finder tags", "Finder label", "file comment", "own", "list", "number"}
    os.setxattr(other, "user.xdg.tags", b"blue,red")
    assert "file tags" not in read_attributes(str(one)).lost_in([read_attributes(str(other))])
    assert read_attributes(str(tmp_path / "gone")) == Facts()


DAY, MORNING = ('photoshop:DateCreated="2019-05-03">', 'photoshop:DateCreated="2019-05-03T10:11:12">')
HERE, NEAR, AWAY = (f'exif:GPSLatitude="1,0N" exif:GPSLongitude="{east}E">' for east in ("2,0", "1,59.994", "2,0.06"))
RATED, TITLED = 'xmp:Rating="4">', 'dc:title="Gate">'


def words(name: str, *words: str) -> str:
    return ">" + listed(name, *words)


@pytest.mark.parametrize(
    ("copy", "kept", "missing", "differing"),
    [
        (DAY, MORNING, [], []),
        (MORNING, DAY, ["date"], []),
        ('xmp:CreateDate="2019-05-03">', ">", ["date"], []),
        ('xmp:CreateDate="2019-05-03">', DAY, [], []),
        ('photoshop:DateCreated="2019-05-04">', MORNING, [], ["date"]),
        ('photoshop:DateCreated="2019-05-04">', 'xmp:CreateDate="2019-05-04" ' + MORNING, [], ["date"]),
        (HERE, ">", ["GPS position"], []),
        (HERE, NEAR, [], []),
        (HERE, AWAY, [], ["GPS position"]),
        (RATED, ">", ["rating"], []),
        (RATED, 'xmp:Rating="3">', [], ["rating"]),
        (">", RATED, [], []),
        (words("dc:subject", "a", "b"), words("dc:subject", "b", "c"), ["keywords"], []),
        (words("dc:subject", "a"), words("dc:subject", "a", "c"), [], []),
        (words("dc:creator", "Ann"), words("dc:creator", "Bob"), ["creator"], []),
        ('dc:title="a" dc:description="b" dc:rights="c">', ">", ["title", "caption", "copyright"], []),
        (TITLED, 'dc:title="Tor">', [], ["title"]),
        ('dc:description="Gate">', 'dc:description="Tor">', [], ["caption"]),
        ('photoshop:Headline="a" photoshop:City="b" photoshop:Source="c">', ">", ["headline", "city", "source"], []),
        (words("dc:title", "one", "two"), ">", [], ["title"]),
        ('xmp:Label="Red" exif:FNumber="2">', ">", [], ["colour label", "aperture"]),
    ],
)
def test_facts_are_compared_by_what_they_say(copy: str, kept: str, missing: list[str], differing: list[str]) -> None:
    said, known = (read_sidecar_facts(packet(one)) for one in (copy, kept))
    assert set(said.lost_in([known])) == {*missing, *differing}
    written = sidecar_text(merged(Facts(), said, [known]))
    assert set(said.lost_in([known, read_sidecar_facts(written)])) == set(differing)


@pytest.mark.parametrize(
    "data",
    [
        with_iptc(jpeg(), [(120, b"A gate\rand a wall"), (80, b"Ann"), (92, b"Prater")]),
        jpeg(exif=exif(XPComment="A gate\r\nand a wall".encode("utf-16-le"), Artist="Ann", Rating=3)),
    ],
    ids=["IPTC", "Windows"],
)
def test_what_is_merged_is_what_was_written(data: bytes) -> None:
    said = read_facts(data)
    packet_written = sidecar_text(merged(Facts(), said, [read_facts(jpeg(exif=exif()))]))
    assert read_xmp(packet_written)["dc:description"] == [{"": ["A gate\nand a wall"]}]
    assert said.lost_in([read_facts(jpeg(exif=exif())), read_sidecar_facts(packet_written)]) == {}


@pytest.mark.parametrize("text", ["\u5bb6\u65cf\u3000\u65c5", "10\u00a0km", "\U0001f469\u200d\U0001f680", "\ue0a0"])
def test_every_character_of_a_caption_stays(text: str) -> None:
    said = read_facts(in_xmp(f'dc:description="{text}">'))
    written = sidecar_text(merged(Facts(), said, [read_facts(jpeg())]))
    assert read_xmp(written)["dc:description"] == [{"": [text]}]
    assert read_facts(camera_jpeg(Artist="A\x1b[31m\x9bn\x85".encode())).said["creator"] == {"A[31mn"}
