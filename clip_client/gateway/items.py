"""The items of a request: texts, images, and URLs of images, in any of the forms in which clients write them."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from clip_client.gateway.errors import Refusal

Modality: TypeAlias = Literal["text", "image", "audio"]

TOKENS: Final = (
    "The input holds token ids, and this model has a tokenizer of its own: send texts. LangChain's OpenAIEmbeddings "
    "sends texts with check_embedding_ctx_length=False."
)
_PART: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "properties": {"text": {"type": "string"}}},
        {"type": "object", "properties": {"image_url": {"type": "object", "properties": {"url": {"type": "string"}}}}},
    ]
}
INPUT_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [*_PART["anyOf"], {"type": "array", "items": _PART, "minItems": 1}],
    "description": "Texts, and images as data URIs, in any mixture.",
}
_FORMS: Final = 'a text, a data URI (data:image/jpeg;base64,...), {"text": ...} or {"image_url": {"url": ...}}'
_LONGEST_URL: Final = 8192


@dataclass(frozen=True)
class ImageUrl:
    """An image that the gateway has to fetch."""

    url: str


Item: TypeAlias = str | bytes | ImageUrl
"""A text, the bytes of an image file, or the URL of an image."""


def items_of(value: Any, *, modality: Modality | None, most: int) -> list[Item]:
    """Return the items of ``input``, one or a list of them.

    Without a ``modality``, a text that is a data URI of an image counts as an image, as in NVIDIA's NIM. Raises
    Refusal with the position of the item that is at fault.
    """
    if modality == "audio":
        raise Refusal(422, "This gateway embeds images and texts, no audio.")
    values = value if isinstance(value, list) else [value]
    if not values:
        raise Refusal(422, "The input is empty: send at least one item.")
    if len(values) > most:
        raise Refusal(422, f"The input has {len(values)} items; the limit of --max-items is {most}.")
    return [_item(index, one, modality) for index, one in enumerate(values)]


def _item(index: int, value: Any, modality: Modality | None) -> Item:
    if isinstance(value, int | list):
        raise Refusal(422, TOKENS, code="tokens_not_supported")
    if isinstance(value, str):
        is_image = modality == "image" or (modality is None and is_image_uri(value))
        return _image(index, value) if is_image else value
    if isinstance(value, dict):
        if isinstance(text := value.get("text"), str):
            return text
        image = value.get("image_url")
        if isinstance(url := image.get("url") if isinstance(image, dict) else image, str):
            return _image(index, url)
    raise Refusal(422, f"Item {index} has none of the forms of an item: {_FORMS}.", index=index)


def is_image_uri(text: str) -> bool:
    """Whether a text is a data URI of an image."""
    return text[:11].lower() == "data:image/"


def _image(index: int, address: str) -> bytes | ImageUrl:
    if address[:5].lower() == "data:":
        head, comma, data = address.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            message = f"Item {index} is a data URI without base64: send data:image/jpeg;base64,..."
            raise Refusal(422, message, index=index)
        return decoded(index, data)
    if address[:8].lower().startswith(("http://", "https://")):
        if len(address) > _LONGEST_URL:
            raise Refusal(422, f"Item {index} is a URL of more than {_LONGEST_URL} characters.", index=index)
        return ImageUrl(address)
    raise Refusal(422, f"Item {index} is no image: send a data URI, data:image/jpeg;base64,...", index=index)


def decoded(index: int, text: str) -> bytes:
    """Return the bytes of an item in base64. Raises Refusal."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):  # ValueError: not ASCII
        message = f"Item {index} is no base64: it has letters outside of A-Z, a-z, 0-9, + and /, or lacks its padding."
        raise Refusal(422, message, index=index) from None
