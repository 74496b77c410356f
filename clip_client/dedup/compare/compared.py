"""The contents of a search, and what decides about each pair of them before anything is proved."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from clip_client.dedup.compare.keep_rules import KeepRules
from clip_client.dedup.compare.neighbours import Evidence
from clip_client.dedup.compare.star_groups import CannotLink
from clip_client.dedup.features.capture_time import classify_burst
from clip_client.dedup.photo import Photo
from clip_client.dedup.types import Indices, Thresholds


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    candidates: Mapping[int, Sequence[Photo]]
    """Row -> the files of that content, best first; a row with one file that nothing else is like may be missing."""
    evidence: Evidence
    """Pictures of nearly one colour have neither a vector nor a hash."""
    thresholds: Thresholds
    components: Sequence[Indices]
    look_alike: Sequence[Indices] = ()
    cannot_link: CannotLink
    rules: KeepRules
    paired: Mapping[int, Set[int]] = field(default_factory=dict)
    """Row -> the rows that are worth aligning with it; each pair in both directions."""

    def may_be_copies(self, kept: int, row: int) -> bool:
        return self.cannot_link.may_share(kept, row) and not self.other_shot(kept, row, is_proved=True)

    def with_pairs(self, pairs: Iterable[Sequence[int]]) -> Compared:
        paired = defaultdict(set, {row: set(others) for row, others in self.paired.items()})
        for first, second in pairs:
            if self.may_be_copies(first, second):
                paired[first].add(second)
                paired[second].add(first)
        return replace(self, paired=paired)

    def other_shot(self, kept: int, row: int, *, is_proved: bool) -> str:
        return other_shot(self.candidates[kept][0], self.candidates[row][0], is_proved=is_proved)

    def best_first(self, rows: Iterable[int]) -> list[int]:
        return sorted(rows, key=lambda row: self.rules.rank(self.candidates[row][0]))

    def same_pixels(self) -> dict[int, int]:
        """Return row -> the best row with its pixels, for each row that is not the best itself."""
        best_of: dict[int, int] = {}
        better = {}
        for row in self.best_first(self.candidates):
            best = best_of.setdefault(int(self.evidence.pixels[row]), row)
            if best != row and self.cannot_link.may_share(best, row):
                better[row] = best
        return better

    def with_doubts(self, doubts: Mapping[int, str]) -> Compared:
        by_pixels = {int(self.evidence.pixels[row]): why for row, why in doubts.items()}
        doubted = {
            files[0].sha256: why
            for row, files in self.candidates.items()
            if (why := by_pixels.get(int(self.evidence.pixels[row])))
        }
        return replace(self, rules=self.rules.with_doubts(doubted))


def other_shot(kept: Photo, other: Photo, *, is_proved: bool) -> str:
    theirs, ours = kept.features, other.features
    same_form = (ours.width, ours.height, ours.format) == (theirs.width, theirs.height, theirs.format)
    return classify_burst(
        theirs.metadata, ours.metadata, same_form=same_form, is_proved=is_proved, names=(kept.name, other.name)
    )
