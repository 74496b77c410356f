"""What a photo of a group is, in plain words."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from clip_client.dedup.text import printable
from clip_client.dedup.types import ALTERED, EDITED, EXACT, NEAR_IDENTICAL, RE_ENCODED, SAME_PIXELS, SIMILAR

if TYPE_CHECKING:
    from clip_client.dedup.aligned import Alignment
    from clip_client.dedup.types import DuplicateGroup, Member

TIER_NAMES: Final = {
    EXACT: "Exact",
    SAME_PIXELS: "Same pixels",
    RE_ENCODED: "Re-encoded",
    EDITED: "Edited",
    ALTERED: "Altered",
    NEAR_IDENTICAL: "Near-identical",
    SIMILAR: "Similar",
}

_CERTAIN: Final = (EXACT, SAME_PIXELS, RE_ENCODED)
"""The tiers that move by default."""
_SAME_SHAPE: Final = 0.02
"""Side ratios that differ by less are equal: the sides of small pictures are rounded."""


def in_words(member: Member, kept: Member) -> str:
    """Say how ``member`` relates to the kept photo, such as ``"same picture, resized"``."""
    if member.copy_of:
        of = printable(member.copy_of)
        if member.copy_alignment is not None:
            return f"{_aligned(member.copy_alignment)}; compared with {of}"
        return f"identical to {of}" if member.copy_tier == EXACT else f"same pixels as {of}"
    if member.moment:
        return member.moment
    if member.tier == EXACT:
        return "identical, byte for byte"
    if member.tier == SAME_PIXELS:
        is_same_format = _suffix(member) == _suffix(kept)
        return f"same pixels, other {'metadata' if is_same_format else 'format'}"
    if member.alignment is not None:
        return _aligned(member.alignment)
    change = _change(member, kept)
    if member.tier == SIMILAR:
        return f"looks similar, {change}" if change else "looks similar"
    if member.tier in (RE_ENCODED, EDITED, ALTERED):  # another photo was kept when they were aligned
        return f"same picture, {member.tier}"
    return f"same picture, {change}" if change else "practically identical"


def why_it_stays(member: Member, group: DuplicateGroup, *, moves_certain_only: bool) -> str:
    """Say why a copy would stay, as far as the report tells without a look at the files; empty if it may move.

    With ``moves_certain_only`` only the tiers move that do by default.
    """
    kept, tier, alignment = group.keep, member.tier, member.alignment
    if member.copy_of and (member.copy_tier in _CERTAIN or not moves_certain_only or tier == ALTERED):
        kept, tier, alignment = member.copy_of, member.copy_tier, member.copy_alignment
    reason = ""
    if alignment is not None:
        others = group.members[:1] if kept == group.keep else group.members
        is_original = any(one.is_original for one in others if one.path == kept)
        reason = alignment.why_it_stays(member.doubt, kept_is_original=is_original)
    if reason or not moves_certain_only or tier in _CERTAIN:
        return reason
    return "" if tier == ALTERED else f"It moves only with --act-on {tier}."


def region_on(member: Member, kept: Member) -> tuple[float, float, float, float] | None:
    """Return what of ``member`` differs from the kept photo: left, top, width and height as shares of its sides.

    None if no region differs, or none of the member's.
    """
    alignment = member.alignment
    if alignment is None or alignment.region is None or not member.width or not member.height:
        return None
    left, top, width, height = alignment.region
    a, b, c, d, e, f = alignment.transform
    scale = a * e - b * d
    xs, ys = [], []
    for x, y in ((left, top), (left + width, top), (left, top + height), (left + width, top + height)):
        across, down = x * kept.width - c, y * kept.height - f
        xs.append(min(max((e * across - b * down) / scale / member.width, 0.0), 1.0))
        ys.append(min(max((a * down - d * across) / scale / member.height, 0.0), 1.0))
    width, height = max(xs) - min(xs), max(ys) - min(ys)
    return (min(xs), min(ys), width, height) if width and height else None


def _aligned(alignment: Alignment) -> str:
    changes = ", ".join(alignment.changes)
    if alignment.tier == RE_ENCODED:
        return f"same picture, re-encoded{f' at {changes}' if changes else ''}"
    if alignment.tier == EDITED:
        return f"same picture, {changes or 'edited'}"
    where = f" {_place(*alignment.region)}" if alignment.region else ""
    return ", ".join(filter(None, (f"a region differs ({alignment.region_share:.0%}{where})", changes)))


def _place(left: float, top: float, width: float, height: float) -> str:
    """Say where a region of a picture lies, such as ``"at the top right"``."""
    down = ("top", "", "bottom")[min(2, int(3 * (top + height / 2)))]
    across = ("left", "", "right")[min(2, int(3 * (left + width / 2)))]
    return f"at the {' '.join(filter(None, (down, across)))}" if down or across else "in the middle"


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
