"""Choices in terms of a group: which of its members move."""

from __future__ import annotations

import os
from collections.abc import Container
from typing import TYPE_CHECKING

from clip_client.dedup.store.choices import ChosenPhoto

if TYPE_CHECKING:
    from clip_client.dedup.group import DuplicateGroup


def chosen_photos(group: DuplicateGroup, moving: Container[int], *, keep: int = 0) -> list[ChosenPhoto]:
    """Return the members as a choice holds them, the one that stays first; ``moving`` are positions."""
    order = [keep, *(place for place in range(len(group.members)) if place != keep)]
    members = [(place, group.members[place]) for place in order]
    return [ChosenPhoto(os.path.abspath(member.path), member.sha256, place in moving) for place, member in members]
