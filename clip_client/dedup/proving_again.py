"""The proof that a photo which is left shows all of one that was moved earlier, from their files alone."""

from __future__ import annotations

from clip_client.dedup.features.pixel_hash import pixel_hash
from clip_client.dedup.files.reading import read_file, sha256_of
from clip_client.dedup.types import EXACT, SAME_PIXELS, FailedFile


def prove_again(kept: str, moved: str) -> str:
    """Return the tier by which the file at ``kept`` shows all of the picture at ``moved``; empty if nothing proves it.

    Bytes are compared first, then pixels, and then the pictures at full size. An alignment proves nothing if only the
    moved photo has something, or if there are signs that the kept photo was made from it.
    """
    bytes_of = [sha256_of(path) for path in (kept, moved)]
    if not all(bytes_of):
        return ""
    if bytes_of[0] == bytes_of[1]:
        return EXACT
    pixels_of = [_pixels(path) for path in (kept, moved)]
    if all(pixels_of) and pixels_of[0] == pixels_of[1]:
        return SAME_PIXELS
    try:
        from clip_client.dedup.alignment.aligner import prove_files
    except ImportError:  # without OpenCV only bytes and pixels prove anything
        return ""
    return prove_files(kept, moved)


def _pixels(path: str) -> str:
    found = read_file(path)
    return "" if isinstance(found, FailedFile) else pixel_hash(found[1])
