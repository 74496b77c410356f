"""The parity check: an exported model must agree with PyTorch under ONNX Runtime before it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import onnx
import onnxruntime

from preprocess_ensemble.contract import EMBEDDING, FINGERPRINT, PIXELS, STATUS
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.export.canary import canary_image
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.model_repository.passport import Parity
from preprocess_ensemble.runtimes.agreement import lowest_cosine
from preprocess_ensemble.runtimes.agreement import sample_pixels as sample_pixels

if TYPE_CHECKING:
    import numpy.typing as npt

OPSET: Final = 17
IR_VERSION: Final = 8
"""Triton 24.10 has ONNX Runtime 1.19, which reads opsets up to 21 and IR versions up to 10."""

REQUIRED_COSINE: Final[Mapping[str, float]] = {"fp32": 0.9999, "fp16": 0.9999, "int8": 0.999}
"""Precision -> the lowest allowed cosine similarity to PyTorch fp32. Duplicates are decided within a cosine distance of
0.01 to 0.03, so int8 may use a tenth of the smallest such distance. Trained weights may need more than that."""

_FAILED: Final = 3
"""Any status other than 0 means that the row failed."""


class ParityError(ReportedError):
    """The exported model does not compute what PyTorch computes; the message says what was measured."""


class Encoder:
    """An exported model under ONNX Runtime on the CPU, with the options of the server."""

    def __init__(self, model: Path, precision: str = "fp32") -> None:
        options = onnxruntime.SessionOptions()
        if precision == "fp16":
            # As in config.pbtxt (see model_repository/config.py).
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])

    def __call__(
        self, pixels: npt.NDArray[np.uint8], status: npt.NDArray[np.int32] | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        """Embed ``pixels`` (N, H, W, 3) with ``status`` (N, 1), by default all 0.

        Returns embeddings (N, D) float32 and fingerprints (N, 2) int32.
        """
        if status is None:
            status = np.zeros((len(pixels), 1), np.int32)
        vectors, fingerprints = self._session.run([EMBEDDING, FINGERPRINT], {PIXELS: pixels, STATUS: status})
        return vectors, fingerprints


def check_pixels(config: PreprocessConfig) -> npt.NDArray[np.uint8]:
    """Return the sample pictures and the canary (9, H, W, 3) uint8."""
    canary = preprocess(decode(canary_image()), config)
    return np.concatenate([sample_pixels(*config.size), canary[None]])


def check(
    model: Path,
    pixels: npt.NDArray[np.uint8],
    expected: npt.NDArray[np.float32],
    fingerprint: tuple[int, int],
    precision: str,
    *,
    required: Mapping[str, float] = REQUIRED_COSINE,
) -> Parity:
    """Compare the file ``model`` with PyTorch's unit vectors ``expected`` (N, D) for ``pixels`` (N, H, W, 3), N > 1.

    ``required`` maps a precision to the lowest allowed cosine. Returns what was measured. Raises ParityError if a
    vector is below that, if a failed row is not NaN or changes its neighbours, if the model returns another
    ``fingerprint``, or if the file has another opset or IR version.
    """
    _check_versions(model)
    encoder = Encoder(model, precision)
    together, fingerprints = encoder(pixels)
    alone = np.concatenate([encoder(picture[None])[0] for picture in pixels])
    if not np.array_equal(fingerprints, np.tile(np.array(fingerprint, np.int32), (len(pixels), 1))):
        raise ParityError(
            f"The exported model returns the fingerprint {fingerprints[0].tolist()}, not {list(fingerprint)}."
        )

    least = required[precision]
    lowest = lowest_cosine(np.concatenate([together, alone]), np.concatenate([expected, expected]))
    if not lowest >= least:  # written so that NaN fails too
        raise ParityError(f"The exported model reaches a cosine of {lowest:.6f} to PyTorch, and {least} is required.")
    _check_failed_rows(encoder, pixels, together, None if precision == "fp32" else least)
    return Parity(images=len(pixels), min_cosine=lowest, required=least)


def _check_versions(model: Path) -> None:
    file = onnx.load(str(model), load_external_data=False)
    found = (file.ir_version, {opset.domain: opset.version for opset in file.opset_import})
    if found != (IR_VERSION, {"": OPSET}):
        raise ParityError(
            f"The exported model has IR version and opsets {found}, not IR {IR_VERSION} and opset {OPSET}."
        )


def _check_failed_rows(
    encoder: Encoder, pixels: npt.NDArray[np.uint8], good: npt.NDArray[np.float32], least: float | None
) -> None:
    """``least`` is the lowest allowed cosine of a neighbour of a failed row; None: it must be bit-identical."""
    status = np.zeros((len(pixels), 1), np.int32)
    status[1::3] = _FAILED
    failed = status[:, 0] != 0
    vectors, _ = encoder(np.where(failed[:, None, None, None], np.uint8(0), pixels), status)
    if not np.isnan(vectors[failed]).all():
        raise ParityError("The exported model gives a failed image a vector that is not all NaN.")
    # Only fp32 adds the same numbers in the same order whatever else is in the batch.
    unharmed = (
        np.array_equal(vectors[~failed], good[~failed])
        if least is None
        else lowest_cosine(vectors[~failed], good[~failed]) >= least
    )
    if not unharmed:
        raise ParityError("The exported model lets a failed image change its neighbours' vectors.")
