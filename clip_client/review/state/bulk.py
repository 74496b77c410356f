"""Choices for many groups at once, by keep rules: what ``dedup --keep`` would keep, without another search."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from clip_client.dedup.actions.verdicts import check_tiers
from clip_client.dedup.compare.chosen_groups import chosen_photos, rerank
from clip_client.dedup.compare.keep_rules import KeepRules
from clip_client.dedup.store.choices import ACT_ON, KEEP, OPEN
from clip_client.dedup.types import SAFE_TIERS
from clip_client.review.state.found_groups import APPLIED
from clip_client.review.state.session import CannotChoose

if TYPE_CHECKING:
    from clip_client.dedup.group import DuplicateGroup
    from clip_client.review.state.found_groups import Filter, FoundGroup
    from clip_client.review.state.session import Session

SUGGESTION: Final = "suggestion"
"""What a choice says of its rules, if they were those of the search."""
_SLICE_S: Final = 0.3
"""How long one call counts: what a person may wait for a first figure."""
_MOST_COUNTS: Final = 8
"""Counts that are kept, so that two pages, or rules that are tried again, do not begin from the first group."""


@dataclass
class BulkCount:
    """What rules would choose."""

    groups: int = 0
    """Groups of which at least one photo would move."""
    photos: int = 0
    """Photos that would move."""
    size_bytes: int = 0
    changed: int = 0
    """Groups of which another photo stays than the search suggests."""
    left: int = 0
    """Groups that stay open, because none of their photos would move."""
    total: int = 0
    """All wanted groups."""

    @property
    def counted(self) -> int:
        """Groups that have been looked at."""
        return self.groups + self.left


class Bulk:
    """Chooses by rules. Threads may share it.

    In groups that no person looked at, only the tiers move that ``dedup --apply`` moves by default, and those that a
    person adds.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._counts: OrderedDict[object, tuple[BulkCount, Iterator[None]]] = OrderedDict()
        """Filter, rules, tiers and version of the choices -> the count so far, and what goes on with it."""

    def count(self, wanted: Filter, rules: Sequence[str], also: Sequence[str] = ()) -> BulkCount:
        """Return what :meth:`choose` would choose, as far as it is known after 0.3 s; another call goes on from there.

        Raises CannotChoose.
        """
        wanted = _open_unless_named(wanted)
        key = (wanted, tuple(rules), tuple(also), self._session.choices_version)
        with self._lock:
            if key not in self._counts:
                checked = self._checked(wanted, rules, also)
                count = BulkCount(total=self._session.groups.count(wanted))
                self._counts[key] = count, self._counting(count, wanted, checked, also)
            self._counts.move_to_end(key)
            if len(self._counts) > _MOST_COUNTS:
                self._counts.popitem(last=False)
            count, going_on = self._counts[key]
            until = time.monotonic() + _SLICE_S
            for _ in going_on:
                if time.monotonic() > until:
                    break
            else:
                count.total = count.counted
            return replace(count)

    def _counting(
        self, count: BulkCount, wanted: Filter, rules: KeepRules | None, also: Sequence[str]
    ) -> Iterator[None]:
        for found in self._session.groups.each(wanted):
            group = self._by_rules(found, rules)
            sizes = [group.members[place].photo.size_bytes for place in _moving(group, also)]
            count.groups += bool(sizes)
            count.left += not sizes
            count.photos += len(sizes)
            count.size_bytes += sum(sizes)
            count.changed += bool(sizes) and group.keep != found.group.keep
            yield

    def choose(self, wanted: Filter, names: Sequence[str], also: Sequence[str] = ()) -> int:
        """Choose for all wanted groups as one step, and return their number; ``also`` are tiers that move, too.

        Raises CannotChoose.
        """
        wanted = _open_unless_named(wanted)
        rules = self._checked(wanted, names, also)
        choices = []
        # All of them before the first one is recorded, because other pages wait while the store is written.
        for found in self._session.groups.each(wanted):
            if found.state != APPLIED:
                group = self._by_rules(found, rules)
                if moving := _moving(group, also):
                    choices.append((KEEP, chosen_photos(group, moving)))
        said = ", ".join([*(names or [SUGGESTION]), *(f"{ACT_ON}{tier}" for tier in also)])
        return self._session.stage(choices, rules=said)

    def _by_rules(self, found: FoundGroup, rules: KeepRules | None) -> DuplicateGroup:
        """Return the group as the rules have it; the verdicts of the search hold if the same photo stays."""
        if rules is None:
            return found.group
        group = rerank(found.group, rules)
        return group if group.keep == found.group.keep else self._session.judged(group, looks_again=False).groups[0]

    def _checked(self, wanted: Filter, names: Sequence[str], also: Sequence[str]) -> KeepRules | None:
        """Return the rules, None for those of the search."""
        report = self._session.report
        assert report is not None, "there are no groups before the search has ended"
        if wanted.state == APPLIED:
            raise CannotChoose("these decisions have been applied; to choose again, take their run back in the history")
        try:
            check_tiers(also, report.model)
            return KeepRules(names) if names else None
        except ValueError as error:
            raise CannotChoose(str(error)) from None


def _moving(group: DuplicateGroup, also: Sequence[str]) -> frozenset[int]:
    """Return the positions of the photos that rules move: never those in a library of Apple Photos."""
    tiers = (*SAFE_TIERS, *also)
    members = enumerate(group.members)
    return frozenset(place for place, one in members if one.verdict.moves_with(tiers) and one.photo.in_library is None)


def _open_unless_named(wanted: Filter) -> Filter:
    return replace(wanted, state=wanted.state or OPEN)
