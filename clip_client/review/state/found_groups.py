"""The groups of one search, and what was chosen about each.

What must outlive the process, the choices of a person, is in the store. Here is only which group each is about.
"""

from __future__ import annotations

import os
import pickle
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from clip_client.dedup.store.choices import KEEP, OPEN, UNDONE, WAITING, Choice
from clip_client.dedup.store.decisions import DIFFERENT, KEEP_ALL
from clip_client.dedup.text import printable
from clip_client.dedup.types import TIERS
from clip_client.review.state.private_database import PrivateDatabase

if TYPE_CHECKING:
    from clip_client.dedup.group import DuplicateGroup
    from clip_client.dedup.report import DuplicateReport
    from clip_client.dedup.store.choices import ChosenPhoto

APPLIED: Final = "applied"
"""State of a group whose choice has been carried out. The other states are what was chosen, and ``open``."""
STAGED: Final = "staged"
"""For :class:`Filter`: all of :data:`STAGED_STATES`."""
STAGED_STATES: Final = (KEEP, DIFFERENT, KEEP_ALL)
"""States of groups whose choices can be carried out. To skip a group changes nothing."""

_SCHEMA: Final = """
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, tier TEXT NOT NULL, state TEXT NOT NULL, choice INTEGER NOT NULL DEFAULT 0,
    spare_bytes INTEGER NOT NULL, text TEXT NOT NULL);
CREATE TABLE contents (id INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE members (path BLOB PRIMARY KEY, sha256 TEXT NOT NULL, group_id INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE choices (
    id INTEGER PRIMARY KEY, step INTEGER NOT NULL, group_id INTEGER NOT NULL, what TEXT NOT NULL, rules TEXT NOT NULL,
    state TEXT NOT NULL, photos BLOB NOT NULL);
CREATE INDEX choices_by_group ON choices (group_id);
"""
_INDEXES: Final = (
    "groups_by_tier ON groups (tier)",
    "groups_by_state ON groups (state)",
    "groups_by_both ON groups (tier, state)",
    "groups_for_totals ON groups (tier, state, spare_bytes)",
    "members_by_content ON members (sha256)",
    "members_by_group ON members (group_id)",
)
"""Made after the rows: this takes half the time, and one pass over the disk."""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which groups are wanted; an empty field wants all."""

    tier: str = ""
    state: str = ""
    """``open``, one of the choices, ``staged`` or ``applied``."""
    text: str = ""
    """Part of the path of a member, in upper or lower case."""

    @property
    def states(self) -> tuple[str, ...]:
        """The states that are wanted; empty for all."""
        return STAGED_STATES if self.state == STAGED else tuple(filter(None, (self.state,)))

    @property
    def where(self) -> tuple[str, list[object]]:
        """The condition in SQL, and its values."""
        states = self.states
        wanted: list[tuple[str, tuple[object, ...]]] = [
            ("tier = ?", (self.tier,) if self.tier else ()),
            (f"state IN ({', '.join('?' * len(states))})", states),
            ("instr(text, ?)", (self.text.casefold(),) if self.text else ()),
        ]
        used = [(sql, values) for sql, values in wanted if values]
        return " AND ".join(["1", *(sql for sql, _ in used)]), [value for _, values in used for value in values]


class FoundGroup(NamedTuple):
    """A group of the search, and what was chosen about it."""

    id: int
    """1 is the first group; groups are in the order of certainty, then of the space that they free."""
    state: str
    spare_bytes: int
    group: DuplicateGroup
    chosen: tuple[ChosenPhoto, ...]
    """The photos of the choice that holds; empty while the group is open."""
    choice: int
    """Its id; 0 while the group is open."""
    rules: str
    """The rules that made it; empty if a person looked at the group."""
    is_undone: bool
    """The group is open because its last choice was taken back after it had been carried out."""


class Total(NamedTuple):
    """The groups of one tier in one state."""

    tier: str
    state: str
    groups: int
    spare_bytes: int


class FoundGroups(PrivateDatabase):
    """The groups of one search. Threads may share it."""

    schema = _SCHEMA

    def __init__(self) -> None:
        super().__init__()
        self._totals: list[Total] | None = None
        """Until a state changes: counting 100,000 groups takes 30 ms, and every page shows them."""

    def fill(self, report: DuplicateReport) -> None:
        """Take the groups of a report, the most certain first, then those that free the most space."""
        ordered = sorted(report.groups, key=lambda group: (TIERS.index(group.tier), -group.spare_bytes))
        with self._transaction() as connection:
            connection.executemany(
                "INSERT INTO groups (id, tier, state, spare_bytes, text) VALUES (?, ?, ?, ?, ?)",
                (
                    (number, group.tier, OPEN, group.spare_bytes, _text(group))
                    for number, group in enumerate(ordered, start=1)
                ),
            )
            connection.executemany(
                "INSERT INTO contents VALUES (?, ?)",
                ((number, pickle.dumps(group, protocol=5)) for number, group in enumerate(ordered, start=1)),
            )
            # In the order of their key, so that each page of the file is written once.
            connection.executemany(
                "INSERT INTO members VALUES (?, ?, ?)",
                sorted(
                    (_key(member.path), member.sha256, number)
                    for number, group in enumerate(ordered, start=1)
                    for member in group.members
                ),
            )
            for index in _INDEXES:
                connection.execute(f"CREATE INDEX {index}")

    def totals(self) -> list[Total]:
        """Return how many groups of each tier are in each state, the most certain tier first."""
        with self._lock:
            if self._totals is None:
                rows = self._rows("SELECT tier, state, count(*), sum(spare_bytes) FROM groups GROUP BY tier, state")
                self._totals = sorted((Total(*row) for row in rows), key=lambda total: TIERS.index(total.tier))
            return self._totals

    def count(self, wanted: Filter) -> int:
        """Return the number of groups."""
        where, values = wanted.where
        return int(self._rows(f"SELECT count(*) FROM groups WHERE {where}", values)[0][0])

    def choices(self, wanted: Filter) -> set[int]:
        """Return the ids of the choices that hold for the wanted groups."""
        where, values = wanted.where
        return {choice for (choice,) in self._rows(f"SELECT choice FROM groups WHERE {where}", values)}

    def page(self, wanted: Filter, *, start: int, most: int) -> list[FoundGroup]:
        """Return up to ``most`` groups, from the ``start``-th on, counted from 0."""
        where, values = wanted.where
        rows = self._rows(f"SELECT id FROM groups WHERE {where} ORDER BY id LIMIT ? OFFSET ?", [*values, most, start])
        return [self._group(number) for (number,) in rows]

    def each(self, wanted: Filter) -> Iterator[FoundGroup]:
        """Yield all wanted groups. They may change meanwhile: none comes twice, and each is wanted when it comes."""
        where, values = wanted.where
        last = 0
        while rows := self._rows(
            f"SELECT id FROM groups WHERE {where} AND id > ? ORDER BY id LIMIT 500", [*values, last]
        ):
            for (last,) in rows:
                # Its state may have changed since its number was read; its tier and its paths never do.
                if (found := self._group(last)).state in wanted.states or not wanted.states:
                    yield found

    def get(self, number: int) -> FoundGroup | None:
        """Return one group, None if there is no such group."""
        is_there = number < 2**63 and self._rows("SELECT 1 FROM groups WHERE id = ?", [number])
        return self._group(number) if is_there else None

    def neighbours(self, number: int, wanted: Filter) -> tuple[int | None, int | None]:
        """Return the number of the wanted group before and after this one, which need not be wanted itself."""
        where, values = wanted.where
        (before,), (after,) = (
            self._rows(f"SELECT {which}(id) FROM groups WHERE {where} AND id {side} ?", [*values, number])[0]
            for which, side in (("max", "<"), ("min", ">"))
        )
        return before, after

    def paths(self, sha256: str) -> list[str]:
        """Return the paths of the members with this content."""
        return [os.fsdecode(path) for (path,) in self._rows("SELECT path FROM members WHERE sha256 = ?", [sha256])]

    def has_path(self, path: str) -> bool:
        """Tell whether the file at an absolute path is a member of a group."""
        return bool(self._rows("SELECT 1 FROM members WHERE path = ?", [_key(path)]))

    def match(self, choices: Iterable[Choice], *, is_new: bool = False) -> None:
        """Find the group of each choice, oldest first, and set the group's state; ``is_new`` if they add to the others.

        A choice belongs to a group if the group has all its photos with the contents of that time, and, unless it is
        :data:`KEEP`, no other photo: a photo that joined the group later was not part of the decision.
        """
        with self._transaction() as connection:
            if not is_new:
                connection.execute("DELETE FROM choices")
                connection.execute("UPDATE groups SET state = ?, choice = 0", (OPEN,))
            changed = set()
            for choice in choices:
                if number := self.group_of(choice):
                    photos = pickle.dumps(choice.photos, protocol=5)
                    row = (choice.id, choice.step, number, choice.what, choice.rules, choice.state, photos)
                    connection.execute("INSERT INTO choices VALUES (?, ?, ?, ?, ?, ?, ?)", row)
                    changed.add(number)
            for number in changed:
                self._hold_last(number)

    def forget(self, choices: Iterable[int]) -> None:
        """Forget choices; the ones before them hold again."""
        with self._transaction() as connection:
            for choice in choices:
                ((number,),) = self._rows("SELECT group_id FROM choices WHERE id = ?", [choice])
                connection.execute("DELETE FROM choices WHERE id = ?", (choice,))
                self._hold_last(number)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with super()._transaction() as connection:
            self._totals = None
            yield connection

    def _last(self, number: int) -> tuple[int, str, str]:
        """Return id, kind and state of the last choice about a group; without one, of an :data:`OPEN` one."""
        last = "SELECT id, what, state FROM choices WHERE group_id = ? ORDER BY id DESC LIMIT 1"
        ((choice, what, state),) = self._rows(last, [number]) or [(0, OPEN, WAITING)]
        return choice, what, state

    def _hold_last(self, number: int) -> None:
        """Set the state of a group by the last choice about it."""
        choice, what, state = self._last(number)
        if what == OPEN or state == UNDONE:
            self._rows("UPDATE groups SET state = ?, choice = 0 WHERE id = ?", [OPEN, number])
        else:
            values = [what if state == WAITING else APPLIED, choice, number]
            self._rows("UPDATE groups SET state = ?, choice = ? WHERE id = ?", values)

    def group_of(self, choice: Choice) -> int | None:
        """Return the number of the group that a choice is about."""
        found: set[int] = set()
        for photo in choice.photos:
            rows = self._rows(
                "SELECT group_id FROM members WHERE path = ? AND sha256 = ?", [_key(photo.path), photo.sha256]
            )
            found.add(rows[0][0] if rows else 0)
        number = found.pop() if len(found) == 1 else 0
        if not number or choice.what == KEEP:
            return number or None
        (members,) = self._rows("SELECT count(*) FROM members WHERE group_id = ?", [number])[0]
        return number if members == len(choice.photos) else None

    def set_state(self, choices: Iterable[int], state: str) -> None:
        """Set the states of choices, and those of the groups that they are the last choice about."""
        with self._transaction() as connection:
            for choice in choices:
                connection.execute("UPDATE choices SET state = ? WHERE id = ?", (state, choice))
                for (number,) in self._rows("SELECT group_id FROM choices WHERE id = ?", [choice]):
                    self._hold_last(number)

    def forget_superseded(self, number: int) -> list[int]:
        """Forget the choices about a group that a later one replaced; return their ids."""
        with self._transaction() as connection:
            rows = connection.execute("SELECT id FROM choices WHERE group_id = ? ORDER BY id", (number,)).fetchall()
            connection.executemany("DELETE FROM choices WHERE id = ?", rows[:-1])
        return [choice for (choice,) in rows[:-1]]

    def last_step(self) -> list[int]:
        """Return the ids of the choices of the last step that has not been carried out; none if there is none."""
        rows = self._rows(
            "SELECT id FROM choices WHERE state = ? AND step = (SELECT max(step) FROM choices WHERE state = ?)",
            [WAITING, WAITING],
        )
        return [number for (number,) in rows]

    def _group(self, number: int) -> FoundGroup:
        ((state, choice, spare_bytes, data),) = self._rows(
            "SELECT state, choice, spare_bytes, data FROM groups JOIN contents USING (id) WHERE id = ?", [number]
        )
        held = self._rows("SELECT photos, rules FROM choices WHERE id = ?", [choice])
        photos, rules = held[0] if held else (None, "")
        # This process pickled both, into a file that no other process can open.
        chosen = pickle.loads(photos) if photos else ()
        is_undone = self._last(number)[2] == UNDONE
        return FoundGroup(number, state, spare_bytes, pickle.loads(data), chosen, choice, rules, is_undone)


def _text(group: DuplicateGroup) -> str:
    """Return what a filter looks for names in."""
    return "\n".join(printable(member.photo.label) for member in group.members).casefold()


def _key(path: str) -> bytes:
    return os.fsencode(os.path.abspath(path))
