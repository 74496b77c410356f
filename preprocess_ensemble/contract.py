"""The wire contract: names, versions and codes that client and server share. Standard library only.

``triton_models/*/config.pbtxt`` repeat these names for Triton; ``tests/unit/model_repository/test_contract.py`` reads
those files and fails if the two disagree.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

CONTRACT_VERSION: Final = 1
"""Version of the wire contract; the passport of an exported model carries the version it was made for."""

ENSEMBLE: Final = "clip_image"
"""The ensemble: encoded image in, embedding out."""
PREPROCESSOR: Final = "clip_preprocess"
"""The step that decodes; it also answers the handshake."""
ENCODER: Final = "clip_encoder"
"""The step that embeds."""

IMAGE: Final = "image"
"""In, BYTES [N, 1]: one encoded image file per row."""
PIXELS: Final = "pixels"
"""Between the steps, UINT8 [N, H, W, 3]: the model's input."""
EMBEDDING: Final = "embedding"
"""Out, FP32 [N, D]: unit rows; a failed image's row is NaN."""
STATUS: Final = "status"
"""Out, INT32 [N, 1]: 0, or the number of an ``ImageStatus``."""
ERROR: Final = "error"
"""Out, BYTES [N, 1]: empty, or one sentence for people."""
FINGERPRINT: Final = "fingerprint"
"""Out, INT32 [N, 2]: constant of the exported model."""
PASSPORT: Final = "model"
"""Out of the preprocessor, BYTES [N, 1]: the passport, made only on request."""


class ImageStatus(IntEnum):
    """The outcome for one image: the number is in the ``status`` tensor, the name in every error and report."""

    OK = 0
    EMPTY = 1
    """The file has no bytes."""
    NOT_AN_IMAGE = 2
    """The bytes are not of any known image format."""
    UNSUPPORTED_FORMAT = 3
    """An image, but of a format or variant that cannot be read here."""
    TRUNCATED = 4
    """The file ends before the picture does."""
    CORRUPT = 5
    """The file contradicts itself."""
    TOO_LARGE = 6
    """More bytes or pixels than the limits allow."""
    LIMIT = 7
    """Over another limit: side ratio, frames, parts, size of metadata, or time."""
    INTERNAL = 8
    """A defect of this program, not of the image."""
