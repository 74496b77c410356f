"""Ways to tell copies from other photos, all on the same files: the project's own and imagededup's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.compare.similarity_join import bits_that_differ, where
from clip_client.dedup.compare.union_find import UnionFind
from clip_client.dedup.search import DEFAULT_HASH_BITS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from rich.progress import Progress

    from clip_client.dedup.photo import ImageFeatures

    Bools = NDArray[np.bool_]
    Scores = NDArray[np.float64]

COSINES: Final = (0.9, 0.95, 0.97, 0.98, 0.985, 0.99, 0.995, 0.998)
HASH_BITS: Final = (0, 3, 8, 10)
_IMAGEDEDUP_BITS: Final = 10
_IMAGEDEDUP_COSINE: Final = 0.9
"""Its defaults."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Facts:
    """What is known about one file without a model."""

    features: ImageFeatures
    sha256: str
    pixels: str
    """SHA-256 of its pixels; empty if they cannot be decoded."""
    size_bytes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Detector:
    """One way to tell copies: the pairs that it calls alike, and its groups."""

    name: str
    alike: Bools
    """(N, N)"""
    groups: list[list[int]]
    """Rows, the kept one first."""
    moved: Bools | None = None
    """(N,), of a plan: the files that move. They count as found, whichever file of their picture stays for them."""


def best_first(facts: Sequence[Facts]) -> NDArray[np.intp]:
    """Return the rows (N,) in the order in which photos are kept: by pixels, then by bytes."""
    area = [-one.features.width * one.features.height for one in facts]
    rank: NDArray[np.intp] = np.lexsort(([-one.size_bytes for one in facts], area))
    return rank


def equal_pixels(facts: Sequence[Facts]) -> Bools:
    """Return (N, N), which files have the same pixels; those that cannot be decoded are compared by their bytes."""
    return _equal([one.pixels or one.sha256 for one in facts])


def own_detectors(
    facts: Sequence[Facts], vectors: Mapping[str, NDArray[np.float32]], shipped: float
) -> tuple[list[Detector], dict[str, Scores]]:
    """Return the project's detectors, and the scores (N, N) by which pairs can be ranked.

    ``vectors`` maps a transfer form to unit rows (N, D). The first form is judged at every threshold, the others at
    ``shipped``.
    """
    all_features = [one.features for one in facts]
    flat = np.array([features.is_flat for features in all_features])
    rank = best_first(facts)
    bits = _differing_bits([features.perceptual_hash for features in all_features], flat)
    closeness = -bits.astype(np.float64)
    exact = _equal([one.sha256 for one in facts])
    pixels = exact | equal_pixels(facts)
    cosines = {transfer: _cosines(rows, flat) for transfer, rows in vectors.items()}
    first, *others = cosines
    cosine = cosines[first]
    found = [
        grouped("same bytes", exact, rank, pixels + 0.0),
        grouped("same pixels", pixels, rank, pixels + 0.0),
    ]
    found += [grouped(f"pHash, {most} bits", pixels | (bits <= most), rank, closeness) for most in HASH_BITS]
    found += [grouped(f"embedding {least:g}", pixels | (cosine >= least), rank, cosine) for least in COSINES]
    found += [
        grouped(f"embedding {shipped:g}, {other}", pixels | (cosines[other] >= shipped), rank, cosines[other])
        for other in others
    ]
    all_tiers = pixels | (bits <= DEFAULT_HASH_BITS) | (cosine >= shipped)
    name = f"all tiers: pixels, pHash {DEFAULT_HASH_BITS}, embedding {shipped:g}"
    found.append(grouped(name, all_tiers, rank, cosine))
    found.append(grouped("the same, connected components", all_tiers, rank, cosine, chained=True))
    return found, {"pHash": closeness, **{f"embedding, {transfer}": scores for transfer, scores in cosines.items()}}


