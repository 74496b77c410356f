"""Finds what an image file holds besides the picture that a viewer shows: films, gain maps, depth maps and so on."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from clip_client.dedup.files.file_types import FILM
from preprocess_ensemble.imaging.containers import jpeg
from preprocess_ensemble.imaging.containers.container import SMALL_PART, XMP, Container
from preprocess_ensemble.imaging.containers.iso_media import IsoMedia
from preprocess_ensemble.imaging.containers.read import read
from preprocess_ensemble.imaging.containers.tiff import SUB_DIRECTORIES, Tiff
from preprocess_ensemble.imaging.limits import DecodeError

GAIN_MAP: Final = "gain map"
"""Brightness of each part on an HDR display: Ultra HDR, and Apple's HDR photos."""
DEPTH_MAP: Final = "depth map"
PICTURES: Final = "further pictures"
FRAMES: Final = "further frames"
LAYERS: Final = "layers"
SOUND: Final = "sound"
RAW_DATA: Final = "RAW data"
"""Sensor data, in a file that is compared by its preview."""
DATA: Final = "unknown data"
_FILM: Final = re.compile(rb"ftyp(?!hei|hev|mif|msf|avi)")
_GAIN_MAP: Final = re.compile(rb"hdrgm:|hdrgainmap|GainMap|urn:iso:std:iso:ts:21496")
_DEPTH_MAP: Final = re.compile(rb"Semantic(?:=\"|>)Depth|DepthMap|aux:(?:depth|disparity)")
_IN_XMP: Final = ((b"GDepth:Data", DEPTH_MAP), (b"GImage:Data", PICTURES), (b"GAudio:Data", SOUND))
"""Google's formats before 2019, which put whole files into the metadata, in base64."""
_PHOTOSHOP_LAYERS: Final = 37724  # TIFF tag ImageSourceData
_NEW_SUBFILE_TYPE: Final = 254
_MOST_SUB_DIRECTORIES: Final = 100


@dataclass(frozen=True, kw_only=True)
class EmbeddedParts:
    kinds: tuple[str, ...] = ()
    digest: str = ""
    """Hexadecimal; equal for files that hold the same besides their pictures."""


def embedded_parts(data: bytes) -> EmbeddedParts:
    container = read(data)
    if data.startswith(b"\xff\xd8\xff"):
        return _of_jpeg(data, container)
    is_iso = data[4:8] == b"ftyp"
    kinds = [FRAMES] if container.layout is not None and container.layout.pages > 1 and not is_iso else []
    if data.startswith((b"II", b"MM")):
        kinds += _layers_and_pictures(data)
    elif is_iso:
        kinds += _kinds_of_items(data)
    elif b"JXL " in container.kinds:
        kinds += _kinds_of_jpeg_xl(data, container)
    elif data.startswith(b"\xff\x0a") and _FILM.search(data):
        kinds.append(FILM)  # a bare codestream of JPEG XL does not say where it ends
    rest = b"".join([*container.unknown, *container.behind(data)]).strip(b"\0")
    kinds += [FILM] if _FILM.search(rest) else [DATA] if len(rest) >= SMALL_PART else []
    # The digest is that of the appended data if the file holds nothing else, else that of the whole file.
    return _parts(kinds, rest if kinds in ([FILM], [DATA]) and rest else data)


def _of_jpeg(data: bytes, container: Container) -> EmbeddedParts:
    xmp = b"".join(block.data for block in container.all(XMP))
    in_xmp = [kind for name, kind in _IN_XMP if name in xmp]
    appended = container.behind(data)
    kinds = _kinds_of_appended(appended, xmp, has_pictures=container.has_more_pictures)
    # This includes the measurements of a thermal camera.
    unknown = b"".join(content.strip(b"\0") for content in container.unknown)
    in_unknown = [DATA] if len(unknown) >= SMALL_PART else []
    held = [*(appended if kinds else ()), xmp if in_xmp else b"", unknown if in_unknown else b""]
    return _parts([*kinds, *in_xmp, *in_unknown], b"".join(held))


def _parts(kinds: list[str], held: bytes) -> EmbeddedParts:
    digest = hashlib.sha256(held).hexdigest()[:32] if kinds else ""
    return EmbeddedParts(kinds=tuple(dict.fromkeys(kinds)), digest=digest)


def _kinds_of_appended(appended: list[bytes], xmp: bytes, *, has_pictures: bool) -> list[str]:
    kinds = [FILM] if any(map(_FILM.search, appended)) else []
    if has_pictures or any(piece.startswith(b"\xff\xd8\xff") for piece in appended):
        patterns = ((_GAIN_MAP, GAIN_MAP), (_DEPTH_MAP, DEPTH_MAP))
        maps = [kind for pattern, kind in patterns if any(map(pattern.search, (xmp, *appended)))]
        kinds += maps or [PICTURES]
    elif any(map(_DEPTH_MAP.search, appended)):
        kinds.append(DEPTH_MAP)  # in Samsung's own container
    if not kinds and sum(map(len, appended)) >= SMALL_PART:
        kinds.append(DATA)
    return kinds


def _kinds_of_items(data: bytes) -> list[str]:
    try:
        media = IsoMedia(data)
    except DecodeError:
        return [DATA]
    names = {box.name for box in media.top_level}
    kinds = [FRAMES] if b"moov" in names else []  # the tracks of an image sequence
    kinds += [FILM] if b"mpvd" in names else []
    for box in media.properties:
        if box.name == b"auxC":
            kinds += _kind_of_auxiliary(data[box.start + 4 : min(box.stop, box.start + 200)])
    kinds += [GAIN_MAP] if b"tmap" in media.items.values() else []
    return kinds + ([PICTURES] if media.further_pictures() else [])


def _kinds_of_jpeg_xl(data: bytes, container: Container) -> list[str]:
    from preprocess_ensemble.imaging.jpeg_xl import restored_jpeg

    kinds = [GAIN_MAP] if b"jhgm" in container.kinds else []
    if b"jbrd" in container.kinds:
        with suppress(Exception):  # a damaged file fails to decode anyway
            restored = restored_jpeg(data)
            kinds += _of_jpeg(restored, jpeg.read(restored)).kinds
    return kinds


def _kind_of_auxiliary(urn: bytes) -> list[str]:
    name = urn.partition(b"\0")[0].lower()
    if name.endswith((b"auxid:1", b":alpha")):
        return []  # transparency is part of the picture
    if b"gainmap" in name:
        return [GAIN_MAP]
    if b"depth" in name or b"disparity" in name or name.endswith(b"auxid:2"):
        return [DEPTH_MAP]
    return [PICTURES]


def _layers_and_pictures(data: bytes) -> list[str]:
    """Return what a TIFF file holds in its first directory and those below it, apart from smaller versions."""
    tiff = Tiff(data)
    first = tiff.directory(tiff.first)
    kinds = [LAYERS] if _PHOTOSHOP_LAYERS in first.entries else []
    below = tiff.below(first, SUB_DIRECTORIES, _MOST_SUB_DIRECTORIES + 1)
    types = [tiff.numbers(one, _NEW_SUBFILE_TYPE) for one in below]
    if len(below) > _MOST_SUB_DIRECTORIES or not all(found and found[0] & 1 for found in types):
        kinds.append(PICTURES)
    return kinds
