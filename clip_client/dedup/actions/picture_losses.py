"""What the picture of a duplicate has that the kept photo lacks, so that moving it would lose something."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from clip_client.dedup.files.encoding import read_encoding
from clip_client.dedup.types import ALTERED, EDITED, EXACT, RAW, RE_ENCODED, SAME_PIXELS

if TYPE_CHECKING:
    from clip_client.dedup.photo import Photo


class PictureLosses:
    """Compares the files of aligned copies; it reads the header of each file once."""

    def __init__(self) -> None:
        self._encoding_of = cache(read_encoding)

    def lost(self, photo: Photo, kept: Photo, tier: str) -> str:
        """Name the kinds of data that ``kept`` cannot hold, such as a colour profile; empty if nothing is lost.

        Copies of the same bytes or pixels lack nothing: equal pixels have one colour space, 8 bits and no more frames.
        """
        if photo.sha256 == kept.sha256 or tier in (EXACT, SAME_PIXELS, ALTERED):
            return ""
        ours, theirs = self._encoding_of(photo.path), self._encoding_of(kept.path)
        if ours is not None and kept.features.format == RAW:
            return " and ".join(ours.extras)  # of a developed picture; the sensor data lacks nothing else
        return theirs.lacks_kinds_of(ours) if ours is not None and theirs is not None else ""

    def why_it_stays(self, photo: Photo, kept: Photo, tier: str) -> str:
        """Say why the files do not allow to tell whether ``kept`` is as good; empty if they do, or for equal pixels."""
        if tier not in (RE_ENCODED, EDITED) or photo.sha256 == kept.sha256:
            return ""
        if kept.features.format == RAW:
            developed = tier == EDITED  # from the sensor data, which shows more than any preview
            return (
                ""
                if developed
                else "It was compared with the preview in the RAW file that is kept, which may be smaller."
            )
        if self._encoding_of(photo.path) is None or self._encoding_of(kept.path) is None:
            return "How its file or the kept one stores the picture cannot be read."
        return ""
