"""Groups of photos that show the same picture, and the verdict about each photo."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from clip_client.dedup.aligned import Alignment, Match
from clip_client.dedup.photo import Photo
from clip_client.dedup.types import BY_DEFAULT, EXACT, NEVER, ON_REQUEST, SAFE_TIERS, SAME_PIXELS, SIMILAR, TIERS


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether one photo of a group may move, and why. Only :mod:`~.judge.verdicts` makes verdicts."""

    kept: str = ""
    """Path of the photo that stays instead; empty for the photo that the group keeps."""
    tier: str = EXACT
    moves: str = NEVER
    """:data:`BY_DEFAULT`, :data:`ON_REQUEST`, :data:`IF_CHOSEN` or :data:`NEVER`."""
    reason: str = ""
    """One sentence on why the photo does not move by default; empty if it does or is kept."""
    lost: tuple[str, ...] = ()

    def reason_to_stay(self, tiers: Collection[str] | None) -> str:
        """Say why the photo does not move with ``tiers`` (None: a person chose it); empty if it moves or is kept."""
        if self.moves == NEVER or (tiers is not None and not self.is_copy):
            return self.reason
        if tiers is None or self.tier in tiers:
            return ""
        return self.reason or f"It moves only with --act-on {self.tier}."

    @property
    def is_copy(self) -> bool:
        return self.moves in (BY_DEFAULT, ON_REQUEST)


@dataclass(frozen=True, kw_only=True)
class Member:
    photo: Photo
    similarity: float
    """Cosine with the kept photo, 1 for files with its bytes; NaN if the search did not compare the two."""
    tier: str = SIMILAR
    matches: tuple[Match, ...] = ()
    other_shot: str = ""
    """``BURST`` or ``SAME_SCENE`` if times or exposures show another shot than the kept photo; else empty."""
    copy_of: str = ""
    """Path of another file of the group, if the photo is a closer copy of it than of the kept photo; else empty."""
    copy_tier: str = ""
    copy_alignment: Alignment | None = None
    cannot_verify: str = ""
    """One sentence on why the photo could not be aligned with any photo; empty if it could."""
    doubt: str = ""
    verdict: Verdict = Verdict()

    @property
    def path(self) -> str:
        return self.photo.path

    @property
    def sha256(self) -> str:
        return self.photo.sha256

    @property
    def alignment(self) -> Alignment | None:
        return next((match.alignment for match in self.matches if match.alignment), None)

    @property
    def why(self) -> str:
        same = {EXACT: "same bytes as", SAME_PIXELS: "same pixels as"}.get(self.copy_tier, f"{self.copy_tier} copy of")
        copy = f"{same} {self.copy_of}" if self.copy_of else ""
        doubt = f"may be made from another photo: {self.doubt}" if self.doubt else ""
        return "; ".join(filter(None, (*map(str, self.matches), copy, doubt)))


@dataclass(frozen=True, kw_only=True)
class DuplicateGroup:
    """Photos that show the same picture; the first photo is kept."""

    tier: str
    min_similarity: float
    members: tuple[Member, ...]
    """The kept photo first, then by descending similarity to it."""
    reason: str = ""
    proofs: Mapping[tuple[str, str], Alignment] = field(default_factory=dict, repr=False)
    """SHA-256 of two photos -> how the first lies on the second, for grouping them again around another photo."""

    @property
    def keep(self) -> str:
        return self.members[0].path

    def moving(self, tiers: Collection[str] = SAFE_TIERS) -> list[Photo]:
        return [one.photo for one in self.members if one.verdict.moves == BY_DEFAULT and one.verdict.tier in tiers]

    @property
    def waiting(self) -> list[Photo]:
        return [member.photo for member in self.members if member.verdict.moves == ON_REQUEST]

    @property
    def moving_tier(self) -> str:
        """Tier by which outputs name and filter groups: of the least certain moving member, else of the group."""
        verdicts = (member.verdict for member in self.members)
        return max((one.tier for one in verdicts if one.moves == BY_DEFAULT), key=TIERS.index, default=self.tier)

    @property
    def spare_bytes(self) -> tuple[int, int]:
        return sum(photo.spare_bytes for photo in self.moving()), sum(photo.spare_bytes for photo in self.waiting)
