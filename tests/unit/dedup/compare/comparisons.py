"""The groups of contents that were compared by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clip_client.dedup import Evidence, Thresholds
from clip_client.dedup.compare.compared import Compared
from clip_client.dedup.compare.groups import make_groups, stars
from clip_client.dedup.compare.proofs import Proofs
from clip_client.dedup.compare.star_groups import CannotLink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clip_client.dedup import Alignment, DuplicateGroup, Photo
    from clip_client.dedup.compare.keep_rules import KeepRules


def grouped(
    files: Sequence[Sequence[Photo]],
    vectors: Any,
    rules: KeepRules,
    *,
    similar: float,
    pixels: Sequence[int] | None = None,
    hashes: Sequence[int | None] | None = None,
    hash_bits: int = -1,
    components: Sequence[Sequence[int]] | None = None,
    cannot_link: Sequence[Sequence[int]] = (),
    align: Callable[[int, int], Alignment | None] = lambda kept, row: None,
) -> tuple[DuplicateGroup, ...]:
    """Make the groups of contents whose ``files`` come best first; by default all of them hang together.

    ``align(kept, row)`` returns the alignment of each pair.
    """
    count = len(files)
    sets = CannotLink(np.array(rows) for rows in cannot_link)
    proofs = Proofs(
        lambda kept, rows: [align(kept, row) for row in rows],
        sets.may_share,
    )
    paired = {row: dict.fromkeys(set(range(count)) - {row}, "vectors") for row in range(count)}
    proofs.prove(paired, range(count))
    comparison = Compared(
        candidates=dict(enumerate(files)),
        evidence=Evidence(
            np.array(vectors, dtype=np.float32),
            pixels=None if pixels is None else np.array(pixels),
            hashes=None if hashes is None else np.array([one or 0 for one in hashes], dtype=np.uint64),
            has_hash=None if hashes is None else np.array([one is not None for one in hashes]),
        ),
        thresholds=Thresholds(similar=similar, source="", recommended=True),
        hash_bits=hash_bits,
        components=[np.array(rows) for rows in ([range(count)] if components is None else components)],
        cannot_link=sets,
        rules=rules,
        proofs=proofs,
    )
    return make_groups(comparison, stars(comparison))
