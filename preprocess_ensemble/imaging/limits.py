"""Limits for the cost of an image and of all images in a request, and the error for an image that fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.errors import Rejected

SMALLER: Final = ": save a smaller copy and use it."  # ends each message about too many pixels
_OVERDRAFT_S: Final = 50.0
"""Time that a request may take beyond its budget for small images. 32 HEIC photos of 12 megapixels take 35 s in all."""
_SPENT: Final = (
    "images before it in its request took more than {:g} s of processor time; send it again with fewer images."
)
_LARGE_PIXELS: Final = 32_000_000
"""Pixels above which an image is large; most cameras make fewer. With alpha they take 0.4 GB, a thread's maximum."""
_large_image_lock: Final = threading.Lock()


class DecodeError(Rejected):
    """One image could not be decoded."""


def check_count(count: int, limit: int, whole: str, parts: str) -> None:
    """Raise :class:`DecodeError` (LIMIT) if ``whole``, such as "PNG file", has more ``parts`` than ``limit``."""
    if count > limit:
        raise DecodeError(ImageStatus.LIMIT, f"The {whole} has more than {limit:,} {parts}, which is the limit.")


def unsupported_variant(format_name: str) -> DecodeError:
    message = f"This variant of {format_name} cannot be read here."
    return DecodeError(ImageStatus.UNSUPPORTED_FORMAT, message)


@dataclass(frozen=True, kw_only=True)
class DecodeLimits:
    """Limits for one image, and for the time of a request's images. Raises ``ValueError`` if none could meet one."""

    max_bytes: int = 64 * 2**20  # bytes of the encoded file
    max_pixels: int = 128_000_000
    """Width times height; enough for the 108-megapixel cameras of phones. A pixel takes 4 bytes, 8 during a rotation,
    and 12 with alpha: 0.5 to 1.5 GB at this limit. Only one image over 32 megapixels is decoded at a time.

    Above twice ``PIL.Image.MAX_IMAGE_PIXELS`` (179 megapixels) Pillow itself refuses some formats."""
    max_side_ratio: float = 50.0  # longer side over shorter side
    max_frames: int = 10_000
    """Frames of a file. Only the first frame is decoded; a file with more frames is not a photo."""
    max_metadata_bytes: int = 8 * 2**20  # EXIF, XMP, colour profile and text together
    allow_truncated: bool = False
    """Decode the present part of a file that ends early; the missing part is grey or black."""
    max_decode_s: float = 10.0
    """Processor time in seconds for all images of one request. The bytes of an image do not limit its cost: a JPEG 2000
    of 4 KB may hold 128 megapixels and take 4 s, and 32 such files are one small request. A phone's photo takes 0.015
    to 0.4 s as a JPEG, and 1 s as a HEIC."""
    always_pixels: int = 16_000_000
    """Images up to this size are decoded even if their request has used up its time, until it has used 50 s more. The
    slowest, a JPEG 2000 of noise, takes 7 s."""

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_pixels", "max_side_ratio", "max_frames", "max_metadata_bytes"):
            if not (value := getattr(self, name)) >= 1:
                raise ValueError(f"{name} must be at least 1, not {value}.")
        if not self.max_decode_s > 0:
            raise ValueError(f"max_decode_s must be above 0, not {self.max_decode_s}.")


class _Waited(threading.local):
    seconds = 0.0


_waited: Final = _Waited()


@contextmanager
def large_image_lock(pixels: int) -> Iterator[None]:
    """Hold a lock while a large image is decoded, so that a batch of large images needs the memory of one."""
    if pixels <= _LARGE_PIXELS:
        yield
        return
    start = time.monotonic()
    with _large_image_lock:
        _waited.seconds += time.monotonic() - start
        yield


class DecodeTimeBudget:
    """Processor time that a request may still spend on large images. Each request has its own budget. Thread-safe."""

    def __init__(self, limits: DecodeLimits) -> None:
        self._limits = limits
        self._left_s = limits.max_decode_s
        self._lock = threading.Lock()

    @contextmanager
    def limits_for(self, file: bytes, *, has_own_threads: bool) -> Iterator[DecodeLimits]:
        """Give limits for the image in ``file``, and charge the processor time of the calling thread in the block.

        If the decoder ``has_own_threads``, as that of HEIC, the elapsed time is charged. Waiting for another
        large image is free. Once the budget is spent, raises :class:`DecodeError` (LIMIT) for an image over
        ``always_pixels``; once it is overdrawn by 50 s, for every image. Images in progress are finished, so each
        thread may exceed the budget by one image.
        """
        limits = self._limits
        is_spent = self._left_s <= 0
        if self._left_s <= -_OVERDRAFT_S:
            message = "The " + _SPENT.format(limits.max_decode_s + _OVERDRAFT_S)
            raise DecodeError(ImageStatus.LIMIT, message)
        if is_spent:
            limits = replace(limits, max_pixels=min(limits.max_pixels, limits.always_pixels))

        def clock() -> float:
            return time.monotonic() - _waited.seconds if has_own_threads else time.thread_time()

        start = clock()
        try:
            yield limits
        except DecodeError as error:
            if is_spent and error.status is ImageStatus.TOO_LARGE and len(file) <= limits.max_bytes:
                message = f"{error.message.removesuffix(SMALLER)}, because the {_SPENT.format(limits.max_decode_s)}"
                raise DecodeError(ImageStatus.LIMIT, message) from None
            raise
        finally:
            spent_s = clock() - start
            with self._lock:
                self._left_s -= spent_s
