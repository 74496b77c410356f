"""Ways to tell copies from other photos, all on the same files: the project's own tests and imagededup's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.compare.similarity_join import bits_that_differ, where
from clip_client.dedup.compare.union_find import UnionFind
from clip_client.dedup.search import DEFAULT_HASH_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from clip_client.dedup.features.image_features import ImageFeatures

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
    """SHA-256 of its pixels; empty where they cannot be decoded."""
    size_bytes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Detector:
    """One way to tell copies: which pairs it calls alike, and how it groups."""

    name: str
    alike: Bools
    """(N, N)"""
    groups: list[list[int]]
    """Rows, the kept one first."""


def own_detectors(
    facts: Sequence[Facts], vectors: Mapping[str, NDArray[np.float32]], shipped: float
) -> tuple[list[Detector], dict[str, Scores]]:
    """Return the project's detectors, and the scores (N, N) by which pairs can be ranked.

    ``vectors`` maps a way that photos travel to their (N, D) unit rows; the first is judged at every threshold, the
    others at ``shipped``.
    """
    all_features = [one.features for one in facts]
    flat = np.array([features.is_flat for features in all_features])
    rank = np.lexsort(
        ([-one.size_bytes for one in facts], [-features.width * features.height for features in all_features])
    )
    hashes = np.array([features.perceptual_hash for features in all_features], dtype=np.uint64)
    bits = bits_that_differ(hashes[:, None], hashes[None, :])
    bits[flat, :] = bits[:, flat] = 64
    closeness = -bits.astype(np.float64)
    exact = _equal([one.sha256 for one in facts])
    pixels = exact | _equal([one.pixels or one.sha256 for one in facts])
    cosines = {way: _cosines(rows, flat) for way, rows in vectors.items()}
    first, *other_ways = cosines
    cosine = cosines[first]
    found = [
        _detector("same bytes", exact, rank, pixels + 0.0),
        _detector("same pixels (default of --apply)", pixels, rank, pixels + 0.0),
    ]
    found += [_detector(f"pHash, {most} bits", pixels | (bits <= most), rank, closeness) for most in HASH_BITS]
    found += [_detector(f"embedding {least:g}", pixels | (cosine >= least), rank, cosine) for least in COSINES]
    found += [
        _detector(f"embedding {shipped:g}, {way}", pixels | (cosines[way] >= shipped), rank, cosines[way])
        for way in other_ways
    ]
    all_tiers = pixels | (bits <= DEFAULT_HASH_BITS) | (cosine >= shipped)
    name = f"all tiers: pixels, pHash {DEFAULT_HASH_BITS}, embedding {shipped:g}"
    found.append(_detector(name, all_tiers, rank, cosine))
    found.append(_detector("the same, connected components", all_tiers, rank, cosine, chained=True))
    return found, {"pHash": closeness, **{f"embedding, {way}": scores for way, scores in cosines.items()}}


def imagededup_detectors(
    paths: Sequence[Path], on_progress: Callable[[str, int, int], None]
) -> tuple[list[Detector], dict[str, Scores], list[str]]:
    """Return imagededup's detectors at its defaults, their scores, and what is missing for them."""
    try:
        from imagededup.methods import CNN, PHash  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        return [], {}, [f"imagededup: not installed ({error}); pip install imagededup"]
    rank = np.arange(len(paths))
    hasher = PHash(verbose=False)
    hashes = np.zeros(len(paths), dtype=np.uint64)
    unread = np.zeros(len(paths), dtype=bool)
    for row, path in enumerate(paths):
        encoded = hasher.encode_image(str(path))  # None for a format that it does not read
        unread[row] = encoded is None
        hashes[row] = int(encoded or "0", 16)
        on_progress("imagededup pHash", row + 1, len(paths))
    bits = bits_that_differ(hashes[:, None], hashes[None, :])
    bits[unread, :] = bits[:, unread] = 64
    closeness = -bits.astype(np.float64)
    name = f"imagededup pHash, {_IMAGEDEDUP_BITS} bits (its default)"
    found = [_detector(name, bits <= _IMAGEDEDUP_BITS, rank, closeness)]
    scores = {"imagededup pHash": closeness}
    if not _cnn_weights_are_here():
        missing = (
            "imagededup CNN: its weights are not on this machine; fetch them once with "
            "python -c 'from imagededup.methods import CNN; CNN()'"
        )
        return found, scores, [missing]
    network = CNN(verbose=False)
    features = np.ones((len(paths), 576), dtype=np.float32)
    for row, path in enumerate(paths):
        if not unread[row]:
            features[row] = network.encode_image(str(path))[0]
        on_progress("imagededup CNN", row + 1, len(paths))
    cosine = _cosines(features, unread)
    name = f"imagededup CNN, {_IMAGEDEDUP_COSINE} (its default)"
    found.append(_detector(name, cosine >= _IMAGEDEDUP_COSINE, rank, cosine))
    return found, {**scores, "imagededup CNN": cosine}, []


def _cnn_weights_are_here() -> bool:
    """Whether its MobileNetV3 is in PyTorch's cache: nothing is downloaded in the midst of a benchmark."""
    from pathlib import Path

    import torch

    return any(Path(torch.hub.get_dir(), "checkpoints").glob("mobilenet_v3_small-*.pth"))


def _cosines(vectors: NDArray[np.float32], flat: Bools) -> Scores:
    """Return (N, N); -1 where the vector of a picture of one colour says nothing."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = unit.astype(np.float64)
    cosine: Scores = np.round(unit @ unit.T, 6)
    cosine[flat, :] = cosine[:, flat] = -1.0
    return cosine


def _equal(keys: list[str]) -> Bools:
    _, number = np.unique(keys, return_inverse=True)
    same: Bools = number[:, None] == number[None, :]
    return same


def _detector(name: str, alike: Bools, rank: NDArray[np.intp], score: Scores, *, chained: bool = False) -> Detector:
    """Group best photo first: stars as the product makes them, or whole components for comparison."""
    ordered = alike[np.ix_(rank, rank)]
    if chained:
        union_find = UnionFind(len(ordered))
        union_find.join(*where(ordered))
        groups = [rows.tolist() for rows in union_find.components()]
    else:
        groups = _stars(ordered, score[np.ix_(rank, rank)])
    return Detector(name=name, alike=alike, groups=[rank[rows].tolist() for rows in groups if len(rows) > 1])


def _stars(alike: Bools, score: Scores) -> list[list[int]]:
    """Go down the rows: one that is alike to no kept row is kept; the others join the kept row that is most alike."""
    owner = np.arange(len(alike))
    best = np.full(len(alike), -np.inf)
    is_kept = np.ones(len(alike), dtype=bool)
    for row in range(len(alike)):
        if is_kept[row]:
            closer = np.flatnonzero(alike[row] & (score[row] > best))
            closer = closer[closer > row]
            owner[closer], best[closer], is_kept[closer] = row, score[row][closer], False
    # The kept row comes first of its group, because it comes before all that it owns.
    return [np.flatnonzero(owner == row).tolist() for row in np.unique(owner)]
