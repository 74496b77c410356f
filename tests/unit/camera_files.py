"""Builders of photos as cameras, programs and people leave them: with EXIF, XMP and IPTC, in memory."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
from PIL import ExifTags, Image, TiffImagePlugin
from PIL.ExifTags import GPS, Base

from tests.unit.image_files import encoded, picture

SIZE = (64, 48)
TAKEN = "2019:05:03 10:11:12"
_DETAILS = {
    "DateTimeOriginal",
    "DateTimeDigitized",
    "LensModel",
    "FNumber",
    "ExposureTime",
    "MakerNote",
    "ExifImageWidth",
    "ExifImageHeight",
}
"""Fields of the EXIF directory; the others stand in the first one."""


def exif(*, gps: bool = False, size: tuple[int, int] = SIZE, **changes: Any) -> Image.Exif:
    """What a camera writes; ``changes`` replaces fields by their names in ``ExifTags.Base``, None removes one."""
    fields: dict[str, Any] = {
        "Make": "Canon",
        "Model": "Canon EOS 5D",
        "Software": "Firmware Version 1.1.1",
        "DateTimeOriginal": TAKEN,
        "LensModel": "EF50mm f/1.8",
        "FNumber": TiffImagePlugin.IFDRational(28, 10),
        "MakerNote": b"notes of the maker",
        "ExifImageWidth": size[0],
        "ExifImageHeight": size[1],
        **changes,
    }
    made = Image.Exif()
    details = made.get_ifd(ExifTags.IFD.Exif)
    for name, value in fields.items():
        if value is not None:
            (details if name in _DETAILS else made)[Base[name]] = value
    if gps:
        made.get_ifd(ExifTags.IFD.GPSInfo).update(_position())
    return made


def _position() -> dict[int, Any]:
    """48.2 degrees north, 16.37 degrees west."""
    rational = TiffImagePlugin.IFDRational
    return {
        GPS.GPSLatitudeRef: "N",
        GPS.GPSLatitude: (rational(48), rational(12), rational(0)),
        GPS.GPSLongitudeRef: "W",
        GPS.GPSLongitude: (rational(16), rational(22), rational(12)),
    }


def camera_jpeg(
    size: tuple[int, int] = SIZE,
    *,
    size_in_exif: tuple[int, int] | None = None,
    gps: bool = False,
    quality: int = 90,
    **changes: Any,
) -> bytes:
    """A photo as the camera wrote it, but for ``changes``."""
    made = exif(gps=gps, size=size_in_exif or size, **changes)
    return encoded(picture(size=size), "JPEG", quality=quality, exif=made)


def as_lossless(data: bytes, image_format: str, **options: Any) -> bytes:
    """The same pixels in another format, without a word of metadata unless ``options`` say so."""
    with Image.open(io.BytesIO(data)) as image:
        return encoded(Image.fromarray(np.asarray(image)), image_format, **options)


def packet(inner: str) -> bytes:
    """An XMP packet around attributes and elements; ``inner`` is ``ATTRIBUTES>ELEMENTS``."""
    return (
        '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/">'
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about="" '
        'xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xmp="http://ns.adobe.com/xap/1.0/" '
        'xmlns:exif="http://ns.adobe.com/exif/1.0/" xmlns:photoshop="http://ns.adobe.com/photoshop/1.0/" '
        f'{inner}</rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end="w"?>'
    ).encode()


def with_iptc(jpeg: bytes, fields: list[tuple[int, bytes]]) -> bytes:
    """Put IPTC datasets of record 2 into a JPEG, as Photoshop does."""
    data = b"".join(b"\x1c\x02" + bytes([number]) + struct.pack(">H", len(value)) + value for number, value in fields)
    block = b"8BIM\x04\x04\0\0" + struct.pack(">I", len(data)) + data + b"\0" * (len(data) % 2)
    payload = b"Photoshop 3.0\0" + block
    return jpeg[:2] + b"\xff\xed" + struct.pack(">H", len(payload) + 2) + payload + jpeg[2:]
