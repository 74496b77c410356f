"""The check of an export or a runtime: a session must compute the same vectors as another runtime, or as PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from preprocess_ensemble.contract import EMBEDDING, FINGERPRINT, PIXELS, STATUS, TOKENS, ImageStatus
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.model_repository.passport import Passport
from preprocess_ensemble.runtimes.model import Session

Rows = npt.NDArray[np.uint8] | npt.NDArray[np.int32]
"""Inputs of a tower: pixels (N, H, W, 3) uint8, or token ids (N, L) int32."""

REQUIRED_COSINE: Final = 0.9999
"""Least cosine between a runtime's vectors and those of ONNX Runtime in fp32. Duplicates are decided within a cosine
distance of 0.01 to 0.03, so the difference may be a hundredth of that."""

_LENGTH_ERROR: Final = 1e-4  # largest difference between the length of a vector and 1

SAMPLE_TEXTS: Final = (  # texts from the empty one to one longer than any context
    "",
    "dog",
    "a photo of a dog on the beach at sunset",
    "Ein rotes Fahrrad lehnt an einer Mauer, daneben steht eine Bank.",
    "穿红色外套的女人在雪地里散步",
    "שלושה ילדים משחקים בכדור 🏐",
    "IMG_2041.JPG, 3024 x 4032, f/1.8, 1/120 s",
    "a crowded street market with fruit, cloth and spices, " * 12,
)


class Disagreement(ReportedError):
    """A runtime computes other vectors than the reference; the message has the measurement."""


def sample_pixels(height: int, width: int) -> npt.NDArray[np.uint8]:
    """Return eight seeded pictures (8, H, W, 3) uint8, from smooth to noise, that cover the whole range of values."""
    # Use raw bits, which are the same in every release of NumPy: a skeleton carries vectors for these pictures.
    bits = np.random.PCG64(20)
    pictures = []
    for cells in (1, 2, 3, 5, 8, 14, 28, max(height, width)):
        values = bits.random_raw(cells * cells * 3 // 8 + 1).astype("<u8").view(np.uint8)
        grid = values[: cells * cells * 3].reshape(cells, cells, 3)
        rows = np.arange(height) * cells // height
        columns = np.arange(width) * cells // width
        pictures.append(grid[rows[:, None], columns[None, :]])
    return np.stack(pictures)


def sample_tokens(context_length: int, vocabulary: int, padding: int) -> npt.NDArray[np.int32]:
    """Return four seeded rows of token ids (4, L) int32, from one token to a full context.

    The ids are at least 3, because the ids of padding and other special tokens are smaller, and below ``vocabulary``.
    The largest id ends each row, as in CLIP, which reads the vector there; ``padding`` follows it.
    """
    numbers = np.random.PCG64(28).random_raw(4 * context_length).reshape(4, context_length) >> np.uint64(33)
    tokens = (numbers % np.uint64(vocabulary - 4) + np.uint64(3)).astype(np.int32)
    for row, length in zip(tokens, (1, context_length // 4, context_length // 2, context_length), strict=True):
        row[max(length, 1) - 1] = vocabulary - 1
        row[max(length, 1) :] = padding
    return tokens


def require_cosine(vectors: npt.NDArray[np.float32], expected: npt.NDArray[np.float32], required: float) -> float:
    """Return the least cosine of the rows (N, D). Raises Disagreement below ``required``, or if a length is not 1."""
    lowest = float("nan")
    if vectors.shape == expected.shape and np.abs(np.linalg.norm(vectors, axis=1) - 1).max() <= _LENGTH_ERROR:
        ours, theirs = vectors.astype(np.float64), expected.astype(np.float64)
        lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
        lowest = float(((ours * theirs).sum(axis=1) / lengths).min())
    if not lowest >= required:  # in this form NaN fails, too
        raise Disagreement(f"its vectors reach a cosine of {lowest:.6f}, and {required} is required")
    return lowest


def checked_vectors(
    session: Session, rows: Rows, fingerprint: tuple[int, int], failed: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.float32]:
    """Embed ``rows``; return the vectors of those not masked by ``failed`` (N,).

    Raises Disagreement if the vector of a failed row is not all NaN, or if the fingerprint of a row is not
    ``fingerprint``. Errors of the session pass through.
    """
    failed = np.zeros(len(rows), np.bool_) if failed is None else failed
    status = np.where(failed, ImageStatus.INTERNAL, ImageStatus.OK).astype(np.int32)[:, None]
    given = {PIXELS if rows.ndim == 4 else TOKENS: rows, STATUS: status}
    vectors, fingerprints = session.run([EMBEDDING, FINGERPRINT], given)
    if not np.array_equal(fingerprints, np.tile(np.array(fingerprint, np.int32), (len(rows), 1))):
        raise Disagreement("its fingerprint is not that of the model")
    if not np.isnan(vectors[failed]).all():
        raise Disagreement("it gives a failed row a vector that is not all NaN")
    return vectors[~failed]


def lowest_cosine(session: Session, reference: Session, passport: Passport, tokenizer: Path | None = None) -> float:
    """Return the least cosine of the vectors of ``session`` to those of ``reference``, on this processor.

    The sessions run the image tower of the model of ``passport``, or its text tower if ``tokenizer`` is the folder of
    the tokenizer's files: first the canary alone, then all rows in one batch with a failed row in the middle. Raises
    Disagreement below REQUIRED_COSINE, and the errors of :func:`checked_vectors` and :func:`samples`.
    """
    fingerprint, canary, sample = samples(passport, tokenizer)
    rows = np.concatenate([canary, sample])
    middle = len(rows) // 2
    batches = ((canary, None), (np.insert(rows, middle, 0, axis=0), np.arange(len(rows) + 1) == middle))
    return min(
        require_cosine(
            checked_vectors(session, batch, fingerprint, failed),
            checked_vectors(reference, batch, fingerprint, failed),
            REQUIRED_COSINE,
        )
        for batch, failed in batches
    )


def samples(
    passport: Passport, tokenizer: Path | None = None, texts: Sequence[str] = SAMPLE_TEXTS
) -> tuple[tuple[int, int], Rows, Rows]:
    """Return a tower's fingerprint, its canary (1 row), and other rows, as for :func:`lowest_cosine`."""
    if tokenizer is None:
        config = PreprocessConfig.from_mapping(passport.preprocess)
        canary = preprocess(decode(passport.canary.image), config)[None]
        return passport.fingerprint, canary, sample_pixels(*config.size)
    from preprocess_ensemble.text.tokenizer import Tokenizer, TokenizerConfig

    tower = passport.text
    assert tower is not None
    tokens = Tokenizer.load(tokenizer, TokenizerConfig.from_mapping(tower.tokenizer), tower.tokenizer_sha256)
    ids, _ = tokens.encode([tower.canary, *texts])
    return tower.fingerprint, ids[:1], ids[1:]
