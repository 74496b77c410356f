"""Turn the images or texts of a caller into the bytes to send."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Iterable, Mapping
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final

from clip_client._config import ClientConfig
from clip_client._encoding import IMAGE_ENCODINGS, EncodedImage
from clip_client._errors import ImageError, ProtocolMismatch, TextError
from clip_client._model import ModelInfo, Tower
from clip_client._pipeline.images import is_single, png_of, read_image, too_large
from preprocess_ensemble.contract import MAX_TEXT_BYTES
from preprocess_ensemble.cores import usable_cores

if TYPE_CHECKING:
    from PIL.Image import Image

_OBJECT_LOCKS: Final = 64  # chosen by an object's address; several times the threads, so objects seldom share one


class Encoder(ABC):
    tower: ClassVar[Tower]

    def items(self, source: object) -> Iterable[Any] | AsyncIterable[Any]:
        """Return the images or texts in ``source`` as an iterable. Raises TypeError if ``source`` is anything else."""
        if isinstance(source, Iterable | AsyncIterable):
            return source
        item = self.tower.value
        raise TypeError(f"expected one {item} or an iterable of {item}s, got {type(source).__name__}")

    def path_of(self, item: object) -> str | None:
        return None

    @abstractmethod
    def unchanged(self, source: object) -> bytes | None:
        """Return the bytes to send if ``source`` is sent as it is; if None, call :meth:`encode` in a thread."""

    def payloads(self, items: Iterable[Any], most: int, most_bytes: int) -> list[bytes]:
        """Return the bytes to send for the first items, until one is not sent as it is or one of the limits is met."""
        payloads: list[bytes] = []
        try:
            for payload in map(self.unchanged, islice(items, most)):
                if payload is None or most_bytes <= 0:
                    break
                most_bytes -= len(payload)
                payloads.append(payload)
        except TypeError:
            if not payloads:  # else the next call raises it, after these items
                raise
        return payloads

    @abstractmethod
    def encode(self, source: object, model: ModelInfo) -> bytes:
        """Return the bytes to send. May block and compute: call it in a worker thread. Raises an ItemError."""


class ImageEncoder(Encoder):
    """Reads images and, unless ``transfer`` is ``"original"``, reduces them to the model's input pixels.

    The server's own code does this. It decodes at reduced size if that is safe, and gives exactly the input size.
    """

    tower = Tower.IMAGE

    def __init__(self, config: ClientConfig) -> None:
        self._encoding = IMAGE_ENCODINGS[config.transfer]
        self._max_bytes = config.max_image_bytes
        self._unchanged_up_to = min(self._encoding.unchanged_up_to, self._max_bytes)
        # Limit the threads that decode at once, because each may hold a large picture. More threads wait for files.
        self._cores = threading.BoundedSemaphore(usable_cores())
        self._object_locks = tuple(threading.Lock() for _ in range(_OBJECT_LOCKS))

    def items(self, source: object) -> Iterable[Any] | AsyncIterable[Any]:
        if isinstance(source, list):  # the quick answer for most calls
            return source
        return [source] if isinstance(source, bytes) or is_single(source) else super().items(source)

    def path_of(self, item: object) -> str | None:
        """Return the item if it is a path, else None; names that are not UTF-8 carry surrogate escapes."""
        return None if isinstance(item, bytes) or not isinstance(item, str | os.PathLike) else os.fsdecode(item)

    def unchanged(self, source: object) -> bytes | None:
        if type(source) is bytes:  # the quick answer for most images that are not paths
            return source if len(source) <= self._unchanged_up_to else None
        if isinstance(source, EncodedImage):
            return source if source.file_bytes <= self._max_bytes else None
        if not isinstance(source, bytes | bytearray | memoryview):
            return None
        try:
            size = source.nbytes if isinstance(source, memoryview) else len(source)
            return bytes(source) if size <= self._unchanged_up_to else None
        except Exception:  # such as a released memoryview; `encode` turns it into the error of this image
            return None

    def encode(self, source: object, model: ModelInfo) -> bytes:
        """Raise ImageError with the server's code or ``UNREADABLE``, and ProtocolMismatch for unknown preprocessing."""
        if isinstance(source, EncodedImage):  # refused by `unchanged`
            raise too_large(source.file_bytes, self._max_bytes)
        # Lock shared objects: reading a file object moves its position, and Pillow decodes a picture at its first use.
        # If a caller passes one object twice, two threads must not do that at once.
        is_shared = not isinstance(source, str | os.PathLike | bytes | bytearray | memoryview)
        with self._object_locks[id(source) // 16 % _OBJECT_LOCKS] if is_shared else nullcontext():
            image = read_image(source, max_bytes=self._max_bytes)
        options = self._encoding.save_options
        if options is not None and not isinstance(image, bytes) and _is_ordinary(image):
            return self._reduced(image, model, options)
        data = image if isinstance(image, bytes) else png_of(image)
        if options is None or len(data) <= self._encoding.unchanged_up_to:
            return data
        return min(data, self._reduced(data, model, options), key=len)

    def _reduced(self, image: bytes | Image, model: ModelInfo, options: Mapping[str, Any]) -> bytes:
        from preprocess_ensemble.imaging.decode import DecodeError, DecodeLimits, decode
        from preprocess_ensemble.imaging.transform import PreprocessConfig, encoded_input

        try:
            config = PreprocessConfig.from_mapping(model.preprocess)
        except (ValueError, TypeError, KeyError) as error:
            raise ProtocolMismatch(
                f"This client does not know the preprocessing of {model.id} ({error}); install the same version of "
                "clip-triton on both sides, or use transfer='original'."
            ) from None
        with self._cores:
            try:
                if isinstance(image, bytes):
                    image = decode(image, DecodeLimits(max_bytes=self._max_bytes), at_least=config.decode_at_least)
            except DecodeError as error:
                raise ImageError(error.message, code=error.status.name) from None
            return encoded_input(image, config, options)


def _is_ordinary(picture: Image) -> bool:
    """Other pictures in memory are saved and decoded again, so that the decoder's error says what is wrong."""
    from preprocess_ensemble.imaging.decode import DecodeLimits

    limits = DecodeLimits()
    return (
        picture.mode in ("L", "RGB")
        and not picture.has_transparency_data
        and max(picture.size) <= limits.max_side_ratio * min(picture.size)
        and picture.width * picture.height <= limits.max_pixels
    )


class TextEncoder(Encoder):
    """Encodes texts in UTF-8. The server cleans them and turns them into tokens, as the model needs."""

    tower = Tower.TEXT

    def items(self, source: object) -> Iterable[Any] | AsyncIterable[Any]:
        # Check a list at once, before any of its texts is embedded.
        for text in source if isinstance(source, list | tuple) else ():
            _check_text(text)
        if isinstance(source, bytes | bytearray | memoryview):
            _check_text(source)
        return [source] if isinstance(source, str) else super().items(source)

    def unchanged(self, source: object) -> bytes | None:
        """Return the bytes to send, or None for a text that servers refuse. Raises TypeError for other types."""
        text = _check_text(source)
        try:
            return text.encode() if len(text) <= MAX_TEXT_BYTES else None
        except UnicodeEncodeError:  # half of a surrogate pair
            return None

    def encode(self, source: object, model: ModelInfo) -> bytes:
        """Raise the TextError that a server would give for a text that :meth:`unchanged` refused."""
        from preprocess_ensemble.errors import Rejected
        from preprocess_ensemble.text.text_input import checked_text

        data = _check_text(source).encode(errors="surrogatepass")
        try:
            checked_text(data)
        except Rejected as error:
            raise TextError(error.message, code=error.status.name) from None
        return data


def _check_text(found: object) -> str:
    if not isinstance(found, str):
        raise TypeError(f"a text must be a str, got {type(found).__name__}")
    return found
