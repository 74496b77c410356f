"""The groups of one search, each with the last choice about it; the store keeps the choices."""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from clip_client._files import printable
from clip_client.dedup.group import DuplicateGroup
from clip_client.dedup.photo import Photo
from clip_client.dedup.report import DuplicateReport, count_verdicts
from clip_client.dedup.store.choices import KEEP, OPEN, SKIP, UNDONE, WAITING, Choice
from clip_client.dedup.store.decisions import DIFFERENT, KEEP_ALL
from clip_client.dedup.types import BY_DEFAULT, NEVER, ON_REQUEST, TIERS

APPLIED: Final = "applied"
"""State of a group whose choice has been carried out. The other states are the choices, and ``open``."""
STAGED: Final = "staged"
STAGED_STATES: Final = (KEEP, DIFFERENT, KEEP_ALL)
"""States of groups whose choices can be carried out. A skipped group has nothing to carry out."""

NO_CHOICE: Final = Choice(0, 0, OPEN, 0, "", "", WAITING, ())


class FoundGroup(NamedTuple):
    id: int
    group: DuplicateGroup
    tier: str
    text: str
    """Paths of the members for a search in them: printable, case-folded."""
    state: str = OPEN
    choice: Choice = NO_CHOICE
    moved: Collection[str] = ()
    is_undone: bool = False
    """True if the group is open because its last choice was taken back after it had been carried out."""

    @property
    def keep_and_moving(self) -> tuple[int, set[int]]:
        """Positions of the photo that stays and of the photos that move: by the choice, else as for ``--apply``."""
        members = self.group.members
        if self.state in (OPEN, SKIP):
            return 0, {place for place, member in enumerate(members) if member.verdict.moves == BY_DEFAULT}
        places = {os.path.abspath(member.path): place for place, member in enumerate(members)}
        kept, moving = self.choice.photos[0], {places[photo.path] for photo in self.choice.photos if photo.moves}
        return places[kept.path] if self.choice.what == KEEP else 0, moving

    @property
    def leaving(self) -> list[int]:
        """Positions of the photos that leave their places when the choice is applied, or that have left them."""
        (keep, moving), members = self.keep_and_moving, self.group.members
        if self.state == APPLIED:
            paths = ((place, os.path.abspath(members[place].path)) for place in sorted(moving))
            # A person may have put a file back that the choice moved.
            return [place for place, path in paths if path in self.moved and not os.path.lexists(path)]
        # If another photo stays, only the plan can tell what moves, so count all.
        return [place for place in sorted(moving) if keep or members[place].verdict.moves != NEVER]

    @property
    def leaving_photos(self) -> list[Photo]:
        return [self.group.members[place].photo for place in self.leaving]

    @property
    def leaving_tier(self) -> str:
        keep, members = self.keep_and_moving[0], self.group.members
        tiers = (members[place or keep].verdict.tier or members[place or keep].tier for place in self.leaving)
        return max(tiers, key=TIERS.index, default=self.tier)

    def shown(self, most: int) -> list[int]:
        return sorted({*range(min(most, len(self.group.members))), self.keep_and_moving[0]})

    def after(self, last: Choice | None, moved: Collection[str]) -> FoundGroup:
        if last is None or last.what == OPEN or last.state == UNDONE:
            is_undone = last is not None and last.state == UNDONE
            return self._replace(state=OPEN, choice=NO_CHOICE, moved=(), is_undone=is_undone)
        state = last.what if last.state == WAITING else APPLIED
        return self._replace(state=state, choice=last, moved=moved, is_undone=False)


@dataclass(frozen=True, kw_only=True)
class Filter:
    tier: str = ""
    holds: str = ""
    """Tier of a copy in the group that moves on request."""
    state: str = ""
    text: str = ""

    def has(self, tier: str, state: str) -> bool:
        states = STAGED_STATES if self.state == STAGED else (self.state or state,)
        return self.tier in ("", tier) and state in states

    def fits(self, found: FoundGroup) -> bool:
        if not self.has(found.tier, found.state) or self.text.casefold() not in found.text:
            return False
        verdicts = (member.verdict for member in found.group.members)
        return not self.holds or any(one.tier == self.holds and one.moves == ON_REQUEST for one in verdicts)


class GroupTotal(NamedTuple):
    tier: str
    state: str
    groups: int
    leaving_bytes: int
    """Size of the photos that leave their places if all choices and suggestions are applied; 0 for ``applied``."""


