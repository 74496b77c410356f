"""The groups of contents that were compared by hand."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from clip_client.dedup import Thresholds
from clip_client.dedup.compare.groups import Compared, make_groups, stars
from clip_client.dedup.compare.neighbours import Evidence
from clip_client.dedup.compare.proofs import Proofs
from clip_client.dedup.compare.star_groups import CannotLink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clip_client.dedup import Alignment, DuplicateGroup, Photo
    from clip_client.dedup.compare.keep_rules import KeepRules

T = TypeVar("T")


def evidence_of(
    vectors: Any, *, pixels: Sequence[int] | None = None, hashes: Sequence[int | None] | None = None
) -> Evidence:
    """Make evidence; without ``pixels`` no two rows have the same ones, and a hash of None says nothing."""
    count = len(vectors)
    bits: Sequence[int | None] = [None] * count if hashes is None else hashes
    return Evidence(
        np.array(vectors, dtype=np.float32),
        np.arange(count) if pixels is None else np.array(pixels),
        np.array([one or 0 for one in bits], dtype=np.uint64),
        np.array([one is not None for one in bits]),
    )


def with_peak_bytes(work: Callable[[], T]) -> tuple[T, int]:
    """Return what ``work`` returns, and the most bytes that it had allocated at once."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def grouped(
    files: Sequence[Sequence[Photo]],
    vectors: Any,
    rules: KeepRules,
    *,
    similar: float,
    components: Sequence[Sequence[int]] | None = None,
    cannot_link: Sequence[Sequence[int]] = (),
    align: Callable[[int, int], Alignment | None] = lambda kept, row: None,
    **evidence: Any,
) -> tuple[DuplicateGroup, ...]:
    """Make the groups of contents whose ``files`` come best first; by default all of them hang together.

    ``align(kept, row)`` returns the alignment of each pair; ``evidence`` is that of :func:`evidence_of`.
    """
    count = len(files)
    sets = CannotLink(np.array(rows) for rows in cannot_link)
    proofs = Proofs(lambda kept, rows: [align(kept, row) for row in rows], sets.may_share)
    paired = {row: set(range(count)) - {row} for row in range(count)}
    proofs.prove(paired, range(count))
    compared = Compared(
        candidates=dict(enumerate(files)),
        evidence=evidence_of(vectors, **evidence),
        thresholds=Thresholds(similar=similar, source="", recommended=True),
        components=[np.array(rows) for rows in ([range(count)] if components is None else components)],
        cannot_link=sets,
        rules=rules,
        proofs=proofs,
    )
    return make_groups(compared, stars(compared))
