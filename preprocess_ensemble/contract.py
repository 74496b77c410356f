"""The wire contract, whose names ``triton_models/*/config.pbtxt`` repeat for Triton. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, get_args

CONTRACT_VERSION: Final = 1
"""Version of the wire contract; the passport of an exported model has the version for which it was made."""

DEFAULT_NAME: Final = "clip"  # name of a model that was exported without ``--name``
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}")
"""Pattern of a name, without underscore: a model ``clip_text`` would share ``clip_text_encoder`` with ``clip``."""

SERVER_ID: Final = "clip-serve:"
"""Beginning of the server's name in its metadata; the names of its models follow, separated by commas."""


@dataclass(frozen=True)
class ModelNames:
    """Names of the Triton models that serve one exported model. Several exported models can share a repository."""

    name: str = DEFAULT_NAME
    """Raises ValueError if it is not up to 63 letters, digits, dots and hyphens that begin with a letter or digit."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"{self.name!r} cannot name a model: use up to 63 letters, digits, dots and hyphens, and begin with "
                "a letter or digit"
            )

    @property
    def image(self) -> str:
        """The ensemble: encoded image in, embedding out."""
        return f"{self.name}_image"

    @property
    def preprocess(self) -> str:
        """The step that decodes; it also answers the handshake."""
        return f"{self.name}_preprocess"

    @property
    def encoder(self) -> str:
        return f"{self.name}_encoder"

    @property
    def text(self) -> str:
        """The ensemble of the text tower: text in, embedding out. It exists if the text tower was exported."""
        return f"{self.name}_text"

    @property
    def tokenize(self) -> str:
        return f"{self.name}_tokenize"

    @property
    def text_encoder(self) -> str:
        return f"{self.name}_text_encoder"

    @property
    def of_images(self) -> tuple[str, str, str]:
        return self.preprocess, self.encoder, self.image

    @property
    def of_texts(self) -> tuple[str, str, str]:
        return self.tokenize, self.text_encoder, self.text


DEFAULT_NAMES: Final = ModelNames()

IMAGE: Final = "image"  # input, BYTES [N, 1]: one encoded image file per row
PIXELS: Final = "pixels"  # inner tensor, UINT8 [N, H, W, 3]: the model's input
TEXT: Final = "text"  # input, BYTES [N, 1]: one text in UTF-8 per row, of at most MAX_TEXT_BYTES
TOKENS: Final = "tokens"  # inner tensor, INT32 [N, L]: token ids, padded to the length L of the context
TRUNCATED: Final = "truncated"
"""Output, BOOL [N, 1]: the text is longer than the context, and the vector is that of its beginning."""
EMBEDDING: Final = "embedding"  # output, FP32 [N, D]: unit rows; a failed image's row is NaN
STATUS: Final = "status"  # output, INT32 [N, 1]: 0, or the number of an ``ImageStatus``
ERROR: Final = "error"  # output, BYTES [N, 1]: empty, or one sentence for people
FINGERPRINT: Final = "fingerprint"  # output, INT32 [N, 2]: constant of the exported model
PASSPORT: Final = "model"  # output of the preprocessor, BYTES [N, 1]: the passport, made only on request

Precision = Literal["auto", "fp32"]
"""Arithmetic in which a CPU runs the model. ``fp32`` is the reference; ``auto`` takes the runtime that
``runtimes.processor.TABLE`` names for the processor, if its vectors agree with fp32."""
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)

MAX_TEXT_BYTES: Final = 65536  # a hundred times as much as fits into the longest context


class ImageStatus(IntEnum):
    """The outcome for one image or text: the number is in the ``status`` tensor, the name in every error and report."""

    OK = 0
    EMPTY = 1  # the file is empty, or the text has only white space
    NOT_AN_IMAGE = 2  # the bytes are not of any known image format
    UNSUPPORTED_FORMAT = 3  # an image, but its format or variant cannot be read here
    TRUNCATED = 4  # the file ends before the picture does
    CORRUPT = 5  # the file contradicts itself
    TOO_LARGE = 6  # more bytes or pixels than the limits allow, or more than MAX_TEXT_BYTES
    LIMIT = 7  # another limit: side ratio, frames, parts, size of metadata, or time
    INTERNAL = 8  # this program has a defect; the image may be good
    NOT_UTF8 = 9
