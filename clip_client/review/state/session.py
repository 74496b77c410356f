"""One review: the search, its groups, the choices about them, and the work in the background."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Final, NamedTuple

from anyio import to_thread

from clip_client._files import stored_ns
from clip_client._storage.sqlite import StoreError
from clip_client.dedup.actions.apply import recover
from clip_client.dedup.actions.chosen_runs import notice_put_back
from clip_client.dedup.compare.chosen_groups import chosen_photos, keep_instead
from clip_client.dedup.compare.keep_rules import KeepRules
from clip_client.dedup.files.directories import DirectorySet
from clip_client.dedup.group import DuplicateGroup, Member
from clip_client.dedup.judge.verdicts import with_verdicts
from clip_client.dedup.pages.words import found_in_words
from clip_client.dedup.report import DuplicateReport, count_verdicts
from clip_client.dedup.store.choices import CHOICES, KEEP, Choice, ChosenPhoto
from clip_client.dedup.store.decisions import DIFFERENT, KEEP_ALL
from clip_client.dedup.store.journal import State
from clip_client.dedup.store.store import Store
from clip_client.dedup.text import counted
from clip_client.dedup.types import IF_CHOSEN, NEVER, ON_REQUEST, OnProgress
from clip_client.review.state.found_groups import APPLIED, FoundGroup, FoundGroups
from preprocess_ensemble.errors import ReportedError

Search = Callable[[OnProgress], Awaitable[DuplicateReport]]

SCANNING: Final = "scanning"
READY: Final = "ready"
FAILED: Final = "failed"

_INTERNAL: Final = "The search stopped because of an error in clip-client itself; the terminal shows the details."


class CannotChoose(ReportedError):
    status: ClassVar[int] = 400


class Busy(CannotChoose):
    status: ClassVar[int] = 409


class HistoryItem(NamedTuple):
    run: str
    photos: int
    size_bytes: int
    different: int
    keep_all: int


class Session:
    """The state that all pages of one server show. Thread-safe."""

    def __init__(self, store: Store, roots: Sequence[str]) -> None:
        self.store = store
        self.roots = tuple(roots)
        self.groups = FoundGroups()
        self.lock = threading.RLock()
        """Held while the store is used, because only one thread at a time may use it."""
        self.phase = SCANNING
        self.progress: dict[str, tuple[int, int | None]] = {}
        self.error = ""
        self.notice = ""
        self.report: DuplicateReport | None = None
        self.on_request: tuple[str, ...] = ()
        self._changes = 0
        self._choices_version = 0
        self._is_stopping = False
        self._in_progress: frozenset[int] = frozenset()

    @property
    def version(self) -> int:
        with self.lock:
            # While a run carries choices out, each of its moves changes them.
            if self.phase == READY and not self._in_progress and self.store.choices.changed_elsewhere():
                self._match_choices()
                self._choices_changed()
            return self._changes

    @property
    def choices_version(self) -> int:
        with self.lock:
            _ = self.version
            return self._choices_version

    def changed(self) -> None:
        with self.lock:
            self._changes += 1

    def _choices_changed(self) -> None:
        self._choices_version += 1
        self.changed()

    async def search(self, search: Search) -> None:
        """Run the search and take its groups. Never raises: the pages show a failure."""
        try:
            await to_thread.run_sync(self._finish_interrupted)
            await to_thread.run_sync(self._take, await search(self._show))
        except ReportedError as error:
            self.error, self.phase = str(error), FAILED
        except Exception:
            traceback.print_exc()
            self.error, self.phase = _INTERNAL, FAILED
        finally:
            self.changed()

    def _finish_interrupted(self) -> None:
        journal = self.store.journal
        with suppress(StoreError), self.lock, journal.exclusive():  # unless another clip-client is moving files
            unfinished = journal.entries((State.PLANNED, State.RESTORING, State.PURGING))
            recover(journal)
            notice_put_back(self.store)
            if unfinished:
                photos = counted(len(unfinished), "photo")
                self.notice = (
                    f"A run was interrupted while it moved {photos}; the unfinished moves have been put in order."
                )

    def stop(self) -> None:
        self._is_stopping = True

    def check_running(self) -> None:
        if self._is_stopping:
            raise Busy("the server stopped before this was finished; start clip-client review again")

    def _show(self, what: str, done: int, total: int | None) -> None:
        self.check_running()
        self.progress[what] = (done, total)
        self.changed()

    def _take(self, report: DuplicateReport) -> None:
        self.groups.fill(report)
        self.on_request = tuple(sorted(tier for moves, tier in count_verdicts(report.groups) if moves == ON_REQUEST))
        self.report = replace(report, groups=())
        with self.lock:
            self._match_choices()
            self.phase = READY

    def _match_choices(self) -> None:
        self.groups.match(self.store.choices.all(), self.store.journal.moved_by_choices())

    @property
    def undecided(self) -> str:
        verdicts, moving_bytes = self.groups.undecided()
        return found_in_words(verdicts, moving_bytes) if verdicts else ""

    def paths_of(self, sha256: str) -> list[str]:
        if paths := self.groups.paths(sha256):
            return paths
        with self.lock:
            known = self.store.files.paths_of([sha256])[sha256]
        return list(filter(DirectorySet(self.roots).contains, known))

    def problem_of(self, member: Member) -> str:
        try:
            status = os.stat(member.path)
        except OSError:
            return "missing"
        is_same = (status.st_size, stored_ns(status.st_mtime_ns)) == (member.photo.size_bytes, member.photo.mtime_ns)
        return "" if is_same else "changed"

    def with_verdicts(self, *groups: DuplicateGroup, **how: Any) -> DuplicateReport:
        assert self.report is not None, "there is nothing to judge before the search has ended"
        return with_verdicts(replace(self.report, groups=groups), self.roots, compared=self.groups, **how)

    def doubts(self, found: FoundGroup, keep: int, move: Iterable[int]) -> dict[int, str]:
        """Return position -> why a chosen photo would stay, or what speaks against its move. Raises CannotChoose."""
        members, moving = found.group.members, set(move)
        _check_places(found, {keep, *moving})
        wanted = keep_instead(found.group, members[keep].path, {members[place].path for place in moving})
        (group,) = self.with_verdicts(wanted).groups
        verdicts, said = {one.path: one.verdict for one in group.members}, {}
        for place in moving:
            verdict = verdicts[members[place].path]
            if verdict.moves == NEVER and verdict.reason:
                said[place] = f"Would stay. {verdict.reason}"
            # The page has the reason of a move in favour of the photo that the search keeps.
            elif verdict.moves == IF_CHOSEN and verdict.reason != members[place].verdict.reason:
                said[place] = verdict.reason
        return said

    def choose(
        self, number: int, what: str, *, keep: int = 0, move: Iterable[int] = (), most: int | None = None
    ) -> None:
        """Record a choice; ``keep`` and ``move`` are positions of members. Raises CannotChoose.

        A page showed only the first ``most`` members (None: all), so no other member may move.
        """
        found = self.groups.get(number)
        if found is None:
            raise CannotChoose(f"there is no group {number}")
        if found.state == APPLIED or number in self._in_progress:
            raise Busy("this decision has been applied; to decide again, bring the photos back from the history")
        if what not in CHOICES:
            raise CannotChoose(f"a choice must be one of {', '.join(CHOICES)}, not {what!r}")
        moving = set(move)
        if what == KEEP:
            _check_places(found, {keep, *moving})
            if not moving or keep in moving:
                raise CannotChoose("keep one photo and move at least one other; to keep all, choose keep-all")
            if most is not None and (unseen := moving.difference(found.shown(most))):
                raise CannotChoose(f"photo {min(unseen) + 1} was not on the page; show more photos, and choose again")
        elif what == DIFFERENT and len({member.sha256 for member in found.group.members}) < 2:
            raise CannotChoose("files with the same bytes are one photo; to keep all of them, choose keep-all")
        self.stage([(what, chosen_photos(found.group, moving if what == KEEP else (), keep=keep))])

    def stage(self, choices: Iterable[tuple[str, Sequence[ChosenPhoto]]], *, rules: str = "") -> None:
        """Record choices as one step. ``rules`` names the rules that made them; empty if a person saw each group."""
        with self.lock:
            self.groups.add(self.store.choices.add(choices, rules=rules))
            self._choices_changed()

    def take_back(self) -> None:
        with self.lock:
            if not (choices := self.groups.last_step()):
                raise Busy("there is no choice to undo; the history lists what was applied")
            self._withdraw(choices)
            self._choices_changed()

    def begin_run(self, groups: Iterable[FoundGroup]) -> list[FoundGroup]:
        """Begin to carry out the choices about ``groups``; return the groups whose choices no other process took back.

        Until :meth:`end_run` these groups accept no choices. ``groups`` is consumed under the lock, while choices
        cannot change. The caller holds :meth:`.Journal.exclusive`. Raises Busy if the server is ending.
        """
        with self.lock:
            _ = self.version
            batch = list(groups)
            if batch:
                self.check_running()
                self._withdraw([one for found in batch for one in self.groups.superseded(found.id)])
                waiting = self.store.choices.waiting([found.choice.id for found in batch])
                batch = [found for found in batch if found.choice.id in waiting]
                self._in_progress = frozenset(found.id for found in batch)
                self._choices_changed()
        return batch

    def end_run(self) -> None:
        with self.lock:
            self._in_progress = frozenset()
            _ = self.version

    def _withdraw(self, choices: Sequence[Choice]) -> None:
        self.store.choices.withdraw([choice.id for choice in choices])
        self.groups.forget(choices)

    def history(self) -> list[HistoryItem]:
        with self.lock:
            moved = self.store.journal.runs()
            different, keep_all = (self.store.choices.runs(what) for what in (DIFFERENT, KEEP_ALL))
        # Names of runs begin with their local time, so they sort by it.
        names = sorted(moved.keys() | different.keys() | keep_all.keys(), reverse=True)
        return [
            HistoryItem(name, *moved.get(name, (0, 0)), different.get(name, 0), keep_all.get(name, 0)) for name in names
        ]

    def save_rules(self, name: str, rules: Sequence[str]) -> None:
        with self.lock:
            try:
                if rules:
                    self.store.settings.save_keep_rules(name, KeepRules(rules).names)
                else:
                    self.store.settings.delete_keep_rules(name)
            except ValueError as error:
                raise CannotChoose(str(error)) from None


def _check_places(found: FoundGroup, places: set[int]) -> None:
    photos = len(found.group.members)
    if not places <= set(range(photos)):
        raise CannotChoose(f"group {found.id} has {photos} photos")
