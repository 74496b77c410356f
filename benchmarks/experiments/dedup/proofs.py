"""The tiers that an alignment proves, as detectors."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.experiments.dedup.detectors import Detector, best_first, equal_pixels, grouped
from clip_client.dedup.alignment.align import align
from clip_client.dedup.alignment.aligner import keypoints_of
from clip_client.dedup.alignment.keypoints import Keypoints, opencv_for_many
from clip_client.dedup.files.reading import PLAIN_READER
from clip_client.dedup.types import EDITED, RE_ENCODED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.progress import Progress

    from benchmarks.experiments.dedup.detectors import Facts


def proof_detectors(
    facts: Sequence[Facts], paths: Sequence[Path], pairs: Sequence[tuple[int, int]], progress: Progress
) -> list[Detector]:
    """Return what alignment proves of ``pairs`` of rows: re-encoded copies, and with them edited ones."""
    with ProcessPoolExecutor() as pool:
        extracted = pool.map(_keypoints, paths, (fact.sha256 for fact in facts), chunksize=8)
        keypoints = list(progress.track(extracted, len(paths), description="keypoints"))
        work = [(keypoints[one], keypoints[other]) for one, other in pairs]
        found = list(progress.track(pool.map(_tier, work, chunksize=32), len(work), description="aligning"))
    # What is proved of a file is proved of every file with its pixels.
    same = equal_pixels(facts).astype(np.float32)
    detectors = []
    for name, tiers in (
        ("re-encoded (proved by alignment)", (RE_ENCODED,)),
        ("edited and re-encoded (proved by alignment)", (RE_ENCODED, EDITED)),
    ):
        proved = np.eye(len(paths), dtype=np.float32)
        for (one, other), tier in zip(pairs, found, strict=True):
            if tier in tiers:
                proved[one, other] = proved[other, one] = 1
        alike = same @ proved @ same > 0
        detectors.append(grouped(name, alike, best_first(facts), alike.astype(np.float64)))
    return detectors


def _keypoints(path: Path, sha256: str) -> bytes:
    with opencv_for_many():
        found = keypoints_of(str(path), sha256, PLAIN_READER.read)
    assert found is not None, path
    return found.to_bytes()


def _tier(pair: tuple[bytes, bytes]) -> str:
    with opencv_for_many():
        found = align(*map(Keypoints.from_bytes, pair))
    return "" if found is None else found.tier
