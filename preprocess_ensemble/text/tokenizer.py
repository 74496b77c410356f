"""The tokenizer of an exported model: texts in, token ids out, those of open_clip's tokenizer for the model.

What open_clip does to a text before its tokenizer sees it is repeated here, because open_clip needs PyTorch; a test
compares the two. The cleaning is from OpenAI's CLIP (MIT licence), the canonical form from Google's big_vision (Apache
licence).
"""

from __future__ import annotations

import hashlib
import html
import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import ftfy
import numpy as np
import regex
import tokenizers

from preprocess_ensemble.errors import ReportedError, first_line

if TYPE_CHECKING:
    import numpy.typing as npt

TOKENIZER_FILE: Final = "tokenizer.json"
"""In the format of the tokenizers library, with the length of the context and the padding."""

Kind = Literal["clip-bpe", "hf"]
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


class TokenizerError(ReportedError):
    """A tokenizer cannot be used; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """What open_clip does around the tokenizer's file."""

    kind: Kind
    """``"clip-bpe"``, that of CLIP, which gets words; or ``"hf"``, any other, which gets the text."""
    clean: Cleaning
    context_length: int
    """Number of token ids of each text: a longer one is cut off, a shorter one padded."""
    zeroed_id: int | None = None
    """A token id in whose place the model gets 0 (open_clip's ``strip_sep_token``)."""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> TokenizerConfig:
        """Read what the passport holds of it: its fields. Raises TokenizerError."""
        try:
            config = cls(**mapping)
        except TypeError as error:
            raise TokenizerError(
                f"The tokenizer's configuration cannot be read ({error}); export the model again."
            ) from None
        if config.kind not in get_args(Kind) or config.clean not in CLEANINGS:
            raise TokenizerError(
                f"This package knows no tokenizer of the kind {config.kind!r} with the cleaning {config.clean!r}; "
                "install the version that exported the model, or export it again."
            )
        return config


class Tokenizer:
    """Makes token ids of texts. Threads may share one."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, config: TokenizerConfig) -> None:
        """Use :meth:`load`."""
        self._tokenizer = tokenizer
        self.config = config
        self.empty: npt.NDArray[np.int32] = self.encode([""])[0][0]
        """Token ids (L,) of the empty text."""

    @classmethod
    def load(cls, directory: Path, config: TokenizerConfig, sha256: Mapping[str, str]) -> Tokenizer:
        """Load the tokenizer of the folder ``directory``, whose files must have these SHA-256: file name -> digest.

        Raises TokenizerError if a file is missing, or is not the one that was exported with the model.
        """
        files = {name: _read(directory / name) for name in {TOKENIZER_FILE, *sha256}}
        for name, data in files.items():
            if hashlib.sha256(data).hexdigest() != sha256.get(name):
                raise TokenizerError(
                    f"{directory / name} is not the file that was exported with this model; export the model again."
                )
        try:
            return cls(_parsed(files[TOKENIZER_FILE]), config)
        except Exception as error:  # The library's exceptions share no base class.
            raise TokenizerError(
                f"{directory / TOKENIZER_FILE} cannot be loaded by tokenizers {tokenizers.__version__} "
                f"({first_line(error)}); install the version of the export, or export the model again."
            ) from error

    def encode(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Return token ids, int32 (N, L), and whether each text was longer than the context, bool (N,)."""
        length = self.config.context_length
        encodings = [self._encode(_clean(text, self.config.clean)) for text in texts]
        ids = np.array([encoding.ids for encoding in encodings], np.int32).reshape(len(texts), length)
        if self.config.zeroed_id is not None:
            ids[ids == self.config.zeroed_id] = 0
        return ids, np.array([bool(encoding.overflowing) for encoding in encodings], np.bool_)

    def _encode(self, text: str) -> tokenizers.Encoding:
        if self.config.kind == "hf":
            return self._tokenizer.encode(text)
        # As many words as the context has room for decide all its tokens, and with one more it is too long: the rest
        # of 64 KB costs nothing.
        return self._tokenizer.encode(_clip_words(text, self.config.context_length), is_pretokenized=True)


def _clean(text: str, cleaning: Cleaning) -> str:
    """Return ``text`` as a tokenizer of this ``cleaning`` gets it.

    All repair wrongly decoded characters, resolve HTML entities, twice, and make one space of all white space. A lone
    surrogate becomes U+FFFD. "lower" then changes to lower case; "canonicalize" also removes ASCII punctuation.
    """
    text = html.unescape(html.unescape(ftfy.fix_text(text)))
    if cleaning == "canonicalize":
        text = text.translate(_WITHOUT_PUNCTUATION).lower()
    text = " ".join(text.split())
    return text.lower() if cleaning == "lower" else text


def _clip_words(text: str, limit: int) -> list[str]:
    """Return the first ``limit`` words of a clean text; each becomes one token or more."""
    return [match.group() for match in islice(_WORD.finditer(text), limit)]


def _parsed(data: bytes) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_buffer(data)
    if isinstance(tokenizer.model, tokenizers.models.Unigram):
        # The library reads some scores wrong in the last bit, and transformers does not. It decides between orders of
        # the same pieces: "of" forty times may be thirteen long pieces and a short one, whose place is then another.
        model = json.loads(data)["model"]
        scores = [(piece, score) for piece, score in model["vocab"]]
        tokenizer.model = tokenizers.models.Unigram(scores, model["unk_id"], model.get("byte_fallback", False))
    return tokenizer


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read ({error.strerror}); export the model again.") from None
