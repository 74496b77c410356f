"""The check of an exported model before it is installed: it must compute PyTorch's vectors, even beside failed rows."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from preprocess_ensemble.export.exportable import ExportableModel, GraphOptions, is_pixels
from preprocess_ensemble.export.model_source import ExportError
from preprocess_ensemble.export.onnx_file import quantize
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.model_repository.passport import Parity
from preprocess_ensemble.runtimes.agreement import Disagreement, Rows, checked_vectors, require_cosine, sample_pixels
from preprocess_ensemble.runtimes.model import Session
from preprocess_ensemble.runtimes.onnx_session import open_session, session_options

REQUIRED_COSINE: Final[Mapping[str, float]] = {"fp32": 0.9999, "fp16": 0.9999, "int8": 0.999}
"""Precision -> the lowest allowed cosine similarity to PyTorch fp32. Duplicates are decided within a cosine distance of
0.01 to 0.03, so int8 may use a tenth of the smallest such distance. With trained weights int8 may differ by more."""

_ROUNDING: Final = 1e-6  # largest difference between numbers of unit vectors in fp32; 1.5e-7 was measured

CANARY_TEXT: Final = "A red disc above blue stripes, on a field that fades from green."
"""About the canary image. Capital letters and punctuation make a skipped cleaning visible in its vector."""


def canary_image() -> bytes:
    """Return a PNG file of 160x120 RGB pixels, a few KB, which every decoder reads alike.

    It is not square, and changes under a mirror, a rotation or swapped channels: each mistake shows in its vector.
    """
    rows, columns = np.mgrid[0:120, 0:160]
    disc = (rows - 40) ** 2 + (columns - 50) ** 2 < 900
    stripes = (columns + rows // 2) // 10 % 2 == 0
    pixels = np.empty((*rows.shape, 3), np.uint8)
    pixels[..., 0] = np.where(disc, 230, 20 + columns)
    pixels[..., 1] = np.where(disc, 60, 255 - 2 * rows)
    pixels[..., 2] = np.where(stripes & (rows > 70), 210, 40)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def check_pixels(config: PreprocessConfig) -> npt.NDArray[np.uint8]:
    """Return the sample pictures and, last, the canary: (9, H, W, 3) uint8."""
    return np.concatenate([sample_pixels(*config.size), preprocess(decode(canary_image()), config)[None]])


def build(
    model: ExportableModel, rows: Rows, stage: Path, options: GraphOptions
) -> tuple[list[Path], Parity, npt.NDArray[np.float32], str]:
    """Write the graph of the tower that takes ``rows``, the last of which is the canary, into ``stage``, and check it.

    Returns (its files with the model last, the measurement, the vector (D,) of the canary, a sentence for people).
    Raises ExportError if the vectors differ from those of PyTorch.
    """
    tower, report = "image" if is_pixels(rows) else "text", options.report
    options = replace(options, report=lambda step: report(f"{tower} tower: {step}"))
    built = model.build(rows, stage, options)
    file, weights_dtype = built.files[-1], options.weights_dtype
    if weights_dtype == "int8":
        quantize(file)
    options.report("comparing the graph with PyTorch" if built.other_weights is None else "checking the graph")
    session = open_session(file, session_options(weights_dtype=weights_dtype))
    lowest, vectors = check(session, rows, built.expected, options.fingerprint, weights_dtype)
    required = REQUIRED_COSINE[weights_dtype]
    if built.other_weights is None:
        compared = 0 if built.expected is None else len(built.expected)
        sentence = f"cosine to PyTorch {lowest:.7f}, {required} is required"
    else:
        compared = 0
        sentence = f"cosine to PyTorch {built.other_weights:.7f}, measured with other weights in the same graph"
        if weights_dtype != "fp32":
            sentence += f"; cosine of {weights_dtype} to fp32 {lowest:.7f}"
        lowest = min(lowest, built.other_weights)
    return built.files, Parity(images=compared, min_cosine=lowest, required=required), vectors[-1], sentence


def check(
    session: Session,
    rows: Rows,
    expected: npt.NDArray[np.float32] | None,
    fingerprint: tuple[int, int],
    weights_dtype: str,
) -> tuple[float, npt.NDArray[np.float32]]:
    """Compare ``session`` with the unit vectors ``expected`` (M, D) for the first M of ``rows``, N > 1.

    ``rows`` are pixels (N, H, W, 3) or token ids (N, L). If ``expected`` is None, each row alone is compared with all
    in one batch. Returns the least cosine, and the vectors (N, D) of each row alone. Raises ExportError if a vector is
    too far away, a failed row is not NaN or changes its neighbours, or the model returns another ``fingerprint``.
    """
    least = REQUIRED_COSINE[weights_dtype]
    failed = np.arange(len(rows)) % 3 == 1
    try:
        together = checked_vectors(session, rows, fingerprint)
        alone = np.concatenate([checked_vectors(session, row[None], fingerprint) for row in rows])
        right = together if expected is None else expected
        known = len(right)
        lowest = require_cosine(
            np.concatenate([together[:known], alone[:known]]), np.concatenate([right, right]), least
        )
        blanked = rows.copy()
        blanked[failed] = 0
        neighbours = checked_vectors(session, blanked, fingerprint, failed)
        if weights_dtype != "fp32":
            require_cosine(neighbours, together[~failed], least)
        # For images in fp32, neighbours must not change at all: the same numbers are added in the same order. Texts
        # share one matrix product, whose kernel depends on the number of rows.
        elif np.abs(neighbours - together[~failed]).max() > (0 if is_pixels(rows) else _ROUNDING):
            raise Disagreement("it lets a failed row change its neighbours' vectors")
    except Disagreement as error:
        raise ExportError(f"The exported model does not compute what PyTorch does: {error}.") from None
    return lowest, alone
