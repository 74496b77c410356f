"""Repairs of AVIF files that libavif refuses although it can decode their pictures. Bytes change, but none moves."""

from __future__ import annotations

import re
from typing import Final

from preprocess_ensemble.imaging.containers.iso_media import IsoMedia

_MOST_ASSOCIATIONS: Final = 4  # most lists of properties that libavif takes, whatever their flags
_TRANSFORMS: Final = frozenset({b"clap", b"irot", b"imir"})
_ESSENTIAL: Final = 0x80
_UNKNOWN_VERSION: Final = 0xFF
_CONSTANT: Final = re.compile(rb"nclx.{4}\0\x0a", re.DOTALL)
_NON_CONSTANT: Final = b"\0\x09"
"""Matrices of BT.2020 by ITU-T H.273, table 4, with constant luminance and without."""
_PYRAMID: Final = re.compile(rb"grpl.{4}pymd", re.DOTALL)
_SIGNS: Final = re.compile(rb"tmap|auxl|clap|irot|imir|" + _CONSTANT.pattern + b"|" + _PYRAMID.pattern, re.DOTALL)


def repaired(data: bytes) -> bytes:
    """Return an AVIF file that libavif reads, or ``data`` itself if nothing is to be repaired.

    - Link-U's encoder lists the properties of each item of a picture with transparency in a box of its own, and libavif
      refuses two such boxes with equal flags. Only the lowest bit means something (23008-12, section 9.3.2).
    - Link-U's encoder says that the transparency of an image sequence belongs to item 0, which does not exist.
    - Early versions of the encoder cavif give transparency no size. It gets the size of the picture, in place of the
      property with the number of bits, which Pillow does not read.
    - libavif refuses a crop or rotation that a decoder may ignore, and a tone map or a group of smaller versions that
      it cannot read. It ignores a tone map of an unknown version, and boxes of unknown names.
    - libavif lacks the matrix of BT.2020 with constant luminance. As in libheif, the non-constant one takes its place.

    Raises :class:`~preprocess_ensemble.imaging.limits.DecodeError` (LIMIT) for a file with too many parts.
    """
    if data.count(b"ipma") < 2 and not _SIGNS.search(data):
        return data
    media, changed = IsoMedia(data), bytearray(data)
    for number, box in enumerate(media.associations[:_MOST_ASSOCIATIONS] if len(media.associations) > 1 else ()):
        changed[box.start + 3 : box.start + 4] = bytes([data[box.start + 3] & 1 | number << 1])
    of_primary = {box.name: place for place, box in media.listed_properties(media.primary)}
    for item, kind in media.items.items():
        places = {box.name: place for place, box in media.listed_properties(item)}
        for name in places.keys() & _TRANSFORMS:
            changed[places[name].start] |= _ESSENTIAL
        is_auxiliary = item in media.auxiliary_pictures()
        if is_auxiliary and b"ispe" in of_primary and b"ispe" not in places and b"pixi" in places:
            changed[places[b"pixi"]] = changed[of_primary[b"ispe"]]
        if kind == b"tmap" and item in media.extents and (start := media.extents[item][0][0]) < len(data):
            changed[start] = _UNKNOWN_VERSION
    for one in media.references:
        if one.kind == b"auxl" and one.to == (0,):
            changed[one.at] = media.primary.to_bytes(4, "big")[one.at.start - one.at.stop :]
    for box in media.properties:
        if box.name == b"colr" and _CONSTANT.match(data, box.start):
            changed[box.start + 8 : box.start + 10] = _NON_CONSTANT
    if group := _PYRAMID.search(data):
        changed[group.start() : group.start() + 4] = b"free"
    return bytes(changed)
