"""Choices for many groups by keep rules. Nobody has looked at these, so only what moves by default moves."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from clip_client.dedup.compare.chosen_groups import chosen_photos, rerank
from clip_client.dedup.compare.keep_rules import KeepRules
from clip_client.dedup.group import DuplicateGroup
from clip_client.dedup.store.choices import KEEP, OPEN
from clip_client.dedup.types import BY_DEFAULT
from clip_client.review.state.found_groups import APPLIED, Filter, FoundGroup
from clip_client.review.state.session import CannotChoose, Session

_SLICE_S: Final = 0.3
"""Time for which one call counts: a person may wait this long for a first figure."""


@dataclass
class BulkCount:
    after: int = 0
    groups: int = 0
    photos: int = 0
    size_bytes: int = 0
    changed: int = 0
    """Groups in which another photo stays than the search suggests."""
    left: int = 0
    """Groups that stay open, because none of their photos would move."""


def open_by_default(wanted: Filter) -> Filter:
    return replace(wanted, state=wanted.state or OPEN)


def count_by_rules(session: Session, wanted: Filter, names: Sequence[str], count: BulkCount) -> bool:
    until = time.monotonic() + _SLICE_S
    for found, group, moving in _by_rules(session, wanted, names, after=count.after):
        count.after = found.id
        count.groups += bool(moving)
        count.left += not moving
        count.photos += len(moving)
        count.size_bytes += sum(group.members[place].photo.size_bytes for place in moving)
        count.changed += bool(moving) and group.keep != found.group.keep
        if time.monotonic() > until:
            return True
    return False


def choose_by_rules(session: Session, wanted: Filter, names: Sequence[str]) -> None:
    # Make all choices before any is recorded, because other pages wait while the store is written.
    choices = [
        (KEEP, chosen_photos(group, moving))
        for found, group, moving in _by_rules(session, wanted, names)
        if moving and found.state != APPLIED
    ]
    session.stage(choices, rules=", ".join(names or ["suggestion"]))


def _by_rules(
    session: Session, wanted: Filter, names: Sequence[str], *, after: int = 0
) -> Iterator[tuple[FoundGroup, DuplicateGroup, frozenset[int]]]:
    if wanted.state == APPLIED:
        raise CannotChoose("these decisions have been applied; to choose again, undo their run in the history")
    try:
        rules = KeepRules(names) if names else None
    except ValueError as error:
        raise CannotChoose(str(error)) from None
    for found in session.groups.each(open_by_default(wanted), after=after):
        group = found.group if rules is None else rerank(found.group, rules)
        if group.keep != found.group.keep:
            (group,) = session.with_verdicts(group, looks_again=False).groups
        can_move = (one.verdict.moves == BY_DEFAULT and one.photo.in_library is None for one in group.members)
        yield found, group, frozenset(itertools.compress(itertools.count(), can_move))
