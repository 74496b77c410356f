"""Aligns candidate pairs, and keeps of which better photo each photo is a copy.

The best photo comes first, and everything that may show the same is aligned with it: the photos that it is paired with,
those that its proved copies are paired with, and so on. So a cluster of 20,000 copies takes 20,000 alignments. If the
best file is probably made from another photo, such as a bordered copy, that one is in turn aligned with everything.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from clip_client.dedup.aligned import LACKS_DETAIL
from clip_client.dedup.types import ALTERED, RE_ENCODED, TIERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from clip_client.dedup.aligned import Alignment

    AlignRows = Callable[[int, Sequence[int]], Sequence[Alignment | None]]
    """``align(kept, duplicates)`` returns the alignment of each of the rows with the row ``kept``, None for no copy."""


THRESHOLDS: Final = "thresholds"
"""The source of a pair of a photo and the kept one of its group, if no filter paired them."""
_MOST_PROOFS: Final = 16
"""A row that cannot move by as many proofs is aligned with no more rows than it is paired with."""


class Proof(NamedTuple):
    """Another photo that shows the same as a row."""

    kept: int
    """Its row."""
    alignment: Alignment
    source: str
    """What found the pair."""


class Proofs:
    """Rows that show the same as a better one."""

    def __init__(
        self,
        align: AlignRows = lambda kept, duplicates: [None] * len(duplicates),
        may_be_copies: Callable[[int, int], bool] = lambda first, second: True,
    ) -> None:
        """Without ``align`` nothing is ever proved. Rows for which ``may_be_copies`` is False are never aligned."""
        self._align = align
        self._may_be_copies = may_be_copies
        self._place: dict[int, int] = {}
        """Row -> its place in the order of the last :meth:`prove`."""
        self._of: defaultdict[int, dict[int, Proof]] = defaultdict(dict)
        """Row -> the row that shows the same -> the proof."""
        self._tried: set[tuple[int, int]] = set()
        self.aligned: Counter[str] = Counter()
        """Source of candidate pairs -> number of alignments that were tried because of it."""

    @property
    def proved(self) -> Counter[str]:
        """Source -> number of rows that it gave their first proof by a better row."""
        firsts = (next(self._by_better_rows(row), None) for row in self._of)
        return Counter(proof.source for proof in firsts if proof is not None)

    def best(self, row: int) -> Proof | None:
        """Return a proof of a row by a better one: one by which it can move, if there is one; of several, the most
        certain, and of these that with the best photo."""

        def rank(proof: Proof) -> tuple[bool, int, int]:
            tier = TIERS.index(proof.alignment.tier)
            return not loses_nothing(proof.alignment), tier, self._place.get(proof.kept, len(self._place))

        return min(self._by_better_rows(row), key=rank, default=None)

    def between(self, row: int, kept: int) -> Alignment | None:
        """Return the alignment of a row with ``kept``, if they were aligned and show the same."""
        proof = self._of[row].get(kept) if row in self._of else None
        return proof and proof.alignment

    def align(self, kept: int, sources: Mapping[int, str]) -> list[int]:
        """Align rows with ``kept``, each once; return those that are copies of it.

        ``sources`` maps each row to the source of the pair that led to it.
        """
        rows = [row for row in sources if (kept, row) not in self._tried and self._may_be_copies(kept, row)]
        self._tried.update((kept, row) for row in rows)
        for row, alignment in zip(rows, self._align(kept, rows), strict=True):
            self.aligned[sources[row]] += 1
            if alignment is not None:
                self._of[row][kept] = Proof(kept, alignment, sources[row])
        return [row for row in sources if self.between(row, kept) is not None]

    def prove(
        self,
        paired: Mapping[int, Mapping[int, str]],
        best_first: Sequence[int],
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Align each row with the better ones that it is paired with; ``best_first`` has all of them.

        ``paired`` maps each row to the rows that it is paired with, and to the source of each pair. A second call with
        another order of the same rows goes on from what the first one proved.

        A row that is a re-encoded copy of a better one is aligned with no further row. One that is an edited copy may
        have copies of its own, so it is aligned with the rows that it is paired with. One that can move for no better
        one stays, so everything else that stays is aligned with it, too, if it may show the same.
        """
        self._place = {row: number for number, row in enumerate(best_first)}
        for done, kept in enumerate(best_first):
            on_progress(done, len(best_first))
            if self._is_re_encoded(kept):
                continue
            stays = self._stays(kept)
            seen, frontier = {kept}, [kept]
            while frontier:
                found: dict[int, str] = {}
                for row in frontier:
                    for other, source in paired[row].items():
                        if other not in seen and self._may_follow(other, kept, is_paired=row == kept):
                            found.setdefault(other, source)
                seen.update(found)
                copies = self.align(kept, {row: found[row] for row in sorted(found, key=self._place.__getitem__)})
                frontier = copies if stays else []
        on_progress(len(best_first), len(best_first))

    def doubted(self) -> dict[int, str]:
        """Return the rows that can move for one that comes after them and that cannot move for them -> why."""
        doubts: dict[int, str] = {}
        for row in sorted(self._of, key=lambda row: self._place.get(row, -1)):
            if not self._stays(row):
                continue
            for kept, alignment, source in list(self._by_better_rows(row)):
                if kept in doubts or not self._stays(kept):
                    continue
                self.align(row, {kept: source})
                back = self.between(kept, row)
                if back is not None and loses_nothing(back):
                    named = [f"it lacks {', '.join(alignment.lost)}"] if alignment.lost else alignment.doubts
                    doubts[kept] = named[0] if named else LACKS_DETAIL
        return doubts

    def _by_better_rows(self, row: int) -> Iterator[Proof]:
        return (proof for kept, proof in self._of.get(row, {}).items() if self._is_before(kept, row))

    def _is_before(self, kept: int, row: int) -> bool:
        """Tell whether ``kept`` is the better one. A row that no filter paired is only aligned with better ones."""
        return self._place.get(kept, -1) < self._place.get(row, len(self._place))

    def _may_follow(self, row: int, kept: int, *, is_paired: bool) -> bool:
        if not self._is_before(kept, row):
            return False
        if is_paired:
            return not self._is_re_encoded(row)
        return self._stays(row) and len(self._of.get(row, ())) < _MOST_PROOFS

    def _stays(self, row: int) -> bool:
        """Tell whether there is no better row that ``row`` could move for."""
        return not any(loses_nothing(proof.alignment) for proof in self._by_better_rows(row))

    def _is_re_encoded(self, row: int) -> bool:
        proof = self.best(row)
        return proof is not None and proof.alignment.tier == RE_ENCODED and loses_nothing(proof.alignment)


def loses_nothing(alignment: Alignment) -> bool:
    """Tell whether the duplicate can move, as far as the alignment tells."""
    return alignment.tier != ALTERED and not alignment.lost and not alignment.doubts
