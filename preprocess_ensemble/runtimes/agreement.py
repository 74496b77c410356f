"""Whether two runtimes, or a runtime and PyTorch, compute the same vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from preprocess_ensemble.contract import EMBEDDING, FINGERPRINT, PIXELS, STATUS, ImageStatus
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.imaging.preprocessor import Preprocessor
from preprocess_ensemble.imaging.transform import PreprocessConfig

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import numpy.typing as npt

    from preprocess_ensemble.model_repository.passport import Passport
    from preprocess_ensemble.runtimes.model import Session

REQUIRED_COSINE: Final = 0.9999
"""Between a runtime's vectors and those of ONNX Runtime in fp32. Duplicates are decided within a cosine distance of
0.01 to 0.03, so the difference may be a hundredth of that."""

_LENGTH_ERROR: Final = 1e-4
"""How far the length of a vector may be from 1."""


class Disagreement(ReportedError):
    """A runtime computes other vectors than the reference; the message says what was measured."""


def sample_pixels(height: int, width: int) -> npt.NDArray[np.uint8]:
    """Return eight seeded pictures (8, H, W, 3) uint8, from smooth to noise, that cover the whole range of values."""
    # Raw bits are the same in every release of NumPy; a skeleton carries vectors for these pictures.
    bits = np.random.PCG64(20)
    pictures = []
    for cells in (1, 2, 3, 5, 8, 14, 28, max(height, width)):
        values = bits.random_raw(cells * cells * 3 // 8 + 1).astype("<u8").view(np.uint8)
        grid = values[: cells * cells * 3].reshape(cells, cells, 3)
        rows = np.arange(height) * cells // height
        columns = np.arange(width) * cells // width
        pictures.append(grid[rows[:, None], columns[None, :]])
    return np.stack(pictures)


def lowest_cosine(vectors: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    """Return the least cosine of two rows (N, D) of the same number; NaN if the shapes differ or a row has no unit
    length, because a wrong length is an error just like a wrong direction.
    """
    if vectors.shape != expected.shape or np.abs(np.linalg.norm(vectors, axis=1) - 1).max() > _LENGTH_ERROR:
        return float("nan")
    ours, theirs = vectors.astype(np.float64), expected.astype(np.float64)
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return float(((ours * theirs).sum(axis=1) / lengths).min())


class AgreementCheck:
    """Compares sessions of the model of ``passport`` with ``reference``, on this processor.

    The pictures are the passport's canary and the sample pictures: first the canary alone, then all in one batch with
    a failed row in the middle. The reference embeds them once, when this is made. Raises what it raises.
    """

    def __init__(self, reference: Session, passport: Passport) -> None:
        config = PreprocessConfig.from_mapping(passport.preprocess)
        preprocessor = Preprocessor(config, threads=1)
        canary, _ = preprocessor.run([[passport.canary.image]])
        preprocessor.close()
        self.sample = sample_pixels(*config.size)
        """Eight pictures (8, H, W, 3) uint8."""
        self._fingerprint = np.array(passport.fingerprint, np.int32)
        pictures = np.concatenate([canary, self.sample])
        failed = len(pictures) // 2
        self._batches: list[tuple[Mapping[str, npt.NDArray[Any]], npt.NDArray[np.float32]]] = []
        for pixels, failed_rows in ((canary, []), (np.insert(pictures, failed, 0, axis=0), [failed])):
            status = np.zeros((len(pixels), 1), np.int32)
            status[failed_rows] = ImageStatus.INTERNAL
            feed = {PIXELS: pixels, STATUS: status}
            (expected,) = reference.run([EMBEDDING], feed)
            self._batches.append((feed, expected))

    def lowest_cosine(self, session: Session) -> float:
        """Return the least cosine of the vectors of ``session`` to those of the reference.

        Raises Disagreement if it is below REQUIRED_COSINE, if the failed row is not NaN, or if the fingerprint is
        another; and what the session raises.
        """
        lowest = 1.0
        for feed, expected in self._batches:
            failed = feed[STATUS][:, 0] != ImageStatus.OK
            vectors, fingerprints = session.run([EMBEDDING, FINGERPRINT], feed)
            if not np.array_equal(fingerprints, np.tile(self._fingerprint, (len(failed), 1))):
                raise Disagreement("its fingerprint is not that of the model")
            if not np.isnan(vectors[failed]).all():
                raise Disagreement("it gives a failed image a vector that is not all NaN")
            cosine = lowest_cosine(vectors[~failed], expected[~failed])
            if not cosine >= REQUIRED_COSINE:  # written so that NaN fails, too
                raise Disagreement(f"its vectors reach a cosine of {cosine:.6f}, and {REQUIRED_COSINE} is required")
            lowest = min(lowest, cosine)
        return lowest
