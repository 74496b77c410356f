"""Carry choices out and take runs back in a separate thread, with the plan and the journal of ``dedup``."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

from clip_client.dedup.actions.apple_photos_album import fill_album
from clip_client.dedup.actions.apply import Outcome, apply
from clip_client.dedup.actions.chosen_runs import declare, take_back
from clip_client.dedup.actions.plan import Move, Plan, Skip, plan_moves
from clip_client.dedup.compare.chosen_groups import choose
from clip_client.dedup.group import DuplicateGroup
from clip_client.dedup.store.choices import KEEP, moving_tiers
from clip_client.dedup.store.store import Store
from clip_client.review.state.found_groups import STAGED, Filter, FoundGroup
from clip_client.review.state.session import Busy, Session
from preprocess_ensemble.errors import ReportedError

_PLANNING: Final = "planning"
_NO_PLAN: Final = "there is no such plan any more; look at the plan again"
_WANTED: Final = Filter(state=STAGED)
_AT_ONCE: Final = 50
"""Groups that are planned and moved together, so that any number of them takes little memory."""


@dataclass
class Job:
    what: str
    number: int
    """Number of the job on this server; ``apply`` names a plan by the number of its job."""
    choices: int
    """:attr:`Session.choices_version` at the start of the job."""
    merge_metadata: bool = False
    done: int = 0
    total: int = 0
    run: str = ""
    is_running: bool = True
    error: str = ""
    planned: dict[str, Move | Skip] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)


class Worker:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.job: Job | None = None

    def plan(self, *, merge_metadata: bool) -> None:
        self._start(_PLANNING, self._plan, merge_metadata=merge_metadata)

    def apply(self, number: int) -> None:
        planned = self.job
        wanted = (_PLANNING, number, False, "")
        if planned is None or (planned.what, planned.number, planned.is_running, planned.error) != wanted:
            raise Busy(_NO_PLAN)
        with self._session.lock:
            if planned.choices != self._session.choices_version:
                raise Busy("the choices have changed since they were planned; look at the plan again")
            choices = {found.choice.id for found in self._session.groups.each(_WANTED)}
        self._start("moving", partial(self._apply, choices=choices), after=planned)

    def restore(self, run: str) -> None:
        self._start("restoring", partial(self._restore, run=run))

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _start(
        self, what: str, work: Callable[[Job], None], *, merge_metadata: bool = False, after: Job | None = None
    ) -> None:
        with self._lock:
            if self.job is not None and self.job.is_running:
                raise Busy(f"wait until {self.job.what} has finished")
            if after not in (None, self.job):  # another request has started a job since
                raise Busy(_NO_PLAN)
            number, choices = self.job.number + 1 if self.job else 1, self._session.choices_version
            job = Job(what=what, number=number, choices=choices, merge_metadata=merge_metadata)
            if after is not None:
                job.merge_metadata, job.planned = after.merge_metadata, after.planned
            self.job = job
        # Not a daemon thread: a process that ends in order first finishes the files that it is moving.
        self._thread = threading.Thread(target=self._run, args=(job, work), name=what)
        self._thread.start()

    def _run(self, job: Job, work: Callable[[Job], None]) -> None:
        try:
            work(job)
        except ReportedError as error:
            job.error = str(error)
        except Exception:
            traceback.print_exc()
            job.error = "It stopped because of an error in clip-client itself; the terminal shows the details."
        finally:
            job.is_running = False
            self._session.changed()

    def _plan(self, job: Job) -> None:
        session = self._session
        job.total = session.groups.count(_WANTED)
        with Store(session.store.directory) as store:
            groups = session.groups.each(_WANTED)
            while batch := list(islice(groups, _AT_ONCE)):
                session.check_running()
                self._planned(batch, store, job)
                job.done += len(batch)
                session.changed()

    def _apply(self, job: Job, choices: Collection[int]) -> None:
        session = self._session
        with Store(session.store.directory) as store, store.journal.exclusive():
            job.run, job.total = store.journal.new_run(), len(choices)
            groups = (found for found in session.groups.each(_WANTED) if found.choice.id in choices)
            while batch := session.begin_run(islice(groups, _AT_ONCE)):
                try:
                    declare(store, [found.choice for found in batch if found.state != KEEP], job.run)
                    plan = self._planned(batch, store, job)
                    of = {photo.path: found.choice.id for found in batch for photo in found.choice.photos}
                    moved = apply(plan, store.journal, run=job.run, files=store.files, choices=of)
                    listed = fill_album(plan.for_album)
                    job.outcomes.update((outcome.path, outcome) for outcome in (*moved, *listed))
                    # Listing a photo in the album is not a move in the journal, so finish its choice here.
                    store.choices.finish({of[os.path.abspath(one.path)] for one in listed if one.done}, job.run)
                finally:
                    session.end_run()
                job.done += len(batch)
                session.changed()

    def _restore(self, job: Job, run: str) -> None:
        with Store(self._session.store.directory) as store:
            outcomes, _ = take_back(store, run=run)
        job.run, job.outcomes = run, {outcome.path: outcome for outcome in outcomes}
        job.done, job.total = sum(outcome.done for outcome in outcomes), len(outcomes)

    def _planned(self, batch: Sequence[FoundGroup], store: Store, job: Job) -> Plan:
        groups: list[DuplicateGroup] = []
        tiers: dict[str, tuple[str, ...] | None] = {}
        for found in batch:
            if found.choice.what == KEEP and (chosen := choose(found.group, found.choice.photos)):
                groups.append(chosen[0])
                tiers |= dict.fromkeys(chosen[1], moving_tiers(found.choice.rules))
        now = self._session.with_verdicts(*groups, merge_metadata=job.merge_metadata, files=store.files)
        plan = plan_moves(now, self._session.roots, chosen=tiers)
        job.planned.update((move.duplicate.path, move) for move in (*plan.moves, *plan.for_album))
        job.planned.update((skip.photo.path, skip) for skip in plan.skipped)
        return plan
