"""Colours that a file can show, by the primaries in its profile: names and bytes differ from vendor to vendor."""

from __future__ import annotations

import io
import struct
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from preprocess_ensemble.imaging.containers.container import Layout

_TOLERANCE: Final = 0.01
"""CIE xy. The sRGB profiles of HP, Google, Artifex, Facebook and LittleCMS are within 0.003 of each other; the red of
sRGB and of Display P3 are 0.04 apart."""

_D50: Final = (0.3457, 0.3585)
"""White of the colours in profiles: ICC.1:2022, section 7.2.16."""
_D65: Final = (0.3127, 0.329)
_BRADFORD: Final = ((0.8951, 0.2664, -0.1614), (-0.7502, 1.7135, 0.0367), (0.0389, -0.0685, 1.0296))
"""ICC.1:2022, annex E.3: from XYZ to the responses of the eye, in which white adapts."""

_RGB_709: Final = (0.64, 0.33, 0.3, 0.6, 0.15, 0.06)
_CODED: Final = {
    1: (_D65, _RGB_709),
    5: (_D65, (0.64, 0.33, 0.29, 0.6, 0.15, 0.06)),
    **dict.fromkeys((6, 7), (_D65, (0.63, 0.34, 0.31, 0.595, 0.155, 0.07))),
    9: (_D65, (0.708, 0.292, 0.17, 0.797, 0.131, 0.046)),
    11: ((0.314, 0.351), (0.68, 0.32, 0.265, 0.69, 0.15, 0.06)),
    12: (_D65, (0.68, 0.32, 0.265, 0.69, 0.15, 0.06)),
}
"""Primaries by ITU-T H.273, table 2: white, then x and y of red, green and blue."""
_UNSPECIFIED: Final = 2
_SRGB_CODES: Final = frozenset(struct.pack(">HH", *codes) for codes in ((1, 13), (2, 2), (1, 2), (2, 13)))
"""Primaries and transfer of sRGB, or unspecified."""
_USUAL_CURVES: Final = frozenset({1, 2, 4, 6, 7, 11, 12, 13, 14, 15})
"""Transfer by ITU-T H.273, table 3, by which viewers show a picture as they show sRGB; none is linear."""
_HDR: Final = (16, 18)  # PQ and HLG, in the same table
_SRGB_GAMMA: Final = 0.45455
_SAME_GAMMA: Final = 0.0001
_NEAR_GAMMA: Final = 0.03
"""Beyond it lie 1 and 1 / 1.8, but not what programs write for Adobe RGB."""
_SRGB_CHROMATICITIES: Final = (*_D65, *_RGB_709)
"""Values for sRGB by PNG, third edition, section 11.3.2.5."""


@dataclass(frozen=True, kw_only=True)
class ColourSpace:
    name: str
    primaries: tuple[float, ...] | None
    """CIE x and y of red, green and blue under D50; empty for grey; None if a profile does not tell, as a printer's."""
    key: bytes = b""
    is_profile: bool = True
    """Whether an ICC profile defines it, or sRGB is assumed: comparisons of pictures convert these, and no others."""
    is_hdr: bool = False

    def has_all_of(self, other: ColourSpace) -> bool:
        if self.key == other.key or other.primaries == ():
            return True
        if other.is_hdr and not self.is_hdr:
            return False
        if not (self.is_profile and other.is_profile):  # they were not compared in one space
            return _are_near(self.primaries, other.primaries)
        if _are_near(other.primaries, SRGB.primaries):
            return True  # also for a file in CMYK or grey: whether its picture lacks colour was measured
        if not self.primaries or other.primaries is None:
            return False
        return _contains(self.primaries, other.primaries)


def space_of(layout: Layout) -> ColourSpace:
    if layout.profile:
        return space_of_profile(layout.profile)
    if layout.colours == "CMYK":
        return ColourSpace(name="of a printer without a name", primaries=None, key=b"CMYK", is_profile=False)
    codes = [code for code in layout.codes if code not in _SRGB_CODES]
    if len(codes) == 1:
        return space_of_codes(*struct.unpack(">HH", codes[0]))
    if codes:
        return ColourSpace(name="with several profiles", primaries=None, key=b"".join(codes), is_profile=False)
    gamma = layout.gamma if layout.gamma is not None else _SRGB_GAMMA
    chromaticities = layout.chromaticities or _SRGB_CHROMATICITIES
    if abs(gamma - _SRGB_GAMMA) <= _SAME_GAMMA and _are_near(chromaticities, _SRGB_CHROMATICITIES):
        return SRGB
    key = repr((gamma, chromaticities)).encode()
    if layout.chromaticities and abs(gamma - _SRGB_GAMMA) <= _NEAR_GAMMA:
        across, down, *primaries = chromaticities
        return space_of_chromaticities((across, down), tuple(primaries), key)
    return ColourSpace(name="with another gamma", primaries=None, key=key, is_profile=False)


