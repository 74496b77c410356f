"""How long the images of one request may be worked on."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.limits import DecodeError, DecodeLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ("MAX_DECODE_S", "DecodeTimeBudget")

MAX_DECODE_S: Final = 10.0
"""Seconds of processor time. What an image costs does not follow from its bytes: a JPEG 2000 of 4 KB may hold 128
megapixels and take 4 s, and 32 of them are one small request. Photos of telephones take 0.015 to 0.4 s each."""

_ALWAYS_PIXELS: Final = 16_000_000
"""An image up to this size is decoded whatever its neighbours took; the worst of them takes half a second."""


class DecodeTimeBudget:
    """Processor time that one request may still take for large images. Each request has its own.

    Several threads work on one request and may use it at once. ``clock`` tells the processor time of the calling one.
    """

    def __init__(self, seconds: float, limits: DecodeLimits, *, clock: Callable[[], float] = time.thread_time) -> None:
        self._seconds = self._left_s = seconds
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()

    @contextmanager
    def limits_for(self, file: bytes) -> Iterator[DecodeLimits]:
        """Limits for the image in ``file``. What the calling thread computes in the block is charged; waiting is free.

        Raises :class:`DecodeError` (LIMIT) for a large image once nothing is left. What has begun is finished, so a
        request may take one image more in each thread.
        """
        is_spent = self._left_s <= 0
        limits = self._limits
        if is_spent:
            limits = replace(limits, max_pixels=min(limits.max_pixels, _ALWAYS_PIXELS))
        begun = self._clock()
        try:
            yield limits
        except DecodeError as error:
            if is_spent and error.status is ImageStatus.TOO_LARGE and len(file) <= self._limits.max_bytes:
                raise DecodeError(ImageStatus.LIMIT, self._refusal(error.message)) from None
            raise
        finally:
            spent_s = self._clock() - begun
            with self._lock:
                self._left_s -= spent_s

    def _refusal(self, message: str) -> str:
        return (
            f"{message.rstrip('.')}, since the images before it in its request took more than {self._seconds:g} s of "
            "processor time; send it again with fewer."
        )
