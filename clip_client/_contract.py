"""What travels between client and server: names, versions and codes, and nothing else.

The server's own copy of these names stands in ``triton_models/*/config.pbtxt``; ``tests/unit/test_contract.py`` reads
those files and fails when the two disagree.
"""

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
MODEL: Final = "model"
"""Out of the preprocessor, BYTES [N, 1]: the passport, made only when asked for."""
