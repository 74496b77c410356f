"""What the templates show: plain values, computed from groups and choices, with everything already in words."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clip_client.dedup.files.file_types import suffix_of
from clip_client.dedup.reporting.words import in_words, region_on
from clip_client.dedup.store.choices import KEEP, OPEN, SKIP
from clip_client.dedup.store.decisions import DIFFERENT, KEEP_ALL
from clip_client.dedup.text import printable
from clip_client.review.state.found_groups import APPLIED

if TYPE_CHECKING:
    from collections.abc import Callable

    from clip_client.dedup.aligned import Alignment
    from clip_client.dedup.group import Member
    from clip_client.dedup.photo import Photo
    from clip_client.review.state.found_groups import FoundGroup

MOST_PHOTOS: Final = 60
"""Of one group that a page shows unless it is asked for more."""
STATE_NAMES: Final = {
    OPEN: "undecided",
    KEEP: "one stays",
    KEEP_ALL: "keep all",
    DIFFERENT: "different photos",
    SKIP: "skipped",
    APPLIED: "applied",
}


@dataclass(frozen=True, kw_only=True)
class MemberView:
    """One photo of a group. All texts are printable."""

    place: int
    """Its position in the group, from 0: what a choice names it by."""
    photo: Photo
    alignment: Alignment | None
    """With the first photo of the group, if they were aligned."""
    region: tuple[float, float, float, float] | None
    """What differs from that photo: left, top, width and height as shares of its own sides."""
    name: str
    folder: str
    preferred: str
    """The folder as a keep rule names it; empty if a form cannot hold its name, such as one with a line break."""
    format: str
    """Ending of the file's name, in capitals."""
    taken: str
    camera: str
    companions: tuple[str, ...]
    """Kinds and names of the files that move with it."""
    relation: str
    """What it is, compared with the suggested photo: ``"same picture, resized"``; empty for that photo."""
    evidence: tuple[str, ...]
    """The tests that it passed."""
    moves: bool
    """It moves by the choice, or, in an open or skipped group, by the suggestion."""
    stays_why: str
    """Why the suggestion leaves it although it is not the kept one; else empty."""
    problem: str
    """``"missing"`` or ``"changed"`` since the scan; else empty."""
    better: frozenset[str]
    """Fields of which it has the best value of the group: ``pixels``, ``taken``, ``companions``."""


@dataclass(frozen=True, kw_only=True)
class GroupView:
    """One group, with its first photos and the one that stays."""

    found: FoundGroup
    keep: int
    """Position of the photo that stays, by the choice or by the suggestion."""
    members: tuple[MemberView, ...]
    seen: int
    """Photos from this position on are not among ``members``, unless one of them stays."""
    moving_unseen: int
    """Photos that move and are not among ``members``."""

    @property
    def kept(self) -> MemberView:
        """The photo that stays."""
        return next(member for member in self.members if member.place == self.keep)


def group_view(
    found: FoundGroup, *, most: int = MOST_PHOTOS, problem_of: Callable[[Member], str] | None = None
) -> GroupView:
    """Describe a group and ``most`` of its photos. With ``problem_of`` their files are looked at; else none is."""
    members = found.group.members
    keep, moving = found.keep_and_moving
    kept, best = members[0], _best([member.photo for member in members])

    def view(place: int) -> MemberView:
        member = members[place]
        photo = member.photo
        return MemberView(
            place=place,
            photo=photo,
            alignment=member.alignment,
            region=region_on(member, kept),
            name=printable(os.path.basename(photo.label)),
            folder=printable(os.path.join(os.path.dirname(photo.label), "")),
            preferred=_preferred(photo),
            format=suffix_of(photo.path)[1:].upper(),
            taken=printable(photo.metadata.taken.replace("T", " ")),
            camera=printable(photo.camera),
            companions=tuple(f"{one.kind}: {printable(os.path.basename(one.path))}" for one in photo.companions),
            relation=in_words(member, kept) if place else "",
            evidence=tuple(map(printable, filter(None, member.why.split("; ")))),
            moves=place in moving,
            stays_why="" if not place or member.verdict.is_copy else printable(member.verdict.reason),
            problem=problem_of(member) if problem_of is not None else "",
            better=frozenset(field for field, places in best.items() if place in places),
        )

    shown = sorted({*range(min(most, len(members))), keep})
    return GroupView(
        found=found,
        keep=keep,
        members=tuple(map(view, shown)),
        seen=min(most, len(members)),
        moving_unseen=len(moving.difference(shown)),
    )


def _preferred(photo: Photo) -> str:
    folder = photo.in_library.library if photo.in_library is not None else os.path.dirname(photo.path)
    folder = os.path.join(folder, "")
    return folder if printable(folder) == folder else ""


def _best(photos: Sequence[Photo]) -> dict[str, frozenset[int]]:
    """Return field -> the positions of the photos with its best value, if there is a worse one."""
    values: dict[str, list[float]] = {
        "pixels": [photo.width * photo.height for photo in photos],
        "taken": [bool(photo.metadata.taken) for photo in photos],
        "companions": [len(photo.companions) for photo in photos],
    }
    highest = {field: max(of_each) for field, of_each in values.items() if min(of_each) < max(of_each)}
    return {
        field: frozenset(place for place, value in enumerate(values[field]) if value == best)
        for field, best in highest.items()
    }
