"""When, by which camera and with which exposure a photo was taken, and whether two photos are one shot.

Models cannot distinguish the frames of a burst, a bracket or a focus stack, or two shots of a scene, from copies. The
times of capture and the exposures can.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from clip_client.dedup.types import BURST, SAME_SCENE, CaptureTime

if TYPE_CHECKING:
    from collections.abc import Mapping

_CAMERA_TAGS: Final = (0x010F, 0x0110)
_EXIF_IFD, _GPS_IFD = 0x8769, 0x8825
_TAKEN, _SUB_SECOND, _IMAGE_NUMBER = 0x9003, 0x9291, 0x9211
"""EXIF 2.32: Make, Model, DateTimeOriginal, SubSecTimeOriginal. TIFF/EP: ImageNumber, a count of shutter releases."""
_EXPOSURE_TIME, _F_NUMBER, _ISO, _BIAS = 0x829A, 0x829D, 0x8827, 0x9204
"""EXIF 2.32: ExposureTime, FNumber, PhotographicSensitivity, ExposureBiasValue."""

_SAME_EXPOSURE: Final = 0.06
"""Relative: programs that copy a number round it to two digits. The smallest steps of cameras, a third of an EV, change
the aperture by 12 % and time and sensitivity by 26 %."""
_SAME_BIAS_EV: Final = 0.1
"""The smallest step of cameras is 0.3 EV, and some write 0.33 or 1/3."""
_SHOT: Final = re.compile(r"([A-Z\d_]{4})(\d{4})(?![A-Z\d])")
"""What cameras call their files: DCF 2.0, section 3.2.3. Programs that make copies add to the name or leave it."""

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
        exposure_s=_number(details.get(_EXPOSURE_TIME)),
        f_number=_number(details.get(_F_NUMBER)),
        iso=_number(details.get(_ISO)),
        exposure_bias=_number(details.get(_BIAS)),
    )


def classify_burst(
    first: CaptureTime, second: CaptureTime, *, same_form: bool = True, names: tuple[str, str] = ("", "")
) -> str:
    """Return ``BURST`` or ``SAME_SCENE`` if times or exposures show that two alike photos are two pictures, else empty.

    ``same_form`` tells whether the photos have the same size and format, as all frames of a burst do. ``names`` are
    those of the files, in which cameras count their shots.

    Photos from different cameras are not classified. Two exposures are two shots, whenever they were taken: a bracket
    is no edit. Photos with the same exposure, or without one, are not classified without a time, or with more than a
    minute between them.
    """
    if first.camera == second.camera and _other_exposure(first, second):
        return SAME_SCENE
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
        # less harm than losing a picture. A file of another size or format was made from the picture, unless its name
        # is that of another shot, as in a focus stack.
        return BURST if same_form else SAME_SCENE if _are_two_shots(*names) else ""
    if is_one_shot or interval_ms > _SCENE_MS:
        return ""
    return BURST if same_form and interval_ms <= _BURST_MS else SAME_SCENE


def _other_exposure(first: CaptureTime, second: CaptureTime) -> bool:
    """Tell whether time, aperture, sensitivity or bias differ; what one of the photos does not say is left out."""
    pairs = [(first.exposure_s, second.exposure_s), (first.f_number, second.f_number), (first.iso, second.iso)]
    said = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
    if any(not math.isclose(*pair, rel_tol=_SAME_EXPOSURE) for pair in said):
        return True
    # In a store of an older version a bias of 0 says nothing, but then there are no other numbers either.
    biases = (first.exposure_bias, second.exposure_bias)
    return bool(said) and biases[0] is not None and biases[1] is not None and abs(biases[0] - biases[1]) > _SAME_BIAS_EV


def _are_two_shots(first: str, second: str) -> bool:
    """Tell whether both names are a camera's, and count two shots."""
    ours, theirs = _SHOT.match(first.upper()), _SHOT.match(second.upper())
    return ours is not None and theirs is not None and ours[1] == theirs[1] and ours[2] != theirs[2]


def _camera(make: str, model: str) -> str:
    """Return make and model, such as ``"Apple iPhone X"``; the model alone if it includes the make."""
    return model if model.split()[:1] == make.split()[:1] else f"{make} {model}".strip()


def _number(value: Any) -> float | None:
    """Return the first number of an EXIF value; None if it is not a number."""
    try:
        number = float(value[0] if isinstance(value, tuple) else value)
    except (TypeError, ValueError, ArithmeticError, IndexError):
        return None
    return number if math.isfinite(number) else None


def _time(details: Mapping[int, Any]) -> tuple[int | None, bool]:
    text = str(details.get(_TAKEN)).strip("\0 ")
    try:
        second = datetime.strptime(text[:19], "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None, False
    digits = re.match(r"\d+", str(details.get(_SUB_SECOND)).strip("\0 "))
    fraction_ms = round(float(f"0.{digits[0]}") * 1000) if digits else 0
    return round(second.timestamp()) * 1000 + fraction_ms, digits is not None
