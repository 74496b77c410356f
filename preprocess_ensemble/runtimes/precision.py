"""The setting ``precision``: its values, and its environment variable."""

from __future__ import annotations

import os
from typing import Final

from preprocess_ensemble.contract import PRECISIONS, Precision
from preprocess_ensemble.errors import ReportedError

PRECISION_VARIABLE: Final = "CLIP_PRECISION"
"""Variable that overrides a model's configuration in a server; ``local:`` reads it without a setting."""


class PrecisionUnknown(ReportedError, ValueError):
    """The text is not a precision; the message has the allowed values."""


def parse_precision(text: str) -> Precision:
    if text not in PRECISIONS:
        raise PrecisionUnknown(" or ".join(PRECISIONS))
    return text


def precision_of_environment() -> Precision | None:
    """Return the precision in ``CLIP_PRECISION``; None if that is not set or empty. Raises PrecisionUnknown."""
    text = os.environ.get(PRECISION_VARIABLE)
    try:
        return parse_precision(text) if text else None
    except PrecisionUnknown as error:
        raise PrecisionUnknown(
            f"The environment variable {PRECISION_VARIABLE} must be {error}, not {text!r}."
        ) from None
