"""Groups of photos that show the same, and the verdict about each photo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clip_client.dedup.types import BY_DEFAULT, EXACT, NEVER, ON_REQUEST, SAME_PIXELS, SIMILAR

if TYPE_CHECKING:
    from collections.abc import Collection

    from clip_client.dedup.aligned import Alignment, Match
    from clip_client.dedup.photo import Photo


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What may happen to one photo of a group, and why. Only :mod:`~.actions.verdicts` makes it; all else shows it."""

    kept: str = ""
    """Path of the photo for which it may move; empty for the photo that the group keeps."""
    tier: str = EXACT
    """How certain it is that ``kept`` shows the same; one of :data:`TIERS`."""
    moves: str = NEVER
    """:data:`BY_DEFAULT`, :data:`ON_REQUEST`, :data:`IF_CHOSEN` or :data:`NEVER`."""
    reason: str = ""
    """One sentence for people: why it does not move by default. Empty if it does, and for the kept photo."""
    lost: tuple[str, ...] = ()
    """What only this photo shows, such as ``"colour"``."""
    doubt: str = ""
    """Why it is probably made from another photo; empty if nothing shows that."""

    def reason_to_stay(self, tiers: Collection[str] | None) -> str:
        """Say why it does not move if these tiers are selected, or, with None, if a person chose that it moves.

        Empty if it does, and for the photo that the group keeps.
        """
        if self.moves == NEVER or (tiers is not None and not self.is_copy):
            return self.reason
        if tiers is None or self.tier in tiers:
            return ""
        return self.reason or f"It moves only with --act-on {self.tier}."

    @property
    def is_copy(self) -> bool:
        """Whether it can move without a person who looks at it."""
        return self.moves in (BY_DEFAULT, ON_REQUEST)


@dataclass(frozen=True, kw_only=True)
class Member:
    """One photo of a group, and what the search proved about it."""

    photo: Photo
    similarity: float
    """Cosine similarity to the kept photo; 1 for the kept photo and for files with its bytes."""
    tier: str = SIMILAR
    """How certain it is that the photo shows the same as the kept one; one of :data:`TIERS`."""
    matches: tuple[Match, ...] = ()
    """Every test that it passed against the kept photo. Empty for the kept photo."""
    other_shot: str = ""
    """``BURST`` or ``SAME_SCENE`` if its time shows that it is not the same picture as the kept one, else empty."""
    copy_of: str = ""
    """Path of another file of the group that it is a closer copy of than of the kept photo; else empty."""
    copy_tier: str = ""
    """How certain that is: one of :data:`TIERS`, but not ``SIMILAR``."""
    copy_alignment: Alignment | None = None
    """The alignment with ``copy_of``, if they were aligned."""
    cannot_verify: str = ""
    """One sentence that says why it could not be aligned with any photo; empty if it could."""
    doubt: str = ""
    """For people: why it is probably made from another photo; empty if nothing shows that."""
    verdict: Verdict = Verdict()
    """What may happen to it."""

    @property
    def path(self) -> str:
        """The path of its file."""
        return self.photo.path

    @property
    def sha256(self) -> str:
        """The SHA-256 of its file, in hexadecimal."""
        return self.photo.sha256

    @property
    def alignment(self) -> Alignment | None:
        """The alignment with the kept photo, if they were aligned and show the same."""
        return next((match.alignment for match in self.matches if match.alignment), None)

    @property
    def why(self) -> str:
        """For people: the tests that it passed, the file that it is a copy of, and why it may be no original."""
        same = {EXACT: "same bytes as", SAME_PIXELS: "same pixels as"}.get(self.copy_tier, f"{self.copy_tier} copy of")
        copy = f"{same} {self.copy_of}" if self.copy_of else ""
        doubt = f"may be made from another photo: {self.doubt}" if self.doubt else ""
        return "; ".join(filter(None, (*map(str, self.matches), copy, doubt)))


@dataclass(frozen=True, kw_only=True)
class DuplicateGroup:
    """Photos that show the same; the first one is kept."""

    tier: str
    """The least certain tier of its members."""
    min_similarity: float
    """The smallest cosine similarity of any two members."""
    members: tuple[Member, ...]
    """The kept photo first, then by descending similarity to it."""
    reason: str = ""
    """Why the first one is kept: the rule that preferred it to the next best."""

    @property
    def keep(self) -> str:
        """Path of the photo to keep."""
        return self.members[0].path

    @property
    def copies(self) -> int:
        """Number of members that can move without a person who looks at them."""
        return sum(member.verdict.is_copy for member in self.members)

    @property
    def spare_bytes(self) -> int:
        """The size of those copies; photos in a library of Apple Photos stay on the disk."""
        return sum(
            member.photo.size_bytes
            for member in self.members
            if member.verdict.is_copy and member.photo.in_library is None
        )
