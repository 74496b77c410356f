"""Routes that show the plan and the history, carry choices out, and take runs back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from clip_client.dedup.store.decisions import DIFFERENT, KEEP_ALL
from clip_client.review.requests import MOST_ROWS, Body, Routes, read_number
from clip_client.review.state.plan_lines import OUTCOMES

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


@dataclass(frozen=True, kw_only=True)
class HistoryItem:
    """One run of ``dedup --apply`` or of these pages that can be taken back."""

    run: str
    """Its name, which begins with the local time: ``20261122-181502-1a2b3c4d``."""
    photos: int
    """In the quarantine."""
    size_bytes: int
    """Of the photos and the files that moved with them."""
    different: int
    """Groups that it declared different."""
    keep_all: int


class PlanRoutes(Routes):
    """The routes."""

    def plan(self, request: Request) -> Response:
        """What would move and what would stay; after a run, what came of it."""
        self._need_groups()
        state = self._state()
        start = read_number(request, "start", default=0, most=10**9)
        lines = self._session.lines
        pages = {outcome: lines.page(outcome, start=start, most=MOST_ROWS) for outcome in OUTCOMES}
        job = self._worker.job
        return self._page(
            "plan.html.j2", state, job=job, lines=pages, line_totals=lines.totals(), start=start, most=MOST_ROWS
        )

    async def make_plan(self, request: Request) -> Response:
        """Begin to plan."""
        self._need_groups()
        merge_metadata = (await Body.of(request)).one("merge_metadata", False)
        return await self._write(lambda: self._worker.plan(merge_metadata=merge_metadata))

    async def apply(self, request: Request) -> Response:
        """Begin to carry the plan out."""
        self._need_groups()
        number = (await Body.of(request)).one("plan", 0)
        return await self._write(lambda: self._worker.apply(number))

    def history(self, _request: Request) -> Response:
        """The runs that can be taken back, also those of earlier days and of the command line."""
        return self._page("history.html.j2", self._state(), job=self._worker.job, items=self._history())

    async def restore(self, request: Request) -> Response:
        """Begin to take a run back."""
        self._need_groups()
        run = request.path_params["run"]
        if run not in {item.run for item in self._history()}:
            raise HTTPException(404, "there is no such run")
        return await self._write(lambda: self._worker.restore(run))

    def _history(self) -> list[HistoryItem]:
        session = self._session
        with session.lock:
            runs = {run.name: run for run in session.store.journal.runs()}
            different, keep_all = (session.store.choices.runs(what) for what in (DIFFERENT, KEEP_ALL))
        # Names of runs begin with their local time, so they sort by it.
        return [
            HistoryItem(
                run=name,
                photos=runs[name].photos if name in runs else 0,
                size_bytes=runs[name].size_bytes if name in runs else 0,
                different=different.get(name, 0),
                keep_all=keep_all.get(name, 0),
            )
            for name in sorted(runs.keys() | different.keys() | keep_all.keys(), reverse=True)
        ]
