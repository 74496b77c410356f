"""What the templates show: plain values, computed from groups and choices, with everything already in words."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clip_client.dedup.files.companions import companions
from clip_client.dedup.files.file_types import suffix_of
from clip_client.dedup.reporting.words import in_words, region_on
from clip_client.dedup.store.choices import KEEP, OPEN, SKIP
from clip_client.dedup.store.decisions import DIFFERENT, KEEP_ALL
from clip_client.dedup.text import printable
from clip_client.review.state.choosing import suggestion
from clip_client.review.state.found_groups import APPLIED

if TYPE_CHECKING:
    from collections.abc import Callable

    from clip_client.dedup.aligned import Alignment
    from clip_client.dedup.types import Member
    from clip_client.review.state.found_groups import FoundGroup

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
    """One photo of a group."""

    place: int
    """Its position in the group, from 0: what a choice names it by."""
    sha256: str
    """Its content: what the addresses of its pictures name it by."""
    path: str
    """Printable, as are all texts here."""
    name: str
    folder: str
    preferred: str
    """The folder as a keep rule names it; empty if a form cannot hold its name, such as one with a line break."""
    width: int
    """Pixels; 0 if the file could not be decoded."""
    height: int
    size_bytes: int
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
    tier: str
    moves: bool
    """It moves by the choice, or, in an open or skipped group, by the suggestion."""
    stays_why: str
    """Why the suggestion leaves it although it is not the kept one: a burst, a reference folder; else empty."""
    problem: str
    """``"missing"`` or ``"changed"`` since the scan; else empty."""
    better: frozenset[str]
    """Fields of which it has the best value of the group: ``pixels``, ``size``, ``taken``, ``companions``."""
    alignment: Alignment | None
    """With the first photo of the group, if they were aligned."""
    region: tuple[float, float, float, float] | None
    """What differs from that photo: left, top, width and height as shares of its own sides."""


@dataclass(frozen=True, kw_only=True)
class GroupView:
    """One group."""

    id: int
    tier: str
    state: str
    """A key of :data:`STATE_NAMES`."""
    spare_bytes: int
    copies: int
    """Photos besides the first one that are copies of it or of another one."""
    min_similarity: float
    keep: int
    """Position of the photo that stays, by the choice or by the suggestion."""
    reason: str
    """Why the first photo is suggested."""
    warnings: tuple[str, ...]
    members: tuple[MemberView, ...]


def group_view(found: FoundGroup, *, problem_of: Callable[[Member], str] | None = None) -> GroupView:
    """Describe a group. With ``problem_of`` its files are looked at; without it no file is touched."""
    group = found.group
    keep, moving = 0, set(suggestion(group))
    if found.state not in (OPEN, SKIP):
        places = {os.path.abspath(member.path): place for place, member in enumerate(group.members)}
        moving = {places[photo.path] for photo in found.chosen if photo.moves}
        keep = places[found.chosen[0].path] if found.state == KEEP or moving else 0
    beside = (
        companions(member.path for member in group.members if member.in_library is None)
        if problem_of is not None
        else {}
    )
    along = [
        member.in_library.companions if member.in_library is not None else beside.get(member.path, ())
        for member in group.members
    ]
    best = _best(group.members, list(map(len, along)))
    return GroupView(
        id=found.id,
        tier=group.tier,
        state=found.state,
        spare_bytes=found.spare_bytes,
        copies=group.copies,
        min_similarity=group.min_similarity,
        keep=keep,
        reason=printable(group.reason),
        warnings=group.warnings,
        members=tuple(
            MemberView(
                place=place,
                sha256=member.sha256,
                path=printable(member.label),
                name=printable(os.path.basename(member.label)),
                folder=printable(os.path.join(os.path.dirname(member.label), "")),
                preferred=_preferred(member),
                width=member.width,
                height=member.height,
                size_bytes=member.size_bytes,
                format=suffix_of(member.path)[1:].upper(),
                taken=printable(member.metadata.taken.replace("T", " ")),
                camera=printable(member.camera),
                companions=tuple(f"{one.kind}: {printable(os.path.basename(one.path))}" for one in along[place]),
                relation=in_words(member, group.members[0]) if place else "",
                evidence=tuple(map(printable, filter(None, member.why.split("; ")))),
                tier=member.tier,
                moves=place in moving,
                stays_why=_why_it_stays(member) if place else "",
                problem=problem_of(member) if problem_of is not None else "",
                alignment=member.alignment,
                region=region_on(member, group.members[0]),
                better=frozenset(field for field, places in best.items() if place in places),
            )
            for place, member in enumerate(group.members)
        ),
    )


def _preferred(member: Member) -> str:
    folder = member.in_library.library if member.in_library is not None else os.path.dirname(member.path)
    folder = os.path.join(folder, "")
    return folder if printable(folder) == folder else ""


def _why_it_stays(member: Member) -> str:
    if member.is_reference:
        return "in a reference folder"
    if member.in_library is not None:
        return "in an Apple Photos library"
    return "" if member.is_copy else member.moment


def _best(members: Sequence[Member], companions_of: Sequence[int]) -> dict[str, frozenset[int]]:
    """Return field -> the positions of the members with its best value, if there is a worse one."""
    values: dict[str, list[float | str]] = {
        "pixels": [member.width * member.height for member in members],
        "size": [member.size_bytes for member in members],
        "taken": [bool(member.metadata.taken) for member in members],
        "companions": list(companions_of),
    }
    return {
        field: frozenset(place for place, value in enumerate(of_each) if value == max(of_each))
        for field, of_each in values.items()
        if len(set(of_each)) > 1
    }
