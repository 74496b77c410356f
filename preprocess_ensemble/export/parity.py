"""What an exported model must compute before it is installed: PyTorch's vectors, also beside rows that failed."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import Image

from preprocess_ensemble.export.model_source import ExportError
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.runtimes.agreement import Disagreement, checked_vectors, require_cosine, sample_pixels

if TYPE_CHECKING:
    import numpy.typing as npt

    from preprocess_ensemble.runtimes.model import Session

REQUIRED_COSINE: Final[Mapping[str, float]] = {"fp32": 0.9999, "fp16": 0.9999, "int8": 0.999}
"""Precision -> the lowest allowed cosine similarity to PyTorch fp32. Duplicates are decided within a cosine distance of
0.01 to 0.03, so int8 may use a tenth of the smallest such distance. Trained weights may need more than that."""

_HEIGHT: Final = 120
_WIDTH: Final = 160
"""Of the canary, in pixels."""


def canary_image() -> bytes:
    """Return a PNG file of 160x120 RGB pixels, a few KB.

    It is PNG because every decoder gives the same pixels for it. It is no square, and it changes under a mirror, a
    rotation or swapped channels, so each of these mistakes shows in its vector.
    """
    rows, columns = np.mgrid[0:_HEIGHT, 0:_WIDTH]
    disc = (rows - 40) ** 2 + (columns - 50) ** 2 < 900
    stripes = (columns + rows // 2) // 10 % 2 == 0
    pixels = np.empty((_HEIGHT, _WIDTH, 3), np.uint8)
    pixels[..., 0] = np.where(disc, 230, 20 + columns)
    pixels[..., 1] = np.where(disc, 60, 255 - 2 * rows)
    pixels[..., 2] = np.where(stripes & (rows > 70), 210, 40)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def check_pixels(config: PreprocessConfig) -> npt.NDArray[np.uint8]:
    """Return the sample pictures and, last, the canary (9, H, W, 3) uint8."""
    canary = preprocess(decode(canary_image()), config)
    return np.concatenate([sample_pixels(*config.size), canary[None]])


def check(
    session: Session,
    pixels: npt.NDArray[np.uint8],
    expected: npt.NDArray[np.float32] | None,
    fingerprint: tuple[int, int],
    precision: str,
) -> tuple[float, npt.NDArray[np.float32]]:
    """Compare ``session`` with the unit vectors ``expected`` (N, D) for ``pixels`` (N, H, W, 3), N > 1.

    None compares it with itself: each picture alone, and all in one batch. Returns the least cosine, and the vectors
    (N, D) of each picture alone. Raises ExportError if a vector is too far from what is expected, if a failed row is
    not NaN or changes its neighbours, or if the model returns another ``fingerprint``.
    """
    least = REQUIRED_COSINE[precision]
    failed = np.arange(len(pixels)) % 3 == 1
    try:
        together = checked_vectors(session, pixels, fingerprint)
        alone = np.concatenate([checked_vectors(session, picture[None], fingerprint) for picture in pixels])
        right = together if expected is None else expected
        lowest = require_cosine(np.concatenate([together, alone]), np.concatenate([right, right]), least)
        blackened = np.where(failed[:, None, None, None], np.uint8(0), pixels)
        neighbours = checked_vectors(session, blackened, fingerprint, failed)
        if precision != "fp32":
            require_cosine(neighbours, together[~failed], least)
        # Only fp32 adds the same numbers in the same order whatever else is in the batch.
        elif not np.array_equal(neighbours, together[~failed]):
            raise Disagreement("it lets a failed image change its neighbours' vectors")
    except Disagreement as error:
        raise ExportError(f"The exported model is not what PyTorch computes: {error}.") from None
    return lowest, alone
