"""Choices for many groups at once, by keep rules: the same as those of ``dedup --keep``, without another search.

A person has not looked at these groups, so only photos move that ``dedup --apply`` moves by default.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from clip_client.dedup.compare.chosen_groups import chosen_photos, rerank
from clip_client.dedup.compare.keep_rules import KeepRules
from clip_client.dedup.store.choices import KEEP, OPEN
from clip_client.dedup.types import BY_DEFAULT
from clip_client.review.state.found_groups import APPLIED
from clip_client.review.state.session import CannotChoose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clip_client.dedup.group import DuplicateGroup
    from clip_client.review.state.found_groups import Filter, FoundGroup
    from clip_client.review.state.session import Session

SUGGESTION: Final = "suggestion"
"""Name, in a choice, of the rules of the search."""
_SLICE_S: Final = 0.3
"""Time for which one call counts: a person may wait this long for a first figure."""


@dataclass
class BulkCount:
    """Numbers of groups and photos that rules would choose, as far as groups have been counted."""

    after: int = 0
    """Number of the last group that has been counted."""
    groups: int = 0
    """Groups with at least one photo that would move."""
    photos: int = 0
    """Photos that would move."""
    size_bytes: int = 0
    changed: int = 0
    """Groups in which another photo stays than the search suggests."""
    left: int = 0
    """Groups that stay open, because none of their photos would move."""


@dataclass(frozen=True)
class Bulk:
    """Chooses for all ``wanted`` groups by the rules ``names``; without names, by the rules of the search.

    If ``wanted`` has no state, it means open groups.
    """

    session: Session
    wanted: Filter
    names: Sequence[str]

    def count(self, count: BulkCount) -> bool:
        """Add the next groups to ``count`` for 0.3 s; return whether there may be more groups.

        Raises CannotChoose.
        """
        rules, until = self._checked(), time.monotonic() + _SLICE_S
        for found in self.session.groups.each(self.filter, after=count.after):
            group = self._by_rules(found, rules)
            sizes = [group.members[place].photo.size_bytes for place in self._moving(group)]
            count.after = found.id
            count.groups += bool(sizes)
            count.left += not sizes
            count.photos += len(sizes)
            count.size_bytes += sum(sizes)
            count.changed += bool(sizes) and group.keep != found.group.keep
            if time.monotonic() > until:
                return True
        return False

    def choose(self) -> None:
        """Record the choices as one step. Raises CannotChoose."""
        rules = self._checked()
        choices = []
        # Make all choices before any is recorded, because other pages wait while the store is written.
        for found in self.session.groups.each(self.filter):
            if found.state != APPLIED:
                group = self._by_rules(found, rules)
                if moving := self._moving(group):
                    choices.append((KEEP, chosen_photos(group, moving)))
        self.session.stage(choices, rules=", ".join(self.names or [SUGGESTION]))

    @property
    def filter(self) -> Filter:
        """The groups to choose for."""
        return replace(self.wanted, state=self.wanted.state or OPEN)

    def _checked(self) -> KeepRules | None:
        """Return the rules; None for the rules of the search. Raises CannotChoose."""
        if self.wanted.state == APPLIED:
            raise CannotChoose("these decisions have been applied; to choose again, take their run back in the history")
        try:
            return KeepRules(self.names) if self.names else None
        except ValueError as error:
            raise CannotChoose(str(error)) from None

    def _by_rules(self, found: FoundGroup, rules: KeepRules | None) -> DuplicateGroup:
        """Return the group in the order of the rules. If the same photo stays, the search's verdicts hold."""
        if rules is None:
            return found.group
        group = rerank(found.group, rules)
        return (
            group if group.keep == found.group.keep else self.session.with_verdicts(group, looks_again=False).groups[0]
        )

    def _moving(self, group: DuplicateGroup) -> frozenset[int]:
        """Return the positions of the photos that rules move: never those in a library of Apple Photos."""
        members = enumerate(group.members)
        return frozenset(
            place for place, one in members if one.verdict.moves == BY_DEFAULT and one.photo.in_library is None
        )
