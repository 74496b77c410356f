"""Turn texts, as bytes, into token ids. The server and ``local:`` both use this module."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from preprocess_ensemble.contract import MAX_TEXT_BYTES, ImageStatus
from preprocess_ensemble.errors import Outcome, Rejected
from preprocess_ensemble.text.tokenizer import Tokenizer

_MOST_S: Final = 4.0
"""Processor time for the texts of one request, in seconds. A text of 64 KB takes 2 to 65 ms, but 900 ms if each of its
lines is a damaged character that has to be repaired."""
_ALWAYS_BYTES: Final = 4096
"""Texts up to this size are tokenized even if their request has used up its time; the slowest takes 60 ms."""

_INTERNAL_MESSAGE: Final = "The text could not be tokenized because of an internal error; the log has the details."

_TIME_MESSAGE: Final = f"The texts of this request took more than {_MOST_S:g} s; send fewer long texts in one request."


@dataclass(frozen=True)
class TokenizedText(Outcome):
    truncated: bool = False


def checked_text(data: bytes) -> str:
    """Return the text of one row. Raises Rejected with EMPTY, NOT_UTF8 or TOO_LARGE."""
    if len(data) > MAX_TEXT_BYTES:
        message = f"The text has {len(data):,} bytes; the limit is {MAX_TEXT_BYTES:,}: shorten it."
        raise Rejected(ImageStatus.TOO_LARGE, message)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"The text is not UTF-8: byte {error.start + 1} of {len(data)} is wrong."
        raise Rejected(ImageStatus.NOT_UTF8, message) from None
    if not text.strip():
        raise Rejected(ImageStatus.EMPTY, "The text is empty, or has only white space.")
    return text


def tokenize_rows(tokenizer: Tokenizer, rows: Sequence[bytes]) -> tuple[npt.NDArray[np.int32], list[TokenizedText]]:
    """Tokenize the texts of one request, in UTF-8. A bad text never makes this function raise.

    Returns token ids, int32 (N, L), and the outcome of each text. A text that failed has the ids of the empty text.
    """
    tokens = np.tile(tokenizer.empty, (len(rows), 1))
    outcomes = []
    end = time.thread_time() + _MOST_S
    for number, data in enumerate(rows):
        try:
            if len(data) > _ALWAYS_BYTES and time.thread_time() > end:
                raise Rejected(ImageStatus.LIMIT, _TIME_MESSAGE)
            ids, truncated = tokenizer.encode([checked_text(data)])
        except Rejected as error:
            outcomes.append(TokenizedText(error.status, error.message))
        except Exception:
            outcomes.append(TokenizedText(ImageStatus.INTERNAL, _INTERNAL_MESSAGE, traceback.format_exc()))
        else:
            tokens[number] = ids[0]
            outcomes.append(TokenizedText(ImageStatus.OK, truncated=bool(truncated[0])))
    return tokens, outcomes
