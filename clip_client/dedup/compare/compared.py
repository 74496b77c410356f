"""What a search knows about its contents: what is alike, and what an alignment proved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clip_client.dedup.compare.proofs import Proofs
from clip_client.dedup.features.capture_time import classify_burst

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from clip_client.dedup.aligned import Alignment
    from clip_client.dedup.alignment.aligner import Aligner
    from clip_client.dedup.compare.keep_rules import KeepRules
    from clip_client.dedup.compare.proofs import Paired
    from clip_client.dedup.compare.star_groups import CannotLink, Evidence
    from clip_client.dedup.photo import Photo
    from clip_client.dedup.types import OnProgress, Thresholds


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """The contents of a search; element i of each array is about row i."""

    candidates: Mapping[int, Sequence[Photo]]
    """Row -> the files of that content, best first; a row with one file that nothing else is like may be missing."""
    evidence: Evidence
    """Pictures of nearly one colour have neither a vector nor a hash."""
    thresholds: Thresholds
    hash_bits: int
    components: Sequence[NDArray[np.intp]]
    """Rows of each connected component of two or more."""
    cannot_link: CannotLink
    """What people declared to be different."""
    rules: KeepRules
    paired: Paired = field(default_factory=dict)
    """What is worth aligning."""
    proofs: Proofs = field(default_factory=Proofs)
    """Which rows an alignment proved to be copies."""
    doubts: Mapping[str, str] = field(default_factory=dict)
    """Content (SHA-256) -> why it is probably made from another one."""

    def may_be_copies(self, kept: int, row: int) -> bool:
        """Tell whether rows may be one picture: no person declared them to be different, and they are no two shots."""
        files = self.candidates[kept][0], self.candidates[row][0]
        return self.cannot_link.may_share(kept, row) and not other_shot(*files)

    def best_first(self, rows: Iterable[int]) -> list[int]:
        """Sort rows by their best files, whatever the order of the input."""
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
        """Return the comparison with these rows, and those of the same pixels, in doubt: row -> why."""
        by_pixels = {int(self.evidence.pixels[row]): why for row, why in doubts.items()}
        doubted = {
            files[0].sha256: why
            for row, files in self.candidates.items()
            if (why := by_pixels.get(int(self.evidence.pixels[row])))
        }
        return replace(self, doubts=doubted, rules=self.rules.with_doubts(doubted))


def proved(compared: Compared, contents: Sequence[str], aligner: Aligner, on_progress: OnProgress) -> Compared:
    """Return the comparison with proofs of the paired rows, and with the doubts that they raise.

    A photo that is in doubt is seldom kept, so another one may be the best of its group, of which nothing was proved
    yet. This is done once: for 1,776 files of the accuracy cases, further times changed no verdict.
    """
    paired, best_first = compared.paired, compared.best_first(compared.paired)
    place = {row: number for number, row in enumerate(best_first)}
    aligner.prepare(
        [(contents[row], contents[other]) for row in best_first for other in paired[row] if place[row] < place[other]],
        lambda done, total: on_progress("extracting keypoints", done, total),
    )

    def align(kept: int, rows: Sequence[int]) -> Sequence[Alignment | None]:
        return aligner.align(contents[kept], [contents[row] for row in rows])

    def verifying(done: int, total: int) -> None:
        on_progress("verifying", done, total)

    proofs = Proofs(align, compared.may_be_copies, aligner.reasons)
    proofs.prove(paired, best_first, verifying)
    doubts = {row: why for row, why in proofs.doubted().items() if not compared.candidates[row][0].is_original}
    if doubts:
        compared = compared.with_doubts(doubts)
        proofs.prove(paired, compared.best_first(paired), verifying)
    return replace(compared, proofs=proofs)


def other_shot(kept: Photo, other: Photo) -> str:
    """Return ``BURST`` or ``SAME_SCENE`` if times of capture or exposures show that two photos are two pictures."""
    theirs, ours = kept.features, other.features
    same_form = (ours.width, ours.height, ours.format) == (theirs.width, theirs.height, theirs.format)
    return classify_burst(theirs.capture_time, ours.capture_time, same_form=same_form, names=(kept.name, other.name))
