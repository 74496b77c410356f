"""How long the images of one request may take to decode."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.limits import DecodeError, DecodeLimits, time_without_lock

if TYPE_CHECKING:
    from preprocess_ensemble.imaging.formats import ImageFormat

_OVERDRAFT_S: Final = 50.0
"""What a request may take beyond its budget, for small images. 32 HEIC photos of 12 megapixels take 35 s in all."""


class DecodeTimeBudget:
    """Processor time that one request may still spend on large images. Each request has its own.

    Several threads may use it at once.
    """

    def __init__(self, limits: DecodeLimits) -> None:
        self._limits = limits
        self._left_s = limits.max_decode_s
        self._lock = threading.Lock()

    @contextmanager
    def limits_for(self, file: bytes, image_format: ImageFormat | None) -> Iterator[DecodeLimits]:
        """Return limits for the image in ``file``, and charge what the calling thread computes in the block.

        For a decoder that computes in threads of its own, as that of HEIC does, it is the time that passes. Waiting for
        the images of other requests is free. Raises :class:`DecodeError` (LIMIT) for an image over
        ``always_pixels`` once the budget is spent, and for every image once it is overdrawn by 50 s. Images in
        progress are finished, so a request may decode one image more in each thread.
        """
        limits = self._limits
        is_spent = self._left_s <= 0
        if self._left_s <= -_OVERDRAFT_S:
            message = (
                f"The images before it in its request took more than {limits.max_decode_s + _OVERDRAFT_S:g} s of "
                "processor time; send it again with fewer images."
            )
            raise DecodeError(ImageStatus.LIMIT, message)
        if is_spent:
            limits = replace(limits, max_pixels=min(limits.max_pixels, limits.always_pixels))
        clock = time_without_lock if image_format is not None and image_format.has_own_threads else time.thread_time
        start = clock()
        try:
            yield limits
        except DecodeError as error:
            if is_spent and error.status is ImageStatus.TOO_LARGE and len(file) <= limits.max_bytes:
                message = (
                    f"{error.message.rstrip('.')}, because the images before it in its request took more than "
                    f"{limits.max_decode_s:g} s of processor time; send it again with fewer images."
                )
                raise DecodeError(ImageStatus.LIMIT, message) from None
            raise
        finally:
            spent_s = clock() - start
            with self._lock:
                self._left_s -= spent_s
