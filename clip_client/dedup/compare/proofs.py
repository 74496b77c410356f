"""Aligns photos that may show the same picture, and records for each photo of which better photo it is a copy.

The best photo comes first. It is aligned with all that may show the same picture: the photos that it is paired with,
those that its proved copies are paired with, and so on. So a cluster of 20,000 copies takes 20,000 alignments. The best
photo may be a copy itself: a copy with a border has more pixels than its source. The source is then aligned with all of
them, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client._files import FailedFile
from clip_client.dedup.aligned import LACKS_DETAIL, Alignment
from clip_client.dedup.compare.compared import Compared
from clip_client.dedup.features.hashes import pixel_hash
from clip_client.dedup.features.preview import picture_file
from clip_client.dedup.files.reading import read_file, sha256_of
from clip_client.dedup.formats.embedded_parts import embedded_parts
from clip_client.dedup.formats.encoding import read_encoding
from clip_client.dedup.store.store import Store
from clip_client.dedup.types import EXACT, RE_ENCODED, SAME_PIXELS, TIERS, OnProgress
from preprocess_ensemble.errors import pip_install

if TYPE_CHECKING:
    from clip_client.dedup.compare.aligner import Aligner

_NO_OPENCV: Final = f"No copy was verified, because OpenCV cannot be imported ({{}}): {pip_install('dedup')}"
_MOST_PROOFS: Final = 16
"""A row that cannot move by as many proofs is aligned with no more rows than it is paired with."""


class Proofs:
    """Rows that show the same picture as a better row. Without an ``aligner``, nothing is proved."""

    def __init__(
        self,
        compared: Compared,
        contents: Sequence[str] = (),
        aligner: Aligner | None = None,
        known: Mapping[tuple[int, int], Alignment] | None = None,
    ) -> None:
        """``contents`` has the SHA-256 of each row; ``known`` is what :meth:`among` returned."""
        self._compared, self._contents, self._aligner = compared, contents, aligner
        self._place: dict[int, int] = {}
        """Row -> its place in the order of the last :meth:`prove`."""
        self._of: defaultdict[int, dict[int, Alignment]] = defaultdict(dict)
        """Row -> another row that shows the same picture -> how the first lies on the other."""
        for (row, other), one in (known or {}).items():
            self._of[row][other] = one
        self._tried: set[tuple[int, int]] = set()
        self.cannot_verify = {} if aligner is None else aligner.reasons
        """Content (SHA-256) -> why it could not be aligned with any other."""

    def best(self, row: int) -> int | None:
        """Return the better row with the best proof that it shows the same picture as ``row``, if any."""

        def rank(kept: int) -> tuple[bool, int, int]:
            proof = self._of[row][kept]
            return not proof.loses_nothing, TIERS.index(proof.tier), self._place.get(kept, len(self._place))

        return min(self._better(row), key=rank, default=None)

    def between(self, row: int, kept: int) -> Alignment | None:
        """Return the alignment of a row with ``kept``, if they were aligned and show the same picture."""
        return self._of.get(row, {}).get(kept)

    def among(self, rows: Set[int]) -> dict[tuple[int, int], Alignment]:
        """Return (row, another row of the same picture) -> how the first lies on the other, for pairs of ``rows``."""
        return {(row, kept): one for row in rows for kept, one in self._of.get(row, {}).items() if kept in rows}

    def align(self, kept: int, rows: Sequence[int]) -> list[int]:
        """Align ``rows`` with ``kept``, each once; return those that are copies of it."""
        compared, contents = self._compared, self._contents
        new = [row for row in rows if (kept, row) not in self._tried and compared.may_be_copies(kept, row)]
        if self._aligner is not None and new:
            self._tried.update((kept, row) for row in new)
            found = self._aligner.align(contents[kept], [contents[row] for row in new])
            for row, one in zip(new, found, strict=True):
                if one is not None and not compared.other_shot(kept, row, is_proved=one.is_proved):
                    self._of[row][kept] = one
        return [row for row in rows if self.between(row, kept) is not None]

    def prove(self, best_first: Sequence[int], on_progress: OnProgress) -> None:
        """Align each row with the better rows that it is paired with; ``best_first`` has all rows.

        A re-encoded copy of a better row is aligned with no further rows. An edited copy may have copies of its own, so
        it is aligned with the rows that it is paired with. A row that cannot move for any better row stays, so it is
        also aligned with every other row that stays and may show the same picture. A second call reuses earlier proofs.
        """
        self._place = {row: number for number, row in enumerate(best_first)}
        for done, kept in enumerate(best_first):
            on_progress("verifying", done, len(best_first))
            if self._is_re_encoded(kept):
                continue
            stays = self._stays(kept)
            seen, frontier = {kept}, [kept]
            while frontier:
                found = {
                    other
                    for row in frontier
                    for other in self._compared.paired[row]
                    if other not in seen and self._may_follow(other, kept, is_paired=row == kept)
                }
                seen |= found
                copies = self.align(kept, sorted(found, key=self._place.__getitem__))
                frontier = copies if stays else []
        on_progress("verifying", len(best_first), len(best_first))

    def doubted(self, known: Container[int] = ()) -> dict[int, str]:
        """Return row -> why it was probably made from a later row, which shows all of it, but not the reverse."""
        doubts: dict[int, str] = {}
        for row in sorted(self._of, key=lambda row: self._place.get(row, -1)):
            if row in known or not self._stays(row):
                continue
            for kept in self._better(row):
                if kept in known or kept in doubts or not self._stays(kept):
                    continue
                self.align(row, [kept])
                back = self.between(kept, row)
                if back is not None and back.loses_nothing:
                    proof = self._of[row][kept]
                    named = [f"it lacks {', '.join(proof.lost)}"] if proof.lost else proof.doubts
                    doubts[kept] = named[0] if named else LACKS_DETAIL
        return doubts

    def _better(self, row: int) -> list[int]:
        """Return the better rows that show the same picture, in the order in which they were found."""
        return [kept for kept in self._of.get(row, ()) if self._is_before(kept, row)]

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
        return not any(self._of[row][kept].loses_nothing for kept in self._better(row))

    def _is_re_encoded(self, row: int) -> bool:
        kept = self.best(row)
        return kept is not None and self._of[row][kept].tier == RE_ENCODED and self._of[row][kept].loses_nothing


def proved(
    compared: Compared, contents: Sequence[str], aligner: Aligner, on_progress: OnProgress
) -> tuple[Compared, Proofs]:
    """Return the proofs of the paired rows, and the comparison with the doubts that they raise.

    A doubt is a sign that a photo was made from another. A doubted photo is seldom kept, so another photo, about which
    nothing is proved yet, may become the best of its group. Proving is therefore repeated until no proof raises a
    further doubt.
    """
    best_first = compared.best_first(compared.paired)
    place = {row: number for number, row in enumerate(best_first)}
    pairs = ((row, other) for row in best_first for other in compared.paired[row] if place[row] < place[other])
    aligner.prepare([(contents[row], contents[other]) for row, other in pairs], on_progress)
    compared = compared.with_pairs(_near_by_thumbnails(compared, contents, aligner, on_progress))
    proofs, doubts = Proofs(compared, contents, aligner), dict[int, str]()
    proofs.prove(compared.best_first(compared.paired), on_progress)
    while further := proofs.doubted(doubts):
        doubts |= further
        compared = compared.with_doubts(doubts)
        proofs.prove(compared.best_first(compared.paired), on_progress)
    return compared, proofs


def _near_by_thumbnails(
    compared: Compared, contents: Sequence[str], aligner: Aligner, on_progress: OnProgress
) -> Iterator[list[int]]:
    """Yield pairs of rows of one cluster of like hashes whose thumbnails are nearest.

    Of many photos that are nearly alike, any may be the nearest by the 64 bits of a hash; by 256 grey levels, it is the
    one that a copy was made from.
    """
    same_pixels = compared.same_pixels()
    for cluster in compared.look_alike:
        rows = np.array([row for row in cluster.tolist() if row not in same_pixels])
        # No row of a burst alone is paired. If a copy of a frame is there, all frames are looked at.
        if len(rows) > 2 and not compared.paired.keys().isdisjoint(rows.tolist()):
            some = [contents[row] for row in rows.tolist()]
            for one, other in aligner.near_by_thumbnails(some, on_progress):
                yield from rows[np.stack([one, other], axis=1)[one != other]].tolist()


def import_aligner() -> tuple[ModuleType | None, str]:
    """Return the module that aligns photos; or, without OpenCV, None and why no copy is verified."""
    try:
        import clip_client.dedup.compare.aligner as aligner
    except ImportError as error:
        return None, _NO_OPENCV.format(error)
    return aligner, ""


def has_old_proofs(store: Store) -> bool:
    """Tell whether a store holds proofs by an earlier rule, which the next search makes again."""
    aligner, _ = import_aligner()
    return aligner is not None and bool(store.cache.other_versions(*aligner.VERSIONS))


def prove_again(kept: str, moved: str) -> str:
    """Return the tier by which the file at ``kept`` shows all of the picture at ``moved``; empty if nothing proves it.

    Bytes are compared first, then pixels; finally :mod:`clip_client.dedup.proof` decides. Nothing is proved if the
    moved file holds more than its picture, or kinds of data that the kept file is not known to have. Nothing is proved
    either if the kept photo seems to be made from the moved file.
    """
    bytes_of = [sha256_of(path) for path in (kept, moved)]
    if not all(bytes_of):
        return ""
    if bytes_of[0] == bytes_of[1]:
        return EXACT
    read = [read_file(path) for path in (kept, moved)]
    data = [b"" if isinstance(found, FailedFile) else found[1] for found in read]
    held, by_moved = map(embedded_parts, data)
    if by_moved.kinds and by_moved.digest != held.digest:
        return ""
    pixels_of = [pixel_hash(one) for one in data]
    if all(pixels_of) and pixels_of[0] == pixels_of[1]:
        return SAME_PIXELS
    encoding, of_moved = map(read_encoding, data)
    if encoding is None or of_moved is None or encoding.lacks_kinds_of(of_moved):
        return ""
    try:
        from clip_client.dedup.proof.prove import EITHER, KEPT, prove
    except ImportError:
        return ""
    proof = prove(picture_file(kept, data[0]), picture_file(moved, data[1]))
    return RE_ENCODED if proof.source in (KEPT, EITHER) else ""