def space_of_profile(profile: bytes) -> ColourSpace:
    from PIL import ImageCms

    if profile[16:20] == b"GRAY":
        return ColourSpace(name="grey", primaries=(), key=profile)
    primaries, description = None, ""
    with suppress(OSError, ImageCms.PyCMSError):
        opened = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        description = ImageCms.getProfileDescription(opened).strip()[:80]
        if profile[16:20] == b"RGB ":
            primaries = _primaries(opened.profile)
            if primaries is None and "srgb" in description.lower():
                # Such as "sRGB v4 ICC preference", which has tables in place of primaries.
                return replace(SRGB, key=profile)
    return ColourSpace(name=_known_name(primaries) or description or "without a name", primaries=primaries, key=profile)


def _primaries(profile: Any) -> tuple[float, ...] | None:
    # Only a profile that consists of three colours and their curves has primaries.
    colours = profile.red_colorant, profile.green_colorant, profile.blue_colorant
    if None in colours or not all(sum(xyz) for xyz, _ in colours):
        return None
    return tuple(round(part / sum(xyz), 4) for xyz, _ in colours for part in xyz[:2])


def space_of_codes(primaries: int, transfer: int) -> ColourSpace:
    is_hdr, key = transfer in _HDR, struct.pack(">HH", primaries, transfer)
    primaries = 1 if primaries == _UNSPECIFIED else primaries
    if primaries not in _CODED:
        return ColourSpace(name=f"H.273 number {primaries}", primaries=None, key=key, is_profile=False, is_hdr=is_hdr)
    if not is_hdr and transfer not in _USUAL_CURVES:
        return ColourSpace(name="with another gamma", primaries=None, key=key, is_profile=False)
    measured = _under_d50(*_CODED[primaries])
    if not is_hdr and _are_near(measured, SRGB.primaries):
        return replace(SRGB, key=key)
    name = f"{_known_name(measured) or f'H.273 number {primaries}'}{' with HDR' if is_hdr else ''}"
    return ColourSpace(name=name, primaries=measured, key=key, is_profile=False, is_hdr=is_hdr)


def space_of_chromaticities(white: tuple[float, float], primaries: tuple[float, ...], key: bytes) -> ColourSpace:
    try:
        measured = _under_d50(white, primaries)
    except (ValueError, ArithmeticError, np.linalg.LinAlgError):
        return ColourSpace(name="without a name", primaries=None, key=key)
    name = _known_name(measured) or "of its own primaries"
    return ColourSpace(name=name, primaries=measured, key=key, is_profile=False)


def _under_d50(white: tuple[float, float], primaries: tuple[float, ...]) -> tuple[float, ...]:
    def xyz(x: float, y: float) -> Any:
        return np.array([x / y, 1.0, (1 - x - y) / y])

    colours = np.stack([xyz(*pair) for pair in zip(primaries[::2], primaries[1::2], strict=True)], axis=1)
    colours = colours * np.linalg.solve(colours, xyz(*white))
    eye = np.array(_BRADFORD)
    adapted = np.linalg.solve(eye, (eye @ xyz(*_D50) / (eye @ xyz(*white)))[:, None] * (eye @ colours))
    return tuple(np.round((adapted / adapted.sum(axis=0))[:2].T.ravel(), 4).tolist())


def _are_near(first: tuple[float, ...] | None, second: tuple[float, ...] | None) -> bool:
    return bool(first and second and np.abs(np.subtract(first, second)).max() <= _TOLERANCE)


def _contains(outer: tuple[float, ...], inner: tuple[float, ...]) -> bool:
    corners, points = np.reshape(outer, (3, 2)), np.reshape(inner, (3, 2))
    for start, stop in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        along = (stop - start) / np.linalg.norm(stop - start)
        # Red, green and blue go round counterclockwise, so what lies inside is to the left of each edge.
        if (along[0] * (points - start)[:, 1] - along[1] * (points - start)[:, 0]).min() < -_TOLERANCE:
            return False
    return True


def _known_name(primaries: tuple[float, ...] | None) -> str:
    return next((name for name, known in _KNOWN.items() if _are_near(primaries, known)), "")


SRGB: Final = ColourSpace(name="sRGB", primaries=_under_d50(_D65, _RGB_709))
_KNOWN: Final = {
    "sRGB": SRGB.primaries,
    "Display P3": _under_d50(*_CODED[12]),
    "Adobe RGB": _under_d50(_D65, (0.64, 0.33, 0.21, 0.71, 0.15, 0.06)),
    "Rec. 2020": _under_d50(*_CODED[9]),
    "ProPhoto RGB": (0.7347, 0.2653, 0.1596, 0.8404, 0.0366, 0.0001),
}
ADOBE_RGB: Final = ColourSpace(name="Adobe RGB", primaries=_KNOWN["Adobe RGB"], key=b"Adobe RGB", is_profile=False)
