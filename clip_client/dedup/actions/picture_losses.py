"""What the picture of a duplicate has that the kept photo lacks, so that moving it would lose something."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from clip_client.dedup.aligned import DETAIL_DOUBTS
from clip_client.dedup.files.encoding import read_encoding
from clip_client.dedup.files.file_types import RAW
from clip_client.dedup.types import EDITED, RE_ENCODED

if TYPE_CHECKING:
    from clip_client.dedup.aligned import Alignment
    from clip_client.dedup.types import Member


class PictureLosses:
    """Compares the files of aligned copies; it reads the header of each file once."""

    def __init__(self) -> None:
        self._encoding_of = cache(read_encoding)

    def why_it_stays(self, duplicate: Member, kept: Member, tier: str, alignment: Alignment | None) -> str:
        """Say what the picture of ``duplicate`` has that ``kept`` lacks; empty if nothing, or for another tier."""
        if tier not in (RE_ENCODED, EDITED):
            return ""
        if alignment is not None:
            reason = alignment.why_it_stays(duplicate.doubt, kept_is_original=kept.is_original)
            if reason:
                return reason
        if tier == EDITED and duplicate.doubt not in DETAIL_DOUBTS:
            # A person may keep another photo than the one that it was aligned with.
            return "It was not aligned with the kept photo." if alignment is None else ""
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
        if ours is None or theirs is None:
            return "It was encoded again, and how its file or the kept one stores the picture cannot be read."
        missing = theirs.lacks(ours)
        return f"It was encoded again, and it has what the kept photo lacks: {missing}." if missing else ""
