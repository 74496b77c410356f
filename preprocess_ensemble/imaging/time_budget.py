"""How long the images of one request may take to decode."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.limits import DecodeError, DecodeLimits


class DecodeTimeBudget:
    """Processor time that one request may still spend on large images. Each request has its own.

    Several threads may use it at once. ``clock`` returns the processor time of the calling thread in seconds.
    """

    def __init__(self, limits: DecodeLimits, *, clock: Callable[[], float] = time.thread_time) -> None:
        self._limits = limits
        self._left_s = limits.max_decode_s
        self._clock = clock
        self._lock = threading.Lock()

    @contextmanager
    def limits_for(self, file: bytes) -> Iterator[DecodeLimits]:
        """Return limits for the image in ``file``, and charge what the calling thread computes in the block.

        Waiting is free. Raises :class:`DecodeError` (LIMIT) for an image over ``always_pixels`` once the budget is
        spent. Images in progress are finished, so a request may decode one image more in each thread.
        """
        is_spent = self._left_s <= 0
        limits = self._limits
        if is_spent:
            limits = replace(limits, max_pixels=min(limits.max_pixels, limits.always_pixels))
        start = self._clock()
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
            spent_s = self._clock() - start
            with self._lock:
                self._left_s -= spent_s
