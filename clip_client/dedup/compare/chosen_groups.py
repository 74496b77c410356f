"""Groups as a person wants them: around the photo that stays, with the paths of those that move."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from clip_client.dedup.compare.reranking import keep_instead
from clip_client.dedup.store.choices import KEEP

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


def chosen_groups(report: DuplicateReport, choices: Iterable[Choice]) -> tuple[DuplicateReport, dict[str, Choice]]:
    """Return the groups of a report that :data:`KEEP` choices are about, and path -> its choice for what moves.

    ``choices`` are in the order in which they were made: the last one about any photo of a group is the one that holds.
    """
    last = {photo.path: choice for choice in choices for photo in choice.photos}
    groups: list[DuplicateGroup] = []
    moving: dict[str, Choice] = {}
    for group in report.groups:
        about = [choice for member in group.members if (choice := last.get(os.path.abspath(member.path)))]
        choice = max(about, key=lambda one: one.id, default=None)
        if choice is not None and choice.what == KEEP and (chosen := choose(group, choice.photos)):
            groups.append(chosen[0])
            moving.update(dict.fromkeys(chosen[1], choice))
    return replace(report, groups=tuple(groups)), moving
