"""When a photo was taken, by which camera, and whether two photos are two moments or one.

A burst, and a second shot of the same scene, look like copies to any model. Their times tell them apart.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from clip_client.dedup.types import BURST, SAME_SCENE

if TYPE_CHECKING:
    from collections.abc import Mapping

_CAMERA_TAGS: Final = (0x010F, 0x0110)
_EXIF_IFD, _GPS_IFD = 0x8769, 0x8825
_TAKEN, _SUB_SECOND, _IMAGE_NUMBER = 0x9003, 0x9291, 0x9211
"""EXIF 2.32: Make, Model, DateTimeOriginal, SubSecTimeOriginal; TIFF/EP: ImageNumber, which counts the shutter."""

_BURST_MS: Final = 2_000
"""Frames of a burst follow each other within this; the slowest cameras manage one a second."""
_SCENE_MS: Final = 60_000
"""A second try of the same picture rarely takes longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptureTime:
    """What a photo's EXIF says about its time; all empty where it says nothing."""

    taken_ms: int | None = None
    """Milliseconds since 1970 by the camera's own clock, whose zone is mostly unknown."""
    has_sub_second: bool = False
    sequence: int | None = None
    """Number of the shot."""
    camera: str = ""
    fields: int = 0
    """How many fields of metadata there are, GPS included."""


def read_capture_time(data: bytes) -> CaptureTime:
    """Read the EXIF of an image file; what cannot be read is empty, never an exception."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            exif = image.getexif()
            camera = _camera(*(str(exif.get(tag, "")).strip("\0 ") for tag in _CAMERA_TAGS))
            details, place = exif.get_ifd(_EXIF_IFD), exif.get_ifd(_GPS_IFD)
    except Exception:  # damaged metadata makes Pillow raise anything, and costs the photo nothing else
        return CaptureTime()
    taken_ms, has_sub_second = _time(details)
    number = details.get(_IMAGE_NUMBER, exif.get(_IMAGE_NUMBER))
    return CaptureTime(
        taken_ms=taken_ms,
        has_sub_second=has_sub_second,
        sequence=number if isinstance(number, int) else None,
        camera=camera,
        fields=len(exif) + len(details) + len(place),
    )


def classify_burst(first: CaptureTime, second: CaptureTime, *, same_form: bool = True) -> str:
    """Return ``BURST`` or ``SAME_SCENE`` if the times say that two alike photos are two pictures, else empty.

    ``same_form`` says that the photos have the same size and format, as all frames of a burst do. Photos without a
    time, from different cameras, or far apart in time are judged by their looks alone.
    """
    if first.taken_ms is None or second.taken_ms is None or first.camera != second.camera:
        return ""
    is_one_shot = _is_one_shot(first, second)
    if is_one_shot is None:
        # Equal seconds could be one picture or two. Two files of one form count as two: a copy too many does less
        # harm than a picture too few. A file of another size or format was made from a picture.
        return BURST if same_form else ""
    apart_ms = abs(first.taken_ms - second.taken_ms)
    if is_one_shot or apart_ms > _SCENE_MS:
        return ""
    return BURST if same_form and apart_ms <= _BURST_MS else SAME_SCENE


def _is_one_shot(first: CaptureTime, second: CaptureTime) -> bool | None:
    """Tell whether two photos of one camera come from one press of the shutter; None if their times cannot say."""
    assert first.taken_ms is not None
    assert second.taken_ms is not None
    is_numbered = first.sequence is not None and second.sequence is not None
    if is_numbered and first.sequence != second.sequence:
        return False
    if first.has_sub_second and second.has_sub_second:
        return first.taken_ms == second.taken_ms
    if first.taken_ms // 1000 != second.taken_ms // 1000:
        return False
    return True if is_numbered else None


def _camera(make: str, model: str) -> str:
    """Return ``"Apple iPhone X"``, and ``"Canon EOS 5D"`` if the model itself names its maker."""
    return model if model.split()[:1] == make.split()[:1] else f"{make} {model}".strip()


def _time(details: Mapping[int, Any]) -> tuple[int | None, bool]:
    text = str(details.get(_TAKEN, "")).strip("\0 ")
    try:
        second = datetime.strptime(text[:19], "%Y:%m:%d %H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None, False
    digits = re.match(r"\d+", str(details.get(_SUB_SECOND, "")).strip("\0 "))
    fraction_ms = round(float(f"0.{digits[0]}") * 1000) if digits else 0
    return round(second.timestamp()) * 1000 + fraction_ms, digits is not None
