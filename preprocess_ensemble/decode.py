"""One encoded image file in, one upright PIL image out, or a :class:`DecodeError` that says why not."""

from __future__ import annotations

from enum import IntEnum


class ImageStatus(IntEnum):
    """What became of one image; the number travels in the ``status`` tensor, the name in every error and report."""

    OK = 0
    EMPTY = 1
    """No bytes at all."""
    NOT_AN_IMAGE = 2
    """The bytes are of no image format that is known here."""
    UNSUPPORTED_FORMAT = 3
    """An image, but of a format or variant that cannot be read here."""
    TRUNCATED = 4
    """The file ends before the picture does."""
    CORRUPT = 5
    """The file contradicts itself."""
    TOO_LARGE = 6
    """More bytes or pixels than the limits allow."""
    LIMIT = 7
    """Another limit: side ratio, frames, size of metadata."""
    INTERNAL = 8
    """A defect of this program, not of the image."""
