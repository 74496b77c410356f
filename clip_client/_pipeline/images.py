"""Read every kind of image source."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clip_client._errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

_PNG_MODES = frozenset({"1", "L", "LA", "I;16", "P", "RGB", "RGBA"})
_WITH_ALPHA = {"La": "LA", "PA": "RGBA", "RGBa": "RGBA"}
"""Mode that PNG lacks -> mode that keeps its transparency. Other such modes become RGB, without transparency."""
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def is_single(images: object) -> bool:
    """Return whether ``images``, which are not bytes, are one image and not a collection. A str is a path."""
    if isinstance(images, np.ndarray):
        return images.ndim != 4
    return isinstance(images, str | os.PathLike | bytearray | memoryview) or _is_pil(images) or _is_file(images)


@contextmanager
def _only_image_errors() -> Iterator[None]:
    try:
        yield
    except ImageError:
        raise
    except OSError as error:
        raise _unreadable(error.strerror or type(error).__name__) from None
    except Exception as error:
        # Any exception concerns only this image: a caller's read(), a PIL plugin, a path with a null byte.
        raise _unreadable(f"reading it raised {type(error).__name__}") from None


@_only_image_errors()
def read_image(source: object, *, max_bytes: int) -> bytes | Image:
    """Return the bytes of an image file; for a picture in memory, return the picture, upright, in a mode of PNG.

    Blocks on files: call it in a worker thread. Raises only ImageError, with one of these codes:

    - ``UNREADABLE``: a file cannot be read, or is not a regular file.
    - ``EMPTY``: the file is empty.
    - ``TOO_LARGE``: the file has more than ``max_bytes``.
    - ``NOT_AN_IMAGE``: the object is not an image source.
    """
    if isinstance(source, str | os.PathLike):
        return _read_path(os.fsdecode(source), max_bytes)
    if isinstance(source, bytes | bytearray | memoryview):
        if (size := memoryview(source).nbytes) > max_bytes:
            raise too_large(size, max_bytes)
        return bytes(source)
    if isinstance(source, np.ndarray):
        return _from_array(source)
    if _is_pil(source):
        return _upright(source)
    if _is_file(source):
        return _read_at_most(source, max_bytes)
    raise ImageError(
        f"expected a path, bytes, a PIL image, a uint8 array (H, W, 3) or a binary file, got {type(source).__name__}.",
        code="NOT_AN_IMAGE",
    )


@_only_image_errors()
def png_of(picture: Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=1)  # the fastest, because the file lives only as long as one request
    return buffer.getvalue()


def _is_pil(source: object) -> bool:
    # Compare names, so that programs that embed files never load Pillow.
    return any(base.__module__ == "PIL.Image" and base.__name__ == "Image" for base in type(source).__mro__)


def _is_file(source: object) -> bool:
    return callable(getattr(source, "read", None))


def _read_path(path: str, max_bytes: int) -> bytes:
    if _URL.match(path) and not os.path.lexists(path):
        raise _unreadable("it is a URL; download the file, and pass its path or bytes")
    # O_NONBLOCK, because opening a FIFO without a writer would otherwise never return.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    # Check the kind of file first, because opening a device may have side effects.
    _check_regular(os.stat(path))
    with open(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        _check_regular(status)
        if status.st_size > max_bytes:
            raise too_large(status.st_size, max_bytes)
        content = _read_at_most(file, max_bytes)
    if not content:
        raise ImageError("The file is empty.", code="EMPTY")
    return content


def _check_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise _unreadable("it is a folder; pass the paths of its photos, as from sorted(Path(folder).rglob('*.jpg'))")
    if not stat.S_ISREG(status.st_mode):
        raise _unreadable("it is not a regular file")


def _read_at_most(file: Any, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while size <= max_bytes:
        chunk = file.read(min(2**20, max_bytes + 1 - size))
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise _unreadable(f"read() gave {type(chunk).__name__}, not bytes; open the file in binary mode")
        if not chunk:
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.append(bytes(chunk))
        size += len(chunk)
    raise too_large(size, max_bytes)


def _from_array(array: NDArray[Any]) -> Image:
    from PIL import Image

    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
        raise ImageError(
            f"an array must be uint8 of shape (H, W, 3), got {array.dtype} of shape {array.shape}", code="NOT_AN_IMAGE"
        )
    return Image.fromarray(np.ascontiguousarray(array))


def _upright(image: Any) -> Image:
    from PIL import ImageOps

    oriented: Image = ImageOps.exif_transpose(image)
    if oriented.mode in _PNG_MODES:
        return oriented
    if oriented.mode.startswith("I"):
        # Convert through I: from the other byte order to I;16, Pillow would clip samples to 8 bits.
        oriented = oriented.convert("I")
        levels: Any = oriented.getextrema()
        if 0 <= levels[0] and levels[1] <= 0xFFFF:
            return oriented.convert("I;16")
    if oriented.mode in ("F", "I"):
        raise ImageError(
            "a PIL image of mode F, or of mode I with samples outside 0 to 65535, has no defined white level; "
            "convert it first.",
            code="UNSUPPORTED_FORMAT",
        )
    return oriented.convert(_WITH_ALPHA.get(oriented.mode, "RGB"))


def _unreadable(reason: str) -> ImageError:
    return ImageError(f"cannot be read: {reason}.", code="UNREADABLE")


def too_large(size: int, max_bytes: int) -> ImageError:
    return ImageError(
        f"has at least {size} bytes and max_image_bytes is {max_bytes}; raise that limit or shrink the image.",
        code="TOO_LARGE",
    )
