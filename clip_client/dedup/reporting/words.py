"""What a photo of a group is, in plain words."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from clip_client.dedup.text import printable
from clip_client.dedup.types import EXACT, SAME_PIXELS, SIMILAR

if TYPE_CHECKING:
    from clip_client.dedup.types import Member

_SAME_SHAPE: Final = 0.02
"""Side ratios that differ by less are equal: the sides of small pictures are rounded."""


def in_words(member: Member, kept: Member) -> str:
    """Say how ``member`` relates to the kept photo, such as ``"same picture, resized"``."""
    if member.copy_of:
        same = "identical to" if member.copy_tier == EXACT else "same pixels as"
        return f"{same} {printable(member.copy_of)}"
    if member.moment:
        return member.moment
    if member.tier == EXACT:
        return "identical, byte for byte"
    if member.tier == SAME_PIXELS:
        is_same_format = _suffix(member) == _suffix(kept)
        return f"same pixels, other {'metadata' if is_same_format else 'format'}"
    change = _change(member, kept)
    if member.tier == SIMILAR:
        return f"looks similar, {change}" if change else "looks similar"
    return f"same picture, {change}" if change else "practically identical"


def _suffix(member: Member) -> str:
    return os.path.splitext(member.path)[1].lower().replace("jpeg", "jpg")


def _change(member: Member, kept: Member) -> str:
    """Tell from the sizes how the picture was changed; empty if they do not tell."""
    size, original = (member.width, member.height), (kept.width, kept.height)
    if size == original or 0 in (*size, *original):
        return ""
    if _is_same_shape(size, original):
        return "resized"
    return "rotated" if _is_same_shape(size[::-1], original) else "cropped"


def _is_same_shape(size: tuple[int, int], other: tuple[int, int]) -> bool:
    this, that = size[0] * other[1], size[1] * other[0]
    return abs(this - that) <= _SAME_SHAPE * max(this, that)
