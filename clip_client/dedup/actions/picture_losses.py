"""What the picture of a duplicate has that the kept photo lacks, so that moving it would lose something."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from clip_client.dedup.aligned import DETAIL_DOUBTS
from clip_client.dedup.files.encoding import read_encoding
from clip_client.dedup.types import EDITED, RAW, RE_ENCODED

if TYPE_CHECKING:
    from clip_client.dedup.photo import Photo


class PictureLosses:
    """Compares the files of aligned copies; it reads the header of each file once."""

    def __init__(self) -> None:
        self._encoding_of = cache(read_encoding)

    def why_it_stays(self, photo: Photo, kept: Photo, tier: str, doubt: str = "") -> str:
        """Say what the picture of ``photo`` has that ``kept`` lacks; empty if nothing, or for another tier.

        ``doubt`` is why ``photo`` is probably made from another one. If that is its detail or noise, the larger file
        may after all be the original.
        """
        if tier not in (RE_ENCODED, EDITED):
            return ""
        if kept.features.format == RAW:
            return "It was compared with the preview in the RAW file that is kept, which may be smaller."
        if tier == EDITED and doubt not in DETAIL_DOUBTS:
            return ""
        if photo.width > kept.width or photo.height > kept.height:
            return f"It has more pixels than the kept photo: {photo.width}x{photo.height}."
        if kept.is_original and not photo.is_original:
            return ""  # what was made from a camera's file is no better
        ours, theirs = self._encoding_of(photo.path), self._encoding_of(kept.path)
        if ours is None or theirs is None:
            return "It was encoded again, and how its file or the kept one stores the picture cannot be read."
        missing = theirs.lacks(ours)
        return f"It was encoded again, and it has what the kept photo lacks: {missing}." if missing else ""
