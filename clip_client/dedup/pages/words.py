"""Plain words for the photos of a group, and for the result of a search."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np

from clip_client._files import printable
from clip_client.dedup.aligned import Alignment
from clip_client.dedup.group import Member
from clip_client.dedup.photo import Photo
from clip_client.dedup.text import counted, human_bytes, percent
from clip_client.dedup.types import (
    ALTERED,
    BY_DEFAULT,
    EDITED,
    EXACT,
    ON_REQUEST,
    RE_ENCODED,
    SAFE_TIERS,
    SAME_PIXELS,
    TIERS,
)

_NAMES: Final = ("Exact", "Same pixels", "Re-encoded", "Edited", "Altered", "Similar")
TIER_NAMES: Final = dict(zip(TIERS, _NAMES, strict=True))

_SAME_SHAPE: Final = 0.02
"""Relative difference up to which side ratios are equal: the sides of small pictures are rounded."""
_MOST_OF_IT: Final = 0.5
"""Share of the kept photo above which the place of a region is not named."""


def found_in_words(
    verdicts: Mapping[tuple[str, str], int],
    moving_bytes: int,
    tiers: Collection[str] = SAFE_TIERS,
    *,
    is_applied: bool = False,
) -> str:
    """Say what moves and what waits: ``"35 photos, 2.2 MB, can move safely; 25 edited copies wait for you"``."""
    photos = sum(number for (moves, tier), number in verdicts.items() if moves == BY_DEFAULT and tier in tiers)
    waiting = [
        f"{counted(number, f'{tier} copy', f'{tier} copies')} {'waits' if number == 1 else 'wait'} for you"
        for (moves, tier), number in sorted(verdicts.items())
        if moves == ON_REQUEST
    ]
    moves = f"{counted(photos, 'photo')}, {human_bytes(moving_bytes)}" if photos else ""
    if moves:
        moves = f"this search moves {moves}" if is_applied else f"{moves}, can move safely"
    others = sum(verdicts.values()) - photos
    return "; ".join(filter(None, (moves, *waiting))) or (f"no copies, but {counted(others, 'photo')} to look at")


def to_free_in_words(photos: int, moving: Sequence[Photo], waiting: int = 0) -> tuple[str, str]:
    """Say what a group of ``photos`` frees: ``("286 kB", " to free in 2 copies; 1 copy waits for you")``."""
    wait = f"{counted(waiting, 'copy', 'copies')} {'waits' if waiting == 1 else 'wait'} for you" if waiting else ""
    if size_bytes := sum(photo.spare_bytes for photo in moving):
        copies = f" to free in {counted(len(moving), 'copy', 'copies')}"
        return human_bytes(size_bytes), "; ".join(filter(None, (copies, wait)))
    return "", wait or f"nothing to free in {counted(photos, 'photo')}"


def in_words(member: Member, kept: Member) -> str:
    """Say how ``member`` relates to the kept photo, such as ``"same picture, resized"``."""
    if member.copy_of:
        of = printable(member.copy_of)
        if member.copy_alignment is not None:
            return f"{_aligned(member.copy_alignment)}; compared with {of}"
        return f"identical to {of}" if member.copy_tier == EXACT else f"same pixels as {of}"
    if member.other_shot:
        return f"perhaps {member.other_shot}"
    if member.tier == EXACT:
        return "identical, byte for byte"
    if member.tier == SAME_PIXELS:
        return f"same pixels, other {'metadata or compression' if _suffix(member) == _suffix(kept) else 'format'}"
    if member.alignment is not None:
        return _aligned(member.alignment)
    if member.tier in (RE_ENCODED, EDITED, ALTERED):  # another photo was kept at the time of the alignment
        return f"same picture, {member.tier}"
    change = _change(member.photo, kept.photo)
    return f"looks similar, {change}" if change else "looks similar"


def region_on(member: Member, kept: Member) -> tuple[float, float, float, float] | None:
    """Return left, top, width and height of the part that differs from the kept photo, as shares of sides, if any."""
    alignment = member.alignment
    if alignment is None or alignment.region is None or not member.photo.width or not member.photo.height:
        return None
    left, top, width, height = alignment.region
    to_kept = np.reshape(alignment.transform, (2, 3))
    corners = np.array([(x, y) for x in (left, left + width) for y in (top, top + height)])
    on_kept = corners * (kept.photo.width, kept.photo.height)
    on_member = np.linalg.solve(to_kept[:, :2], (on_kept - to_kept[:, 2]).T).T
    shares = np.clip(on_member / (member.photo.width, member.photo.height), 0, 1)
    (left, top), (width, height) = shares.min(axis=0).tolist(), np.ptp(shares, axis=0).tolist()
    return (left, top, width, height) if width and height else None


def _aligned(alignment: Alignment) -> str:
    changes = ", ".join(alignment.changes)
    if alignment.tier == RE_ENCODED:
        return ", ".join(filter(None, ("same picture, re-encoded", changes)))
    if alignment.tier == EDITED:
        return f"same picture, {changes or 'edited'}"
    left, top, width, height = alignment.region or (0, 0, 0, 0)
    is_wide = width * height > _MOST_OF_IT
    if changes and is_wide:
        return f"{changes}, and {percent(alignment.region_share)} of it differs more"
    where = f" {_place(left, top, width, height)}" if alignment.region and not is_wide else ""
    return ", ".join(filter(None, (f"a region differs ({percent(alignment.region_share)}{where})", changes)))


def _place(left: float, top: float, width: float, height: float) -> str:
    down = ("top", "", "bottom")[min(2, int(3 * (top + height / 2)))]
    across = ("left", "", "right")[min(2, int(3 * (left + width / 2)))]
    return f"at the {' '.join(filter(None, (down, across)))}" if down or across else "in the middle"


def _suffix(member: Member) -> str:
    return os.path.splitext(member.path)[1].lower().replace("jpeg", "jpg")


def _change(photo: Photo, kept: Photo) -> str:
    size, original = (photo.width, photo.height), (kept.width, kept.height)
    if size == original or not all(size + original):
        return ""
    if _is_same_shape(size, original):
        return "resized"
    return "rotated" if _is_same_shape(size[::-1], original) else "cropped"


def _is_same_shape(size: tuple[int, int], other: tuple[int, int]) -> bool:
    return math.isclose(size[0] * other[1], size[1] * other[0], rel_tol=_SAME_SHAPE)
