"""The tokenizer of an exported model. It gives a text the same token ids as open_clip's tokenizer for the model.

open_clip needs PyTorch, so this module repeats its cleaning of texts; a test compares the two. The cleaning is from
OpenAI's CLIP (MIT licence), the canonical form from Google's big_vision (Apache licence).
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

TOKENIZER_FILE: Final = "tokenizer.json"  # file of the tokenizers library, with context and padding

Kind = Literal["clip-bpe", "hf"]
Cleaning = Literal["lower", "canonicalize", "whitespace"]
CLEANINGS: Final = get_args(Cleaning)

START: Final = "<start_of_text>"
END: Final = "<end_of_text>"
_WORD: Final = regex.compile(
    rf"""{START}|{END}|'s|'t|'re|'ve|'m|'ll|'d|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+""", regex.IGNORECASE
)
"""Pattern of a word. The tokenizers library itself lacks newer letters, and would split some texts differently."""
_WITHOUT_PUNCTUATION: Final = str.maketrans("_", " ", string.punctuation.replace("_", ""))


class TokenizerError(ReportedError):
    """A tokenizer cannot be used; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    kind: Kind  # CLIP's tokenizer, which gets words, or any other, which gets the text
    clean: Cleaning
    context_length: int  # token ids of a text: longer texts are cut off, shorter ones padded
    zeroed_id: int | None = None  # replaced by 0 (open_clip's ``strip_sep_token``)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> TokenizerConfig:
        try:
            config = cls(**mapping)
        except TypeError as error:
            message = f"The tokenizer's configuration cannot be read ({error}); export the model again."
            raise TokenizerError(message) from None
        if config.kind not in get_args(Kind) or config.clean not in CLEANINGS:
            raise TokenizerError(
                f"This package has no tokenizer of the kind {config.kind!r} with the cleaning {config.clean!r}; "
                "install the version that exported the model, or export it again."
            )
        return config


class Tokenizer:
    """Turns texts into token ids. Thread-safe."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, config: TokenizerConfig) -> None:
        self._tokenizer = tokenizer
        self.config = config
        self.empty: npt.NDArray[np.int32] = self.encode([""])[0][0]  # token ids (L,) of the empty text

    @classmethod
    def load(cls, directory: Path, config: TokenizerConfig, sha256: Mapping[str, str]) -> Tokenizer:
        """Load from a folder. Raises TokenizerError if a file is missing, or is not the exported one by ``sha256``."""
        try:
            files = {name: (directory / name).read_bytes() for name in {TOKENIZER_FILE, *sha256}}
        except OSError as error:
            raise TokenizerError(
                f"{error.filename} cannot be read ({error.strerror}); export the model again."
            ) from None
        for name, data in files.items():
            if hashlib.sha256(data).hexdigest() != sha256.get(name):
                raise TokenizerError(
                    f"{directory / name} is not the file that was exported with this model; export the model again."
                )
        try:
            return cls(_parsed(files[TOKENIZER_FILE]), config)
        except Exception as error:  # The library's exceptions share no base class.
            raise TokenizerError(
                f"tokenizers {tokenizers.__version__} cannot load {directory / TOKENIZER_FILE} "
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
        # Pass only as many words as the context has tokens, because each becomes one token or more. They decide all its
        # tokens, and whether the text is too long, so the rest of 64 KB costs nothing.
        words = [match.group() for match in islice(_WORD.finditer(text), self.config.context_length)]
        return self._tokenizer.encode(words, is_pretokenized=True)


def _clean(text: str, cleaning: Cleaning) -> str:
    """Repair wrongly decoded characters (a lone surrogate becomes U+FFFD), resolve HTML entities twice, and clean."""
    text = html.unescape(html.unescape(ftfy.fix_text(text)))
    if cleaning == "canonicalize":
        text = text.translate(_WITHOUT_PUNCTUATION).lower()
    text = " ".join(text.split())
    return text.lower() if cleaning == "lower" else text


def _parsed(data: bytes) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_buffer(data)
    if isinstance(tokenizer.model, tokenizers.models.Unigram):
        # Set the scores again: unlike transformers, the library reads some of them wrong in the last bit. This bit
        # decides between orders of the same pieces: "of" forty times may be thirteen long pieces and a short piece in
        # another place.
        model = json.loads(data)["model"]
        scores = [(piece, score) for piece, score in model["vocab"]]
        tokenizer.model = tokenizers.models.Unigram(scores, model["unk_id"], model.get("byte_fallback", False))
    return tokenizer
