"""When and by which camera a photo was taken, and whether two photos were taken at once.

Models cannot distinguish the frames of a burst, or two shots of a scene, from copies. The times of capture can.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from clip_client.dedup.types import BURST, SAME_SCENE, CaptureTime

if TYPE_CHECKING:
    from collections.abc import Mapping

_CAMERA_TAGS: Final = (0x010F, 0x0110)
_EXIF_IFD, _GPS_IFD = 0x8769, 0x8825
_TAKEN, _SUB_SECOND, _IMAGE_NUMBER = 0x9003, 0x9291, 0x9211
"""EXIF 2.32: Make, Model, DateTimeOriginal, SubSecTimeOriginal. TIFF/EP: ImageNumber, a count of shutter releases."""

_BURST_MS: Final = 2_000
"""Frames of a burst follow each other within this; the slowest cameras take one per second."""
_SCENE_MS: Final = 60_000
"""A second shot of the same scene rarely takes longer."""


def read_capture_time(data: bytes) -> CaptureTime:
    """Read the time of capture of an image file. Never raises; what cannot be read is empty."""
    from preprocess_ensemble.imaging.formats import open_image

    try:
        with open_image(data) as image:
            exif = image.getexif()
            camera = _camera(*(str(exif.get(tag, "")).strip("\0 ") for tag in _CAMERA_TAGS))
            details, place = exif.get_ifd(_EXIF_IFD), exif.get_ifd(_GPS_IFD)
    except Exception:  # Pillow may raise anything for damaged metadata
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
    """Return ``BURST`` or ``SAME_SCENE`` if the times show that two alike photos are two pictures, else empty.

    ``same_form`` tells whether the photos have the same size and format, as all frames of a burst do. Photos without a
    time, from different cameras, or with more than a minute between them are not classified.
    """
    if first.taken_ms is None or second.taken_ms is None or first.camera != second.camera:
        return ""
    interval_ms = abs(first.taken_ms - second.taken_ms)
    is_same_second = first.taken_ms // 1000 == second.taken_ms // 1000
    is_numbered = first.sequence is not None and second.sequence is not None
    if is_numbered and first.sequence != second.sequence:
        is_one_shot = False
    elif first.has_sub_second and second.has_sub_second:
        is_one_shot = not interval_ms
    elif is_numbered or not is_same_second:
        is_one_shot = is_same_second
    else:
        # Equal seconds may mean one picture or two. Two files of one form count as two, because keeping a copy does
        # less harm than losing a picture. A file of another size or format was made from the picture.
        return BURST if same_form else ""
    if is_one_shot or interval_ms > _SCENE_MS:
        return ""
    return BURST if same_form and interval_ms <= _BURST_MS else SAME_SCENE


def _camera(make: str, model: str) -> str:
    """Return make and model, such as ``"Apple iPhone X"``; the model alone if it includes the make."""
    return model if model.split()[:1] == make.split()[:1] else f"{make} {model}".strip()


def _time(details: Mapping[int, Any]) -> tuple[int | None, bool]:
    text = str(details.get(_TAKEN)).strip("\0 ")
    try:
        second = datetime.strptime(text[:19], "%Y:%m:%d %H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None, False
    digits = re.match(r"\d+", str(details.get(_SUB_SECOND)).strip("\0 "))
    fraction_ms = round(float(f"0.{digits[0]}") * 1000) if digits else 0
    return round(second.timestamp()) * 1000 + fraction_ms, digits is not None