def imagededup_detectors(
    paths: Sequence[Path], progress: Progress
) -> tuple[list[Detector], dict[str, Scores], list[str]]:
    """Return imagededup's detectors at its defaults, their scores, and what is missing for them."""
    try:
        from imagededup.methods import CNN, PHash  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        return [], {}, [f"imagededup: not installed ({error}); pip install imagededup"]
    rank = np.arange(len(paths))
    hasher = PHash(verbose=False)
    # None for a format that it does not read.
    hashes = [hasher.encode_image(str(path)) for path in progress.track(paths, description="imagededup pHash")]
    unread = np.array([one is None for one in hashes])
    bits = _differing_bits([int(one or "0", 16) for one in hashes], unread)
    closeness = -bits.astype(np.float64)
    name = f"imagededup pHash, {_IMAGEDEDUP_BITS} bits (its default)"
    found = [grouped(name, bits <= _IMAGEDEDUP_BITS, rank, closeness)]
    scores = {"imagededup pHash": closeness}
    if not _cnn_weights_are_here():
        missing = (
            "imagededup CNN: its weights are not on this machine; fetch them once with "
            "python -c 'from imagededup.methods import CNN; CNN()'"
        )
        return found, scores, [missing]
    network = CNN(verbose=False)
    features = np.ones((len(paths), 576), dtype=np.float32)
    for row in progress.track(np.flatnonzero(~unread), description="imagededup CNN"):
        features[row] = network.encode_image(str(paths[row]))[0]
    cosine = _cosines(features, unread)
    name = f"imagededup CNN, {_IMAGEDEDUP_COSINE} (its default)"
    found.append(grouped(name, cosine >= _IMAGEDEDUP_COSINE, rank, cosine))
    return found, {**scores, "imagededup CNN": cosine}, []


def _cnn_weights_are_here() -> bool:
    """Whether its MobileNetV3 is in PyTorch's cache: a benchmark downloads nothing."""
    from pathlib import Path

    import torch

    return any(Path(torch.hub.get_dir(), "checkpoints").glob("mobilenet_v3_small-*.pth"))


def _differing_bits(hashes: Sequence[int], ignored: Bools) -> NDArray[np.uint8]:
    """Return (N, N); 64, the most, for the pairs of a picture that is ``ignored``."""
    numbers = np.array(hashes, dtype=np.uint64)
    bits = bits_that_differ(numbers[:, None], numbers[None, :])
    bits[ignored, :] = bits[:, ignored] = 64
    return bits


def _cosines(vectors: NDArray[np.float32], ignored: Bools) -> Scores:
    """Return (N, N); -1, the least, for the pairs of a picture that is ``ignored``."""
    unit = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float64)
    cosine: Scores = np.round(unit @ unit.T, 6)
    cosine[ignored, :] = cosine[:, ignored] = -1.0
    return cosine


def _equal(keys: list[str]) -> Bools:
    _, number = np.unique(keys, return_inverse=True)
    same: Bools = number[:, None] == number[None, :]
    return same


def grouped(name: str, alike: Bools, rank: NDArray[np.intp], score: Scores, *, chained: bool = False) -> Detector:
    """Group the best photo first: in stars as the product does, or in whole components for comparison."""
    ordered = alike[np.ix_(rank, rank)]
    if chained:
        union_find = UnionFind(len(ordered))
        union_find.join(*where(ordered))
        groups = [rows.tolist() for rows in union_find.components()]
    else:
        groups = _stars(ordered, score[np.ix_(rank, rank)])
    return Detector(name=name, alike=alike, groups=[rank[rows].tolist() for rows in groups if len(rows) > 1])


def _stars(alike: Bools, score: Scores) -> list[list[int]]:
    """Keep each row that is not alike to an earlier kept row; the others join the kept row that is most alike."""
    owner = np.arange(len(alike))
    best = np.full(len(alike), -np.inf)
    is_kept = np.ones(len(alike), dtype=bool)
    for row in range(len(alike)):
        if is_kept[row]:
            closer = np.flatnonzero(alike[row] & (score[row] > best))
            closer = closer[closer > row]
            owner[closer], best[closer], is_kept[closer] = row, score[row][closer], False
    # The kept row is the first of its group, because it comes before all rows that it owns.
    return [np.flatnonzero(owner == row).tolist() for row in np.unique(owner)]
