"""Choices for many groups at once, by keep rules: what ``dedup --keep`` would keep, without another search."""

from __future__ import annotations

import marshal
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from clip_client.dedup.actions.plan import PROVED_TIERS, check_tiers
from clip_client.dedup.compare.chosen_groups import reorder, rerank
from clip_client.dedup.compare.keep_rules import Candidate, KeepRules, Standings
from clip_client.dedup.store.choices import KEEP, OPEN
from clip_client.dedup.types import ALTERED, NEAR_IDENTICAL, is_random
from clip_client.review.state.choosing import chosen_photos, suggestion
from clip_client.review.state.found_groups import APPLIED
from clip_client.review.state.refusal import CannotChoose

if TYPE_CHECKING:
    from clip_client.dedup.types import DuplicateGroup
    from clip_client.review.state.found_groups import Filter
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
    """Photos that would move, if the plan finds nothing that their files would lose."""
    size_bytes: int = 0
    changed: int = 0
    """Groups of which another photo stays than the search suggests."""
    left: int = 0
    """Groups that stay open: none of their photos is a proven copy of the one that stays."""
    unproven: int = 0
    """Groups that are left out: only vectors say that they are alike, and the weights of the model are random."""
    total: int = 0
    """All wanted groups."""

    @property
    def counted(self) -> int:
        """Groups that have been looked at."""
        return self.groups + self.left + self.unproven


class Bulk:
    """Chooses by rules. Threads may share it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._counts: OrderedDict[object, tuple[BulkCount, Iterator[None]]] = OrderedDict()
        """Filter, rules and version of the choices -> the count so far, and what goes on with it."""

    def count(self, wanted: Filter, rules: Sequence[str]) -> BulkCount:
        """Return what :meth:`choose` would choose, as far as it is known after 0.3 s; another call goes on from there.

        Raises CannotChoose.
        """
        wanted = _open_unless_named(wanted)
        key = (wanted, tuple(rules), self._session.choices_version)
        with self._lock:
            if key not in self._counts:
                checked = self._checked(wanted, rules)
                count = BulkCount(total=self._session.groups.count(wanted))
                self._counts[key] = count, self._counting(count, wanted, *checked)
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
        self, count: BulkCount, wanted: Filter, rules: KeepRules | None, unproven: frozenset[str]
    ) -> Iterator[None]:
        """Count group after group. With the photo that the search keeps, a group moves what its summary says."""
        groups = self._session.groups
        for number, tier, data in groups.summaries(wanted, _summary):
            if tier in unproven:
                count.unproven += 1
                yield
                continue
            photos, size_bytes, *standings = marshal.loads(data)  # this process wrote it
            best_first = rules.order(Standings(*standings)) if rules is not None else [0]
            is_changed = best_first[0] != 0
            if is_changed:
                photos, size_bytes = _moving(reorder(groups.content(number), best_first))
            count.groups += bool(photos)
            count.left += not photos
            count.photos += photos
            count.size_bytes += size_bytes
            count.changed += bool(photos) and is_changed
            yield

    def choose(self, wanted: Filter, names: Sequence[str]) -> int:
        """Choose for all wanted groups as one step, and return their number. Raises CannotChoose."""
        wanted = _open_unless_named(wanted)
        rules, unproven = self._checked(wanted, names)
        choices = []
        # All of them before the first one is recorded, because other pages wait while the store is written.
        for found in self._session.groups.each(wanted):
            if found.state != APPLIED and found.group.tier not in unproven:
                group = rerank(found.group, rules) if rules is not None else found.group
                if moving := _proven(group):
                    choices.append((KEEP, chosen_photos(group, moving)))
        return self._session.stage(choices, rules=", ".join(names) or SUGGESTION)

    def _checked(self, wanted: Filter, names: Sequence[str]) -> tuple[KeepRules | None, frozenset[str]]:
        """Return the rules, None for those of the search, and the tiers whose groups are left out."""
        report = self._session.report
        assert report is not None, "there are no groups before the search has ended"
        if wanted.state == APPLIED:
            raise CannotChoose("these decisions have been applied; to choose again, take their run back in the history")
        try:
            rules = KeepRules(names) if names else None
            check_tiers([wanted.tier] if wanted.tier else [], report.model)
        except ValueError as error:
            raise CannotChoose(str(error)) from None
        tiers = {total.tier for total in self._session.groups.totals()}
        return rules, frozenset(tiers - {*PROVED_TIERS, ALTERED}) if is_random(report.model) else frozenset()


def _open_unless_named(wanted: Filter) -> Filter:
    return replace(wanted, state=wanted.state or OPEN)


def _summary(group: DuplicateGroup) -> bytes:
    """Return what a count needs of a group: what would move without rules, and how rules rank its photos."""
    return marshal.dumps((*_moving(group), *Standings.of(list(map(Candidate.of, group.members)))))


def _moving(group: DuplicateGroup) -> tuple[int, int]:
    """Return the number and size of the photos that would move."""
    sizes = [group.members[place].size_bytes for place in _proven(group)]
    return len(sizes), sum(sizes)


def _proven(group: DuplicateGroup) -> frozenset[int]:
    """Return which photos would move: those that passed a test against a photo that stays."""
    return frozenset(
        place
        for place in suggestion(group)
        if group.members[place].matches or group.members[place].copy_of or group.tier == NEAR_IDENTICAL
    )
