"""Groups as a person wants them: around the photo that stays, with the paths of those that move."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clip_client.dedup.compare.reranking import keep_instead
from clip_client.dedup.store.choices import KEEP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clip_client.dedup.report import DuplicateReport
    from clip_client.dedup.store.choices import Choice, ChosenPhoto
    from clip_client.dedup.types import DuplicateGroup


def choose(group: DuplicateGroup, photos: Sequence[ChosenPhoto]) -> tuple[DuplicateGroup, frozenset[str]] | None:
    """Return the group around the first of ``photos``, and the paths of its members that move.

    None if one of ``photos`` is no member, or is another content than a person saw.
    """
    members = {(os.path.abspath(member.path), member.sha256): member.path for member in group.members}
    if any((photo.path, photo.sha256) not in members for photo in photos):
        return None
    moving = frozenset(members[photo.path, photo.sha256] for photo in photos if photo.moves)
    return keep_instead(group, members[photos[0].path, photos[0].sha256]), moving


@dataclass(frozen=True, kw_only=True)
class ChosenGroups:
    """What the :data:`KEEP` choices make of a report."""

    report: DuplicateReport
    """Only the groups that the choices are about, around the photos that stay."""
    moving: Mapping[str, Choice]
    """Path in the report -> the choice that moves this photo."""
    staying: Mapping[str, str]
    """Absolute path of a photo that was chosen to move -> why the report does not let it; one sentence for people."""


def chosen_groups(report: DuplicateReport, choices: Iterable[Choice]) -> ChosenGroups:
    """Return the groups of a report that :data:`KEEP` choices are about, and what moves and stays.

    ``choices`` are in the order in which they were made: the last one about any photo of a group is the one that holds.
    A choice that a run has carried out says nothing about what stays.
    """
    last = {photo.path: choice for choice in choices for photo in choice.photos}
    groups: list[DuplicateGroup] = []
    moving: dict[str, Choice] = {}
    replaced: set[str] = set()
    for group in report.groups:
        about = {path: choice for member in group.members if (choice := last.get(path := os.path.abspath(member.path)))}
        choice = max(about.values(), key=lambda one: one.id, default=None)
        replaced.update(path for path, earlier in about.items() if earlier is not choice)
        if choice is not None and choice.what == KEEP and (chosen := choose(group, choice.photos)):
            groups.append(chosen[0])
            moving.update(dict.fromkeys(chosen[1], choice))
    moved = set(map(os.path.abspath, moving))
    staying = {
        photo.path: "A later choice about its group holds."
        if photo.path in replaced
        else f"The search does not find it in one group with {choice.photos[0].path}, or a chosen photo has changed."
        for choice in {one.id: one for one in last.values() if one.what == KEEP and not one.run}.values()
        for photo in choice.photos
        if photo.moves and last[photo.path] is choice and photo.path not in moved
    }
    return ChosenGroups(report=replace(report, groups=tuple(groups)), moving=moving, staying=staying)
