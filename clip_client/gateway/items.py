"""Sorts the items of a request into texts and images. An item that may be either is refused."""

from __future__ import annotations

import base64
import re
from typing import Any, Final, Literal, TypeAlias

from clip_client.gateway.dialect import Refusal

Item: TypeAlias = str | bytes  # a text, or the bytes of an image file
Modality: TypeAlias = Literal["text", "image"]

MAX_ITEMS: Final = 2048  # most items of one request; OpenAI has the same limit
ITEM_FORMS: Final = 'a text, a data URI (data:image/jpeg;base64,...), {"text": ...} or {"image_url": {"url": ...}}'
TOKENS: Final = (
    "The input holds token ids, and this model has a tokenizer of its own: send texts. LangChain's OpenAIEmbeddings "
    "sends texts with check_embedding_ctx_length=False."
)
_DOWNLOAD: Final = """\
    image = base64.b64encode(urllib.request.urlopen(url).read()).decode()
    client.embeddings.create(model="clip", input=["data:image/jpeg;base64," + image])"""

_BLANK: Final = " \t\r\n\v\f\0\u00a0\u200b\ufeff"
"""A file or another program may put these around an item; the last is the byte order mark."""
_DATA_URI: Final = re.compile(r"data:(image/|[^,]*;base64,|[\w.+-]+/[\w.+-]+[;,])", re.IGNORECASE)
_URL: Final = re.compile(r"https?://\S+", re.IGNORECASE)
_ENCODED: Final = re.compile(r"[\w+/=-]{48,}", re.ASCII)
"""The smallest image file, a GIF of 35 bytes, has 48 letters in base64."""
_KINDS: Final = tuple(map(re.compile, ("[a-z]", "[A-Z]", "[0-9]")))  # base64 has all; words and paths rarely do
_PIECE: Final = 2**20
"""Letters that are decoded at once, a multiple of 4; they take about a millisecond."""


def items_of(value: Any, modality: Modality | None) -> list[Item]:
    """Return the items of ``input``, which is one item or a list. Raises Refusal with the position of a wrong item.

    Without a ``modality``, a data URI counts as an image, as in NVIDIA's NIM. A text that looks like an image in
    another form is refused, because its vector would be the vector of the letters.
    """
    values = value if isinstance(value, list) else [value]
    if not values:
        raise Refusal(422, "The input is empty: send at least one item.")
    if len(values) > MAX_ITEMS:
        raise Refusal(422, f"The input has {len(values)} items; the limit is {MAX_ITEMS}: send several requests.")
    return [_item(index, one, modality) for index, one in enumerate(values)]


def _item(index: int, value: Any, modality: Modality | None) -> Item:
    match value:
        case int() | list():
            raise Refusal(422, TOKENS, code="tokens_not_supported")
        case str():
            return value if modality == "text" else _image(index, value) if modality else _guessed(index, value)
        case {"text": str(), "image_url": str() | {"url": str()}}:
            raise Refusal(422, f"Item {index} is a text and an image: send each as an item of its own.", index=index)
        case {"text": str(text)}:
            return text
        case {"image_url": str(url)} | {"image_url": {"url": str(url)}}:
            return _image(index, url)
    raise Refusal(422, f"Item {index} has none of the forms of an item: {ITEM_FORMS}.", index=index)


def _guessed(index: int, value: str) -> Item:
    stripped = value.strip(_BLANK)
    if _DATA_URI.match(stripped):
        return _image(index, stripped)
    if _URL.fullmatch(stripped):
        looks_like = "a URL"
    elif any(all(kind.search(letters) for kind in _KINDS) for letters in _ENCODED.findall(value)):
        looks_like = "a file in base64"
    else:
        return value
    forms = 'data:image/jpeg;base64,... if it is an image, and {"text": ...} if it is a text'
    message = f"Item {index} is {looks_like}, and may be an image or a text: send {forms}."
    raise Refusal(400, message, code="ambiguous_item", index=index)


def _image(index: int, address: str) -> bytes:
    address = address.strip(_BLANK)
    head, comma, data = address.partition(",")
    if head[:5].lower() == "data:" and comma and head.lower().endswith(";base64"):
        return decoded(index, data)
    if _URL.match(address):
        message = f"Item {index} is a URL, and the gateway downloads nothing: send the bytes, as in\n{_DOWNLOAD}"
        raise Refusal(400, message, code="URL_REFUSED", index=index)
    raise Refusal(422, f"Item {index} is not an image: send data:image/jpeg;base64,...", index=index)


def decoded(index: int, text: str) -> bytes:
    """Return the bytes of an item in base64, in pieces, so that the event loop can run meanwhile. Raises Refusal."""
    try:
        if "=" in text[:-4]:
            raise ValueError
        pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
        return b"".join(base64.b64decode(piece, validate=True) for piece in pieces)
    except ValueError:
        message = f"Item {index} is not base64: it has letters outside of A-Z, a-z, 0-9, + and /, or lacks its padding."
        raise Refusal(422, message, index=index) from None
