"""The one way from encoded image files to the pixels that the model takes, in the server and for ``local:``."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.decode import (
    DecodeError,
    DecodeLimits,
    DecodePath,
    Decoder,
    decode_image,
    decode_into,
    quiet_libraries,
)
from preprocess_ensemble.imaging.time_budget import MAX_DECODE_S, DecodeTimeBudget
from preprocess_ensemble.imaging.transform import preprocess
from preprocess_ensemble.imaging.worker_pool import WorkerPool, usable_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from preprocess_ensemble.imaging.transform import PreprocessConfig

__all__ = ("Preprocessed", "Preprocessor")

_INTERNAL_MESSAGE: Final = "An internal error kept the image from being processed; the log has the details."


class Preprocessed(NamedTuple):
    """What became of one image."""

    status: ImageStatus
    decode_path: DecodePath | None = None
    """How a good image was decoded, and by whom."""
    decoder: Decoder | None = None
    message: str = ""
    """One sentence for the client; empty if the image is good."""
    log: str = ""
    """The traceback of an internal error. It may hold paths: log it, and never send it."""


class _Task(NamedTuple):
    """One image to decode."""

    file: bytes
    pixels: npt.NDArray[np.uint8]
    budget: DecodeTimeBudget


class Preprocessor:
    """Decodes, resizes and crops images in threads. An image that fails, for whatever reason, fails alone.

    ``threads`` is the number of them; None means one for each core that this process may use. ``fast_decode`` decodes
    large JPEG files at reduced size, as far as the model's input allows. ``max_decode_s`` is the processor time that
    the images of one request may take together.
    """

    def __init__(
        self,
        config: PreprocessConfig,
        *,
        threads: int | None = None,
        fast_decode: bool = True,
        limits: DecodeLimits | None = None,
        max_decode_s: float = MAX_DECODE_S,
    ) -> None:
        self._config = config
        self._limits = limits or DecodeLimits()
        self._max_decode_s = max_decode_s
        self._at_least = config.decode_at_least if fast_decode else None
        self._pool = WorkerPool(threads or usable_cores(), "clip decode")

    def run(self, requests: Sequence[Sequence[bytes]]) -> tuple[npt.NDArray[np.uint8], list[Preprocessed]]:
        """Preprocess the files of several requests, which share the threads.

        Returns pixels, uint8 (N, H, W, 3), and what became of each image, both in order over all requests. The pixels
        of an image that failed are black.
        """
        files = [file for request in requests for file in request]
        # One for all images of a request, and none for its neighbours to share.
        budgets = [
            budget
            for request in requests
            for budget in [DecodeTimeBudget(self._max_decode_s, self._limits)] * len(request)
        ]
        # One array for all requests, and not one for each, which took a twentieth more processor time an image.
        pixels = np.empty((len(files), *self._config.size, 3), dtype=np.uint8)
        with quiet_libraries():
            return pixels, self._pool.map(self._preprocess, list(map(_Task, files, pixels, budgets)))

    def close(self, *, wait: bool = True) -> None:
        """Stop the threads; without ``wait``, each stops when it is done with the image that it has begun."""
        self._pool.close(wait=wait)

    def _preprocess(self, task: _Task) -> Preprocessed:
        file, pixels, budget = task
        try:
            with budget.limits_for(file) as limits:
                if decode_into(file, pixels, limits):
                    decode_path = DecodePath.OFF if self._at_least is None else DecodePath.SMALL
                    return Preprocessed(ImageStatus.OK, decode_path, Decoder.TURBOJPEG)
                decoded = decode_image(file, limits, at_least=self._at_least)
                preprocess(decoded.image, self._config, pixels)
        except Exception as error:
            pixels[...] = 0  # the memory is recycled, and may hold what another client sent
            if isinstance(error, DecodeError) and error.status is not ImageStatus.INTERNAL:
                return Preprocessed(error.status, message=error.message)
            return Preprocessed(ImageStatus.INTERNAL, message=_INTERNAL_MESSAGE, log=traceback.format_exc())
        return Preprocessed(ImageStatus.OK, decoded.decode_path, decoded.decoder)
