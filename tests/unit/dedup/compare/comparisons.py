"""The groups of contents that were compared by hand."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, TypeVar

import numpy as np

from clip_client.dedup import Alignment, DuplicateGroup, Photo, Thresholds
from clip_client.dedup.compare.compared import Compared
from clip_client.dedup.compare.groups import make_groups, stars
from clip_client.dedup.compare.keep_rules import KeepRules
from clip_client.dedup.compare.neighbours import Evidence
from clip_client.dedup.compare.proofs import Proofs
from clip_client.dedup.compare.star_groups import CannotLink

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


class FakeAligner:
    """Aligns rows, whose contents are their numbers, by a function, and remembers the pairs."""

    def __init__(self, align: Callable[[int, int], Alignment | None]) -> None:
        self._align = align
        self.asked: list[tuple[int, int]] = []
        self.reasons: dict[str, str] = {}

    def align(self, kept: str, duplicates: Sequence[str]) -> list[Alignment | None]:
        pairs = [(int(kept), int(row)) for row in duplicates]
        self.asked += pairs
        return [self._align(*pair) for pair in pairs]


def proofs_of(compared: Compared, align: Callable[[int, int], Alignment | None]) -> tuple[Proofs, FakeAligner]:
    """Return proofs of which nothing is known yet, and what aligns for them."""
    aligner: Any = FakeAligner(align)
    return Proofs(compared, [str(row) for row in range(len(compared.candidates))], aligner), aligner


def compared_of(
    files: Sequence[Sequence[Photo]],
    evidence: Evidence,
    rules: KeepRules,
    *,
    similar: float = 1.0,
    components: Sequence[Sequence[int]] = (),
    cannot_link: Sequence[Sequence[int]] = (),
    paired: Mapping[int, Set[int]] | None = None,
) -> Compared:
    """Make the comparison of contents whose ``files`` come best first; by default each is paired with each."""
    every = set(range(len(files)))
    return Compared(
        candidates=dict(enumerate(files)),
        evidence=evidence,
        thresholds=Thresholds(similar=similar, source="", recommended=True),
        components=[np.array(rows) for rows in components],
        cannot_link=CannotLink(np.array(rows) for rows in cannot_link),
        rules=rules,
        paired={row: every - {row} for row in every} if paired is None else paired,
    )


def grouped(
    files: Sequence[Sequence[Photo]],
    vectors: Any,
    rules: KeepRules,
    *,
    pixels: Sequence[int] | None = None,
    hashes: Sequence[int | None] | None = None,
    align: Callable[[int, int], Alignment | None] = lambda kept, row: None,
    **given: Any,
) -> tuple[DuplicateGroup, ...]:
    """Make the groups of contents whose ``files`` come best first; by default all of them hang together.

    ``align(kept, row)`` returns the alignment of each pair; ``given`` is for :func:`compared_of`.
    """
    evidence = evidence_of(vectors, pixels=pixels, hashes=hashes)
    compared = compared_of(files, evidence, rules, **{"components": [range(len(files))], **given})
    proofs, _ = proofs_of(compared, align)
    proofs.prove(range(len(files)), lambda what, done, total: None)
    return make_groups(compared, proofs, stars(compared, proofs))
