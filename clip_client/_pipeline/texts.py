"""From a text to the bytes to send."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Any

from clip_client._errors import TextError
from clip_client._model import Tower
from clip_client._pipeline.encoder import Encoder
from preprocess_ensemble.contract import MAX_TEXT_BYTES

if TYPE_CHECKING:
    from clip_client._model import ModelInfo


class TextEncoder(Encoder):
    """Encodes texts in UTF-8. The server cleans them and turns them into tokens, as the model needs."""

    tower = Tower.TEXT

    def items(self, source: object) -> Iterable[Any] | AsyncIterable[Any]:
        if isinstance(source, str):
            return [source]
        if isinstance(source, bytes | bytearray | memoryview):
            raise _no_text(source)
        if isinstance(source, list | tuple):
            # Now, and not after the texts before it have been embedded.
            for text in source:
                if not isinstance(text, str):
                    raise _no_text(text)
        return super().items(source)

    def path_of(self, item: object) -> None:
        return None

    def unchanged(self, source: object) -> bytes | None:
        """Return the bytes to send, or None for a text that no server takes, since it is too long or has half of a
        surrogate pair: :meth:`encode` says that as a server would.

        Raises TypeError if it is no text.
        """
        if not isinstance(source, str):
            raise _no_text(source)
        if len(source) > MAX_TEXT_BYTES:
            return None
        try:
            return source.encode()
        except UnicodeEncodeError:
            return None

    def encode(self, source: object, model: ModelInfo) -> bytes:
        from preprocess_ensemble.text.text_input import TextRejected, checked_text

        assert isinstance(source, str)
        data = source.encode(errors="surrogatepass")
        try:
            checked_text(data)
        except TextRejected as error:
            raise TextError(error.message, code=error.status.name) from None
        return data


def _no_text(found: object) -> TypeError:
    return TypeError(f"a text is a str, got {type(found).__name__}")
