"""The tokenizer of an exported model: texts in, token ids out, those of open_clip's tokenizer for the model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np
import tokenizers

from preprocess_ensemble.errors import ReportedError, first_line
from preprocess_ensemble.text.cleaning import CLEANINGS, Cleaning, clean, clip_words

if TYPE_CHECKING:
    import numpy.typing as npt

TOKENIZER_FILE: Final = "tokenizer.json"
"""In the format of the tokenizers library, with the length of the context and the padding."""

Kind = Literal["clip-bpe", "hf"]
_KINDS: Final = get_args(Kind)


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

    def to_mapping(self) -> dict[str, Any]:
        """Return it for the passport."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> TokenizerConfig:
        """Read what :meth:`to_mapping` returned. Raises TokenizerError."""
        try:
            config = cls(**mapping)
        except TypeError as error:
            raise TokenizerError(
                f"The tokenizer's configuration cannot be read ({error}); export the model again."
            ) from None
        if config.kind not in _KINDS or config.clean not in CLEANINGS:
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
        encodings = [self._encode(clean(text, self.config.clean)) for text in texts]
        ids = np.array([encoding.ids for encoding in encodings], np.int32).reshape(len(texts), length)
        if self.config.zeroed_id is not None:
            ids[ids == self.config.zeroed_id] = 0
        return ids, np.array([bool(encoding.overflowing) for encoding in encodings], np.bool_)

    def _encode(self, text: str) -> tokenizers.Encoding:
        if self.config.kind == "hf":
            return self._tokenizer.encode(text)
        # As many words as the context has room for decide all its tokens, and with one more it is too long: the rest
        # of 64 KB costs nothing.
        return self._tokenizer.encode(clip_words(text, self.config.context_length), is_pretokenized=True)


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
