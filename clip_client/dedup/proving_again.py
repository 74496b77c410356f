"""The proof that a photo which is left shows all of one that was moved earlier, from their files alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from clip_client.dedup.features.pixel_hash import pixel_hash
from clip_client.dedup.files.hashing import sha256_of
from clip_client.dedup.files.reading import read_file
from clip_client.dedup.types import EDITED, EXACT, RE_ENCODED, SAME_PIXELS, FailedFile

if TYPE_CHECKING:
    from clip_client.dedup.aligned import Alignment

AlignFiles: TypeAlias = "Callable[[str, str], Alignment | None]"
"""``align(kept, duplicate)`` compares two files at full size; None if they do not show the same."""


def _align_files(kept: str, moved: str) -> Alignment | None:
    try:
        from clip_client.dedup.alignment.aligner import prove_files
    except ImportError:  # without OpenCV only bytes and pixels prove anything
        return None
    return prove_files(kept, moved)


def prove_again(kept: str, moved: str, *, align: AlignFiles = _align_files) -> str:
    """Return the tier by which the file at ``kept`` shows all of the picture at ``moved``; empty if nothing proves it.

    Bytes are compared first, then pixels, and then the pictures at full size, by ``align``. An alignment proves nothing
    if only the moved photo has something, or if there are signs that the kept photo was made from it.
    """
    bytes_of = [sha256_of(path) for path in (kept, moved)]
    if not all(bytes_of):
        return ""
    if bytes_of[0] == bytes_of[1]:
        return EXACT
    pixels_of = [_pixels(path) for path in (kept, moved)]
    if all(pixels_of) and pixels_of[0] == pixels_of[1]:
        return SAME_PIXELS
    alignment = align(kept, moved)
    if alignment is None or alignment.lost or alignment.doubts:
        return ""
    return alignment.tier if alignment.tier in (RE_ENCODED, EDITED) else ""


def _pixels(path: str) -> str:
    found = read_file(path)
    return "" if isinstance(found, FailedFile) else pixel_hash(found[1])