class FoundGroups:
    """The groups of one search, and the absolute paths of their photos, for ``in``. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._found: list[FoundGroup] = []
        self._group_and_content: dict[str, tuple[int, str]] = {}
        self._paths: defaultdict[str, list[str]] = defaultdict(list)
        self._choices: defaultdict[int, dict[int, Choice]] = defaultdict(dict)
        """Number of a group -> id of a choice -> the choice, oldest first."""
        self._moved: Mapping[int, Collection[str]] = {}
        self._groups: Counter[tuple[str, str]] = Counter()
        self._leaving_bytes: Counter[tuple[str, str]] = Counter()
        """(tier, state) -> number and size, kept up to date: counting 100,000 groups for each page takes 50 ms."""
        self._open: Counter[tuple[str, str]] = Counter()

    def fill(self, report: DuplicateReport) -> None:
        groups = sorted(report.groups_by_space, key=lambda group: TIERS.index(group.moving_tier))
        for number, group in enumerate(groups, start=1):
            text = "\n".join(printable(member.photo.label) for member in group.members).casefold()
            self._found.append(FoundGroup(number, group, group.moving_tier, text))
            self._count(self._found[-1], 1)
            for member in group.members:
                self._group_and_content[os.path.abspath(member.path)] = number, member.sha256
                self._paths[member.sha256].append(member.path)

    def totals(self) -> list[GroupTotal]:
        with self._lock:
            totals = [GroupTotal(*of, groups, self._leaving_bytes[of]) for of, groups in self._groups.items() if groups]
        return sorted(totals, key=lambda total: (TIERS.index(total.tier), total.state))

    def undecided(self) -> tuple[Counter[tuple[str, str]], int]:
        with self._lock:
            sizes = (size_bytes for (_, state), size_bytes in self._leaving_bytes.items() if state == OPEN)
            return +self._open, sum(sizes)

    def each(self, wanted: Filter, *, after: int = 0) -> Iterator[FoundGroup]:
        """Yield the wanted groups numbered above ``after``. Each fits when it comes: groups may change meanwhile."""
        groups = self._found[after:] if after else self._found
        return filter(wanted.fits, groups) if wanted != Filter() else iter(groups)

    def count(self, wanted: Filter) -> int:
        if wanted.text or wanted.holds:
            return sum(1 for _ in self.each(wanted))
        return sum(one.groups for one in self.totals() if wanted.has(one.tier, one.state))

    def get(self, number: int) -> FoundGroup | None:
        return self._found[number - 1] if 0 < number <= len(self._found) else None

    def neighbours(self, number: int, wanted: Filter) -> tuple[FoundGroup | None, FoundGroup | None]:
        before = filter(wanted.fits, reversed(self._found[: number - 1]))
        return next(before, None), next(self.each(wanted, after=number), None)

    def paths(self, sha256: str) -> list[str]:
        return self._paths.get(sha256, [])

    def __contains__(self, path: object) -> bool:
        return path in self._group_and_content

    def group_of(self, path: str) -> int | None:
        return self._group_and_content.get(os.path.abspath(path), (None, ""))[0]

    def match(self, choices: Iterable[Choice], moved: Mapping[int, Collection[str]]) -> None:
        with self._lock:
            self._moved = moved
            before = set(self._choices)
            self._choices.clear()
            self._update(before)
            self.add(choices)

    def add(self, choices: Iterable[Choice]) -> None:
        self._change(choices, lambda known, choice: known.update({choice.id: choice}))

    def forget(self, choices: Iterable[Choice]) -> None:
        self._change(choices, lambda known, choice: known.pop(choice.id, None))

    def _change(self, choices: Iterable[Choice], act: Callable[[dict[int, Choice], Choice], object]) -> None:
        with self._lock:
            about = [(number, choice) for choice in choices if (number := self._group_about(choice))]
            for number, choice in about:
                act(self._choices[number], choice)
            self._update({number for number, _ in about})

    def superseded(self, number: int) -> list[Choice]:
        with self._lock:
            return list(self._choices[number].values())[:-1]

    def last_step(self) -> list[Choice]:
        with self._lock:
            waiting = [one for about in self._choices.values() for one in about.values() if one.state == WAITING]
        last = max((choice.step for choice in waiting), default=0)
        return [choice for choice in waiting if choice.step == last]

    def _group_about(self, choice: Choice) -> int | None:
        """Return the group that has all photos of a choice. Only :data:`KEEP` fits a group with further photos, which
        the person had not seen."""
        numbers = set[int]()
        for photo in choice.photos:
            number, sha256 = self._group_and_content.get(photo.path, (0, ""))
            numbers.add(number if sha256 == photo.sha256 else 0)
        if len(numbers) != 1 or not (found := self.get(*numbers)):
            return None
        return found.id if choice.what == KEEP or len(choice.photos) == len(found.group.members) else None

    def _update(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            last = next(reversed(self._choices[number].values()), None)
            self._count(self._found[number - 1], -1)
            moved = () if last is None else self._moved.get(last.id, ())
            self._found[number - 1] = self._found[number - 1].after(last, moved)
            self._count(self._found[number - 1], 1)

    def _count(self, found: FoundGroup, groups: int) -> None:
        of = found.tier, found.state
        self._groups[of] += groups
        if found.state != APPLIED:
            self._leaving_bytes[of] += groups * sum(photo.spare_bytes for photo in found.leaving_photos)
        if found.state == OPEN:
            for verdict, photos in count_verdicts([found.group]).items():
                self._open[verdict] += groups * photos
