"""The part of a search that proves copies: it pairs photos that may show the same, and aligns them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.aligned import PairSource
from clip_client.dedup.alignment.proofs import Proofs
from clip_client.dedup.compare.candidate_pairs import SOURCES
from clip_client.dedup.compare.groups import other_shot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from clip_client.dedup.aligned import Alignment
    from clip_client.dedup.compare.candidate_pairs import CandidatePairs
    from clip_client.dedup.compare.groups import Compared
    from clip_client.dedup.features.collect import CollectedFeatures, KeepPicture
    from clip_client.dedup.files.reading import PhotoReader
    from clip_client.dedup.photo import Photo
    from clip_client.dedup.store.blob_table import Spool
    from clip_client.dedup.store.store import Store
    from clip_client.dedup.types import OnProgress

    PhotosOf = Callable[[Collection[int]], dict[int, list[Photo]]]
    """Returns row -> the files of that content, best first."""

_NO_OPENCV: Final = "No copy was verified, because OpenCV cannot be imported ({}): pip install 'clip-triton[dedup]'"


def keep_pictures(spool: Spool) -> KeepPicture | None:
    """Return what keeps the small pictures of large photos in ``spool``; none without OpenCV, as nothing is aligned."""
    try:
        from clip_client.dedup.alignment.aligner import keep_small_picture
    except ImportError:
        return None
    return partial(keep_small_picture, spool)


@dataclass
class Verification:
    """What one search verified."""

    comparison: Compared
    """With the proofs."""
    pair_sources: tuple[PairSource, ...] = ()
    """What each source of candidate pairs contributed; known after the block, as the two numbers are."""
    keypoints: int = 0
    """Contents that were prepared for their alignment."""
    aligned: int = 0
    """Pairs that were aligned, because the store had no outcome."""
    note: str = ""
    """Why nothing could be verified; empty if something could."""


@contextmanager
def verified(
    comparison: Compared,
    contents: Sequence[str],
    collected: CollectedFeatures,
    pairs: CandidatePairs | None,
    candidates_of: PhotosOf,
    store: Store,
    on_progress: OnProgress,
    reader: PhotoReader,
) -> Iterator[Verification]:
    """Align the contents that may show the same; inside the block, ``comparison.proofs`` can align more of them.

    Each content has keypoints once per store, and only if there is another one to align it with. Without OpenCV nothing
    is verified, and the note says so. Without ``pairs`` nothing is aligned.
    """
    if pairs is None:
        yield Verification(comparison)
        return
    try:
        from clip_client.dedup.alignment.aligner import Aligner
    except ImportError as error:
        yield Verification(comparison, note=_NO_OPENCV.format(error))
        return
    rows = pairs.rows.tolist()
    candidates = {**comparison.candidates, **candidates_of(set(rows) - comparison.candidates.keys())}
    comparison = replace(comparison, candidates=candidates)

    def may_be_copies(kept: int, row: int) -> bool:
        files = candidates[kept][0], candidates[row][0]
        return comparison.may_share(kept, row) and not other_shot(*files)

    both = zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)
    pairs = pairs.of(np.fromiter((may_be_copies(*pair) for pair in both), dtype=bool, count=len(pairs.first)))
    best_first = comparison.best_first(pairs.rows.tolist())
    paths = {contents[row]: files[0].path for row, files in candidates.items()}
    originals = {contents[row] for row, files in candidates.items() if files[0].is_original}

    def is_source(kept: str, duplicate: str) -> bool:
        return kept in originals and duplicate not in originals

    with Aligner(paths, store, reader, pictures=collected.pictures, is_source=is_source) as aligner:

        def align(kept: int, rows: Sequence[int]) -> Sequence[Alignment | None]:
            return aligner.align(contents[kept], [contents[row] for row in rows])

        paired = pairs.by_row()
        place = {row: number for number, row in enumerate(best_first)}
        aligner.prepare(
            [
                (contents[row], contents[other])
                for row in best_first
                for other in paired[row]
                if place[row] < place[other]
            ],
            lambda done, total: on_progress("extracting keypoints", done, total),
        )
        proofs = Proofs(align, may_be_copies)
        comparison = _prove(proofs, comparison, pairs, lambda done, total: on_progress("verifying", done, total))
        proving = Verification(replace(comparison, proofs=proofs, cannot_verify=aligner.reasons))
        yield proving
        counts = [int((pairs.source == number).sum()) for number in range(len(SOURCES))]
        proving.pair_sources = tuple(
            PairSource(name=name, pairs=count, aligned=proofs.aligned[name], proved=proofs.proved[name])
            for name, count in zip(SOURCES, counts, strict=True)
        )
        proving.keypoints, proving.aligned = aligner.made, aligner.aligned


def _prove(
    proofs: Proofs, comparison: Compared, pairs: CandidatePairs, on_progress: Callable[[int, int], None]
) -> Compared:
    """Prove what is a copy of what; return the comparison with what is known of the photos that are in doubt.

    A photo that is in doubt is seldom kept, so another one may be the best of its group, of which nothing was proved
    yet. This is done once: for 1,776 files of the accuracy cases, further times changed no verdict.
    """
    paired, rows = pairs.by_row(), pairs.rows.tolist()
    proofs.prove(paired, comparison.best_first(rows), on_progress)
    doubts = {row: why for row, why in proofs.doubted().items() if not comparison.candidates[row][0].is_original}
    if doubts:
        comparison = comparison.with_doubts(doubts)
        proofs.prove(paired, comparison.best_first(rows), on_progress)
    return comparison
