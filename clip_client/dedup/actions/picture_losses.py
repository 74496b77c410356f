"""What the picture of a duplicate has that the kept photo lacks, so that moving it would lose something."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from clip_client.dedup.aligned import DETAIL_DOUBTS
from clip_client.dedup.files.encoding import read_encoding
from clip_client.dedup.files.file_types import RAW
from clip_client.dedup.types import ALTERED, EDITED, EXACT, RE_ENCODED, SAME_PIXELS

if TYPE_CHECKING:
    from clip_client.dedup.aligned import Alignment
    from clip_client.dedup.types import Member


class PictureLosses:
    """Compares the files of aligned copies; it reads the header of each file once."""

    def __init__(self) -> None:
        self._encoding_of = cache(read_encoding)

    def why_it_stays(self, duplicate: Member, kept: Member, tier: str, alignment: Alignment | None) -> str:
        """Say what the picture of ``duplicate`` has that ``kept`` lacks, in one sentence; empty if nothing.

        Copies of the same bytes or pixels lack nothing: equal pixels have one colour space, 8 bits and no more frames.
        """
        if duplicate.sha256 == kept.sha256 or tier in (EXACT, SAME_PIXELS, ALTERED):
            return ""
        if tier not in (RE_ENCODED, EDITED):
            return self._other_kinds(duplicate, kept)
        if alignment is not None:
            reason = alignment.why_it_stays(duplicate.doubt, kept_is_original=kept.is_original)
            if reason:
                return reason
        # A person may keep another photo than the one that it was aligned with.
        if alignment is None and tier == EDITED and duplicate.doubt not in DETAIL_DOUBTS:
            return "It was not aligned with the kept photo."
        if self._encoding_of(duplicate.path) is None or (kept.format != RAW and self._encoding_of(kept.path) is None):
            return "How its file or the kept one stores the picture cannot be read."
        return self._other_kinds(duplicate, kept) or self._less_quality(duplicate, kept, tier, alignment)

    def _other_kinds(self, duplicate: Member, kept: Member) -> str:
        """Say what kinds of data would be lost, such as 16 bits, which a camera's own file may lack as well."""
        ours, theirs = self._encoding_of(duplicate.path), self._encoding_of(kept.path)
        missing = ""
        if ours is not None and kept.format == RAW:
            missing = " and ".join(ours.extras)  # of a developed picture; the sensor data lacks nothing else
        elif ours is not None and theirs is not None:
            missing = theirs.lacks_kinds_of(ours)
        return f"It has what the kept photo lacks: {missing}." if missing else ""

    def _less_quality(self, duplicate: Member, kept: Member, tier: str, alignment: Alignment | None) -> str:
        """Say why the kept photo may be the worse one; of edited copies, only if their detail was in doubt."""
        if tier == EDITED and duplicate.doubt not in DETAIL_DOUBTS:
            return ""
        # Of two that differ in detail or noise, the larger file may after all be the original.
        if kept.format == RAW:
            return "It was compared with the preview in the RAW file that is kept, which may be smaller."
        if duplicate.width > kept.width or duplicate.height > kept.height:
            return f"It has more pixels than the kept photo: {duplicate.width}x{duplicate.height}."
        if kept.is_original and not duplicate.is_original:
            return ""  # whatever was made from a camera's file is no better
        if alignment is None and (duplicate.width, duplicate.height) != (kept.width, kept.height):
            return "It was not aligned with the kept photo, which may be an enlarged copy."
        ours, theirs = self._encoding_of(duplicate.path), self._encoding_of(kept.path)
        missing = "" if ours is None or theirs is None else theirs.lacks_quality_of(ours)
        return f"It was encoded again, and it has what the kept photo lacks: {missing}." if missing else ""
