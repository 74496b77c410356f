"""Tells by times and exposures whether two photos are one shot, because models confuse copies and bursts."""

from __future__ import annotations

import math
import re
from typing import Final

from clip_client.dedup.types import BURST, SAME_SCENE, Metadata

_SAME_EXPOSURE: Final = 0.06
"""Relative: programs that copy a number round it to two digits. A third of an EV, the smallest step of cameras, changes
the aperture by 12 %, and time and sensitivity by 26 %."""
_SAME_BIAS_EV: Final = 0.1
"""Biases up to this far apart are equal. The smallest step of cameras is 0.3 EV; some write 0.33 or 1/3."""
_SHOT: Final = re.compile(r"([A-Z\d_]{4})(\d{4})(?![A-Z\d])")
"""Names of cameras' files (DCF 2.0, section 3.2.3), which programs that make copies keep or add to."""
_NUMBER: Final = re.compile(r"\d+")

_BURST_MS: Final = 2_000
"""Longest time between frames of a burst; the slowest cameras take one frame per second."""
_SCENE_MS: Final = 60_000
"""Longest time between two shots of the same scene; a second shot rarely takes longer."""


def classify_burst(
    first: Metadata,
    second: Metadata,
    *,
    same_form: bool = True,
    is_proved: bool = False,
    names: tuple[str, str] = ("", ""),
) -> str:
    """Return ``BURST`` or ``SAME_SCENE`` if times or exposures show that similar photos are two pictures, else empty.

    ``is_proved``: one is proved to show all of the other. Photos of two cameras are never told apart. Two exposures are
    two shots, whenever they were taken: a bracket is not an edit. Else both photos need a time, at most a minute apart.
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
        # Equal seconds may mean one picture or two. Two files of one form count as two pictures unless they are proved
        # to show the same, because keeping a copy does less harm than losing a picture. A file of another size or
        # format counts as a copy. In both cases the names may still count two shots, as in a focus stack.
        if same_form:
            return "" if is_proved and not _are_two_shots(*names) and not _are_numbered(*names) else BURST
        return SAME_SCENE if _are_two_shots(*names) else ""
    if is_one_shot or interval_ms > _SCENE_MS:
        return ""
    return BURST if same_form and interval_ms <= _BURST_MS else SAME_SCENE


def _other_exposure(first: Metadata, second: Metadata) -> bool:
    pairs = [(first.exposure_s, second.exposure_s), (first.f_number, second.f_number), (first.iso, second.iso)]
    said = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
    if any(not math.isclose(*pair, rel_tol=_SAME_EXPOSURE) for pair in said):
        return True
    biases = (first.exposure_bias, second.exposure_bias)
    return bool(said) and biases[0] is not None and biases[1] is not None and abs(biases[0] - biases[1]) > _SAME_BIAS_EV


def _are_two_shots(first: str, second: str) -> bool:
    ours, theirs = _SHOT.match(first.upper()), _SHOT.match(second.upper())
    return ours is not None and theirs is not None and ours[1] == theirs[1] and ours[2] != theirs[2]


def _are_numbered(first: str, second: str) -> bool:
    # Phones name the frames of a burst like this.
    return first != second and _NUMBER.sub("0", first) == _NUMBER.sub("0", second)
