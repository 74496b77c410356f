"""The addresses of all pages, and of what they call.

All are below the secret of the server (``access.py``), so the pages name each other by relative addresses.

Reading:

- ``GET /``: the list of groups; while the search runs, its progress; if it failed, why. The query chooses the groups:
  ``tier``, ``state`` (``open``, ``keep``, ``keep-all``, ``different``, ``skip``, ``applied``, or ``staged``: all that
  can be applied), ``text``, and the page: ``start`` (from 0) and ``most`` (at most 200).
- ``GET /rows``: the same rows without the page around them, for scrolling.
- ``GET /groups/{id}``: one group. The query is that of the list it was reached from; it decides what is next.
- ``GET /groups/{id}/plan``: as JSON, why photos would stay: position -> ``chosen``, if a person chose to move it, and
  ``apply``, if ``dedup --apply`` did by itself. With ``keep=0&move=1&move=2`` for a choice that is not recorded yet.
- ``GET /photos/{sha256}/{size}``: a picture, ``small``, ``large`` or ``full``; a JPEG, upright, whole, never enlarged.
- ``GET /plan``: what the last plan would move and leave, and what came of it; ``start`` chooses the page.
- ``GET /rules``: the keep rules, and those that are saved under a name.
- ``GET /rules/count``: a part of a page: how much ``rule=original&rule=folder=/photos`` (in this order) would choose
  for the groups of ``tier``, ``state`` and ``text``. Without a state open groups are meant; without a rule, the rules
  of the search hold. An element with ``data-goes-on`` says that not all have been counted: ask again.
- ``GET /history``: the runs that can be taken back.
- ``GET /state``: what changes, as JSON: ``version`` grows with every change, also those of other tabs and processes.
- ``GET /assets/{file}``: style sheets and scripts.

Writing: the body is JSON; the answer is that of ``/state``, or ``{"error": "one sentence"}`` with status 400 or 409.

- ``POST /groups/{id}/choice``: ``{"what": "keep", "keep": 0, "move": [1, 2]}`` with positions of members; or ``what``
  is ``keep-all``, ``different``, ``skip``, or ``open``, which withdraws a choice.
- ``POST /undo``: takes the last step back that has not been applied.
- ``POST /plan``: begins to plan all staged choices; ``{"merge_metadata": true}`` as in ``dedup``. ``/state`` shows the
  progress as ``job``.
- ``POST /apply``: ``{"plan": 1}`` begins to carry out the plan with this ``number`` of the job.
- ``POST /rules/choose``: ``{"rules": [...], "tier": "", "state": "", "text": ""}`` chooses for all these groups as one
  step.
- ``POST /rules/save``: ``{"name": "mine", "rules": [...]}``, for ``dedup --keep @mine`` too; no rules delete the name.
- ``POST /history/{run}/undo``: begins to take a run back.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from clip_client.review.group_routes import GroupRoutes
from clip_client.review.plan_routes import PlanRoutes
from clip_client.review.rule_routes import RuleRoutes

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from clip_client.review.state.applying import Worker
    from clip_client.review.state.session import Session

_ASSETS: Final = ("clip_client.review", "clip_client.dedup.reporting")


def review_app(session: Session, worker: Worker) -> Starlette:
    """Make the application around one review; who may use it is decided by :class:`~.access.Access`."""
    groups, plans = GroupRoutes(session, worker), PlanRoutes(session, worker)
    rules = RuleRoutes(session, worker)
    return Starlette(
        routes=[
            Route("/", groups.groups),
            Route("/rows", groups.rows),
            Route("/groups/{number:int}", groups.group),
            Route("/groups/{number:int}/plan", groups.plan),
            Route("/groups/{number:int}/choice", groups.choose, methods=["POST"]),
            Route("/photos/{sha256}/{size}", groups.photo),
            Route("/state", groups.state),
            Route("/undo", groups.take_back, methods=["POST"]),
            Route("/plan", plans.plan),
            Route("/plan", plans.make_plan, methods=["POST"]),
            Route("/apply", plans.apply, methods=["POST"]),
            Route("/rules", rules.rules),
            Route("/rules/count", rules.count),
            Route("/rules/choose", rules.choose, methods=["POST"]),
            Route("/rules/save", rules.save, methods=["POST"]),
            Route("/history", plans.history),
            Route("/history/{run}/undo", plans.restore, methods=["POST"]),
            Mount("/assets", StaticFiles(packages=[(of, "assets") for of in _ASSETS])),
        ],
        exception_handlers={HTTPException: _refuse},
    )


def _refuse(request: Request, error: Exception) -> Response:
    """Answer a script in JSON, and a person who opened an address with a page."""
    assert isinstance(error, HTTPException)
    if request.headers.get("sec-fetch-mode") != "navigate":
        return JSONResponse({"error": error.detail}, error.status_code)
    said = escape(error.detail[:1].upper() + error.detail[1:])
    page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{said}</title><h1>{said}</h1>'
    return HTMLResponse(f"{page}<p>Go back, or open the address that the terminal shows.</p></html>", error.status_code)
