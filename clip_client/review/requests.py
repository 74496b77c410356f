"""What the routes have in common: reading a request, and answering one that cannot be done."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse

from clip_client.review.pages import environment
from clip_client.review.state.found_groups import STAGED, Filter
from clip_client.review.state.refusal import CannotChoose
from clip_client.review.state.session import READY
from clip_client.review.views import STATE_NAMES

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from clip_client.review.state.applying import Worker
    from clip_client.review.state.session import Session

MOST_ROWS = 200
"""On one page."""

Kind = TypeVar("Kind")


class Routes:
    """The base of the classes whose methods answer requests."""

    def __init__(self, session: Session, worker: Worker) -> None:
        self._session = session
        self._worker = worker
        self._templates = environment(session.roots)

    def _html(self, template: str, **values: Any) -> Response:
        """Render a page, or a part of one."""
        return HTMLResponse(self._templates.get_template(template).render(values))

    def _page(self, template: str, state: dict[str, Any], **values: Any) -> Response:
        """Render a whole page, which shows the state, too.

        The state must be read before anything else that the page shows: what changes meanwhile has a newer version, and
        the browser loads the page again.
        """
        return self._html(template, session=self._session, state=state, **values)

    async def _write(self, act: Callable[[], object]) -> Response:
        """Do what changes something in a thread; answer with the new state, or with the reason why it was refused."""
        try:
            await run_in_threadpool(act)
        except CannotChoose as error:
            return JSONResponse({"error": str(error)}, error.status)
        return JSONResponse(await run_in_threadpool(self._state))

    def _state(self) -> dict[str, Any]:
        """Return what changes."""
        session = self._session
        job = self._worker.job
        return {
            "version": session.version,
            "phase": session.phase,
            "error": session.error,
            "notice": session.notice,
            "progress": [[what, done, total] for what, (done, total) in list(session.progress.items())],
            "totals": [total._asdict() for total in session.groups.totals()] if session.phase == READY else [],
            "job": job
            and {
                "what": job.what,
                "number": job.number,
                "done": job.done,
                "total": job.total,
                "run": job.run,
                "is_running": job.is_running,
                "is_current": job.choices == session.choices_version,
                "error": job.error,
            },
        }

    def _need_groups(self) -> None:
        if self._session.phase != READY:
            raise HTTPException(409, "the search has not finished")


def read_filter(request: Request) -> Filter:
    """Read ``tier``, ``state`` and ``text`` of the query."""
    given = {name: request.query_params.get(name, "") for name in ("tier", "state", "text")}
    return checked_filter(**given)


def checked_filter(*, tier: str, state: str, text: str) -> Filter:
    """Return a filter, unless its state is unknown."""
    if state not in ("", STAGED, *STATE_NAMES):
        raise HTTPException(400, f"a state is one of {', '.join((*STATE_NAMES, STAGED))}")
    return Filter(tier=tier, state=state, text=text)


def query_of(wanted: Filter) -> str:
    """Return the filter as the query of an address, with its question mark; empty for all groups."""
    used = {name: value for name, value in vars(wanted).items() if value}
    return f"?{urlencode(used)}" if used else ""


def read_number(request: Request, name: str, *, default: int, most: int) -> int:
    """Read a number of the query."""
    return next(iter(read_numbers(request, name, most=most)), default)


def read_numbers(request: Request, name: str, *, most: int) -> list[int]:
    """Read the numbers of this name in the query."""
    texts = request.query_params.getlist(name)
    if not all(text.isascii() and text.isdigit() and len(text) < 12 and int(text) <= most for text in texts):
        raise HTTPException(400, f"{name} is a number from 0 to {most}")
    return list(map(int, texts))


class Body:
    """The JSON object in the body of a request."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    @classmethod
    async def of(cls, request: Request) -> Body:
        """Read the body."""
        try:
            values = json.loads(await request.body() or b"{}")
        except ValueError:
            raise HTTPException(400, "the body is no JSON") from None
        if not isinstance(values, dict):
            raise HTTPException(400, "the body is no JSON object")
        return cls(values)

    def one(self, name: str, default: Kind) -> Kind:
        """Return a value, which is of the type of ``default``."""
        value = self._values.get(name, default)
        if type(value) is not type(default):
            raise HTTPException(400, f"{name} has the wrong type")
        return value

    def several(self, name: str, kind: type[Kind]) -> list[Kind]:
        """Return a list of values of one type; empty if it is missing."""
        values = self.one(name, list[Any]())
        if any(type(value) is not kind for value in values):
            raise HTTPException(400, f"{name} holds a value of the wrong type")
        return values
