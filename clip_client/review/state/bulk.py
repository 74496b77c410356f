"""Choices for many groups at once, by keep rules: what ``dedup --keep`` would keep, without another search.

In groups that no person looked at, only what ``dedup --apply`` moves by default moves.
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
"""What a choice says of its rules, if they were those of the search."""
_SLICE_S: Final = 0.3
"""How long one call counts: what a person may wait for a first figure."""


@dataclass
class BulkCount:
    """What rules would choose, as far as groups have been counted."""

    after: int = 0
    """Number of the last group that has been counted."""
    groups: int = 0
    """Groups of which at least one photo would move."""
    photos: int = 0
    """Photos that would move."""
    size_bytes: int = 0
    changed: int = 0
    """Groups of which another photo stays than the search suggests."""
    left: int = 0
    """Groups that stay open, because none of their photos would move."""


@dataclass(frozen=True)
class Bulk:
    """Chooses for all ``wanted`` groups by the rules ``names``, or those of the search without any.

    Open groups are meant unless a state is wanted.
    """

    session: Session
    wanted: Filter
    names: Sequence[str]

    def count(self, count: BulkCount) -> bool:
        """Add what the next groups would be to ``count``, for 0.3 s; return whether there may be more groups.

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
        """Choose as one step. Raises CannotChoose."""
        rules = self._checked()
        choices = []
        # All of them before the first one is recorded, because other pages wait while the store is written.
        for found in self.session.groups.each(self.filter):
            if found.state != APPLIED:
                group = self._by_rules(found, rules)
                if moving := self._moving(group):
                    choices.append((KEEP, chosen_photos(group, moving)))
        self.session.stage(choices, rules=", ".join(self.names or [SUGGESTION]))

    @property
    def filter(self) -> Filter:
        """Which groups are meant."""
        return replace(self.wanted, state=self.wanted.state or OPEN)

    def _checked(self) -> KeepRules | None:
        """Return the rules, None for those of the search."""
        if self.wanted.state == APPLIED:
            raise CannotChoose("these decisions have been applied; to choose again, take their run back in the history")
        try:
            return KeepRules(self.names) if self.names else None
        except ValueError as error:
            raise CannotChoose(str(error)) from None

    def _by_rules(self, found: FoundGroup, rules: KeepRules | None) -> DuplicateGroup:
        """Return the group as the rules have it; the verdicts of the search hold if the same photo stays."""
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
