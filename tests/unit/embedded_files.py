"""Image files that hold more than a picture, laid out as cameras write them."""

from __future__ import annotations

import struct

from tests.unit import image_files

XMP = b"http://ns.adobe.com/xap/1.0/\0"
XMP_EXTENSION = b"http://ns.adobe.com/xmp/extension/\0"
MP4 = b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + b"\0\0\1\0mdat" + bytes(range(248))
STILL = image_files.jpeg()
OTHER = image_files.encoded(image_files.picture("L", (32, 24), seed=5), "JPEG")


def with_segments(*segments: tuple[int, bytes], still: bytes = STILL) -> bytes:
    made = b"".join(bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body for marker, body in segments)
    return still[:2] + made + still[2:]


def with_xmp(packet: bytes, still: bytes = STILL) -> bytes:
    return with_segments((0xE1, XMP + packet), still=still)


def with_pictures(*pictures: tuple[int, bytes], still: bytes = STILL, gap: bytes = b"") -> bytes:
    """A still with further (type, JPEG) behind it, each after ``gap``, in Multi-Picture Format (CIPA DC-007)."""
    count = 1 + len(pictures)
    head = struct.pack(">2sHIH", b"MM", 42, 8, 3)
    head += struct.pack(">HHI4s", 0xB000, 7, 4, b"0100")
    head += struct.pack(">HHII", 0xB001, 4, 1, count)
    head += struct.pack(">HHII", 0xB002, 7, 16 * count, 50) + struct.pack(">I", 0)
    size = len(still) + 4 + 4 + 50 + 16 * count
    base = 2 + 4 + 4
    entries = struct.pack(">IIIHH", 0x030000, size, 0, 0, 0)
    appended = b""
    for kind, picture in pictures:
        appended += gap
        entries += struct.pack(">IIIHH", kind, len(picture), size + len(appended) - base, 0, 0)
        appended += picture
    made = with_segments((0xE2, b"MPF\0" + head + entries), still=still)
    assert len(made) == size
    return made + appended


def ultra_hdr() -> bytes:
    gain_map = with_xmp(b'<rdf:Description xmlns:hdrgm="http://ns.adobe.com/hdr-gain-map/1.0/" hdrgm:GainMapMax="3"/>')
    primary = with_xmp(b'<rdf:li Item:Semantic="GainMap" Item:Mime="image/jpeg"/> hdrgm:Version="1.0"')
    return with_pictures((0, gain_map), still=primary)


def samsung_trailer(*blocks: tuple[int, bytes, bytes]) -> bytes:
    """Blocks of (type, name, data), a directory of them, and its length."""
    bodies = [struct.pack("<HHI", 0, kind, len(name)) + name + data for kind, name, data in blocks]
    directory = b"SEFH" + struct.pack("<II", 106, len(blocks))
    for number, (kind, _, _) in enumerate(blocks):
        directory += struct.pack("<HHII", 0, kind, sum(map(len, bodies[number:])), len(bodies[number]))
    return b"".join(bodies) + directory + struct.pack("<I", len(directory)) + b"SEFT"


def box(name: bytes, *content: bytes) -> bytes:
    body = b"".join(content)
    return struct.pack(">I", 8 + len(body)) + name + body


def iso_media(
    *boxes: bytes, brand: bytes = b"heic", auxiliary: tuple[bytes, ...] = (), items: tuple[bytes, ...] = ()
) -> bytes:
    """HEIC or AVIF without pixels: its properties name ``auxiliary`` pictures, and its items have types."""
    kinds = [box(b"infe", b"\2\0\0\0", struct.pack(">HH", number, 0), kind) for number, kind in enumerate(items)]
    properties = [box(b"ispe", bytes(12)), *(box(b"auxC", bytes(4), urn + b"\0") for urn in auxiliary)]
    meta = box(
        b"meta",
        bytes(4),
        box(b"hdlr", bytes(24)),
        box(b"iinf", bytes(4), struct.pack(">H", len(kinds)), *kinds),
        box(b"iprp", box(b"ipco", *properties)),
    )
    return b"".join([box(b"ftyp", brand, bytes(4), b"mif1"), meta, *boxes, box(b"mdat", bytes(64))])
