"""What open_clip does to a text before its tokenizer sees it, and the words into which CLIP's tokenizer splits it.

It is repeated here, because open_clip needs PyTorch; a test compares the two. The cleaning is from OpenAI's CLIP (MIT
licence), the canonical form from Google's big_vision (Apache licence).
"""

from __future__ import annotations

import html
import string
from itertools import islice
from typing import Final, Literal, get_args

import ftfy
import regex

Cleaning = Literal["lower", "canonicalize", "whitespace"]
"""open_clip's names."""
CLEANINGS: Final = get_args(Cleaning)

START: Final = "<start_of_text>"
END: Final = "<end_of_text>"
_WORD: Final = regex.compile(
    rf"""{START}|{END}|'s|'t|'re|'ve|'m|'ll|'d|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+""", regex.IGNORECASE
)
"""``regex`` knows newer letters than the tokenizers library, which therefore splits some texts in other places."""
_WITHOUT_PUNCTUATION: Final = str.maketrans("_", " ", string.punctuation.replace("_", ""))


def clean(text: str, cleaning: Cleaning) -> str:
    """Return ``text`` as a tokenizer of this ``cleaning`` gets it.

    All repair wrongly decoded characters, resolve HTML entities, twice, and make one space of all white space. A lone
    surrogate becomes U+FFFD. "lower" then changes to lower case; "canonicalize" also removes ASCII punctuation.
    """
    text = html.unescape(html.unescape(ftfy.fix_text(text)))
    if cleaning == "canonicalize":
        text = text.translate(_WITHOUT_PUNCTUATION).lower()
    text = " ".join(text.split())
    return text.lower() if cleaning == "lower" else text


def clip_words(text: str, limit: int) -> list[str]:
    """Return the first ``limit`` words of a clean text; each becomes one token or more."""
    return [match.group() for match in islice(_WORD.finditer(text), limit)]
