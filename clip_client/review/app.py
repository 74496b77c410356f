"""The addresses of the review. They are relative, because all are below the secret of the server (``access.py``).

The query of a list selects groups by ``tier``, ``holds`` (a tier of copies that move on request), ``state`` and
``text``. A state is ``open``, ``keep``, ``keep-all``, ``different``, ``skip``, ``applied``, or ``staged`` (all groups
that can be applied).

A request that changes something is a POST with a JSON body. It is answered like ``/state``, or by ``{"error": "one
sentence"}`` with status 400 or 409.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from itertools import islice
from typing import Any, Final

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from clip_client.dedup.actions.plan import Move, Skip
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES, PLAIN_RULES, RETIRED_RULES
from clip_client.review import pages
from clip_client.review.state.applying import Worker
from clip_client.review.state.bulk import BulkCount, choose_by_rules, count_by_rules, open_by_default
from clip_client.review.state.found_groups import FoundGroup
from clip_client.review.state.photo_search import FIELDS, MOST_UPLOADED, PhotoSearch
from clip_client.review.state.previews import SIZES, PreviewCache
from clip_client.review.state.session import READY, SCANNING, CannotChoose, Session
from preprocess_ensemble.errors import ReportedError

_ASSETS: Final = ("clip_client.review", "clip_client.dedup.pages")
_GROUPS, _LINES, _PHOTOS = 50, 200, 60
"""Groups of the list and photos of a plan on one page, and photos of a group that its page shows by default."""
_OF_A_JOB: Final = ("what", "number", "done", "total", "run", "is_running", "error", "merge_metadata")
_MOST_DECODED: Final = 3
"""Photos that are decoded at once. They have their own threads, so that pages never wait for them."""
_CONTENT: Final = re.compile("[0-9a-f]{64}")


def review_app(session: Session, worker: Worker, photos: PhotoSearch | None = None) -> Starlette:
    to = _Handlers(session, worker, photos)
    return Starlette(
        routes=[
            Route("/", to.groups),
            Route("/groups/{number:int}", to.group),
            Route("/groups/{number:int}/plan", to.doubts),
            Route("/photos/{sha256}/{size}", to.photo),
            Route("/search", to.search),
            Route("/search/photo", to.upload, methods=["POST"]),
            Route("/state", to.state),
            Route("/groups/{number:int}/choice", to.choose, methods=["POST"]),
            Route("/undo", to.take_back, methods=["POST"]),
            Route("/rules", to.rules),
            Route("/rules/count", to.count),
            Route("/rules/choose", to.choose_by_rules, methods=["POST"]),
            Route("/rules/save", to.save_rules, methods=["POST"]),
            Route("/plan", to.plan),
            Route("/plan", to.make_plan, methods=["POST"]),
            Route("/apply", to.apply, methods=["POST"]),
            Route("/history", to.history),
            Route("/history/{run}/undo", to.restore, methods=["POST"]),
            Mount("/assets", StaticFiles(packages=[(of, "assets") for of in _ASSETS])),
        ],
        exception_handlers={HTTPException: _refuse, CannotChoose: _refuse},
    )


class _Handlers:
    def __init__(self, session: Session, worker: Worker, photos: PhotoSearch | None) -> None:
        self._session = session
        self._photos = photos
        self._worker = worker
        self._templates = pages.environment(session.roots)
        self._previews = PreviewCache(session.store.directory / "previews")
        self._decoding = CapacityLimiter(_MOST_DECODED)

    def groups(self, request: Request) -> Response:
        state = self._state()
        if state["phase"] != READY:
            return self._page("scanning.html.j2" if state["phase"] == SCANNING else "failed.html.j2", state)
        wanted, groups = pages.read_filter(request.query_params), self._session.groups
        start = pages.read_number(request, "start")
        shown = list(islice(groups.each(wanted), start, start + _GROUPS))
        return self._page(
            "groups.html.j2", state, wanted=wanted, start=start, most=_GROUPS, count=groups.count(wanted), groups=shown
        )

    def group(self, request: Request) -> Response:
        """One group, with its first ``most`` photos. The query of the list that led here decides the next group."""
        state, found, wanted = self._state(), self._found(request), pages.read_filter(request.query_params)
        most = pages.read_number(request, "most", default=_PHOTOS, most=10**6)
        before, after = self._session.groups.neighbours(found.id, wanted)
        members, shown = found.group.members, found.shown(most)
        keep, moving = found.keep_and_moving
        return self._page(
            "group.html.j2",
            state,
            found=found,
            keep=keep,
            moving=moving,
            shown={place: members[place] for place in shown},
            most=most,
            wanted=wanted,
            before=before,
            after=after,
            better=pages.better_ones([member.photo for member in members]),
            search=request.query_params.get("search", ""),
        )

    def doubts(self, request: Request) -> Response:
        """JSON, position -> sentence: what speaks against the choice in the query, such as ``keep=0&move=1&move=2``."""
        found = self._found(request)
        keep, moving = found.keep_and_moving
        if "keep" in request.query_params:
            keep, moving = pages.read_number(request, "keep"), set(pages.read_numbers(request, "move"))
        return JSONResponse(self._session.doubts(found, keep, moving))

    async def photo(self, request: Request) -> Response:
        sha256, size = request.path_params["sha256"], request.path_params["size"]
        if size not in SIZES or not _CONTENT.fullmatch(sha256):
            raise HTTPException(404, "there is no such picture")
        jpeg = await to_thread.run_sync(
            lambda: self._previews.jpeg(sha256, self._session.paths_of(sha256), size), limiter=self._decoding
        )
        if jpeg is None:
            raise HTTPException(404, "the photo cannot be shown: it is gone, has changed, or cannot be decoded")
        # The browser may keep the picture, because the address names its content.
        return Response(jpeg, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600, immutable"})

    def state(self, _request: Request) -> Response:
        """``version`` grows with every change, including those of other tabs and processes."""
        return JSONResponse(self._state())

    async def search(self, request: Request) -> Response:
        """The photos nearest to the words ``q``, the uploaded ``photo`` or the photo ``like`` that pass the filters."""
        self._need_groups()
        form = {name: request.query_params.get(name, "")[:2000].strip() for name in FIELDS}
        state, found, error = self._state(), None, ""
        if self._photos is not None:
            try:
                found = await self._photos.find(form)
            except ReportedError as reported:
                error = str(reported)
        values = {"form": form, "found": found, "error": error, "query": request.url.query}
        return self._page("search.html.j2", state, can_search=self._photos is not None, **values)

    async def upload(self, request: Request) -> Response:
        """Take the bytes of a photo to search for; answer ``{"photo": name}``, for the query of ``/search``."""
        if self._photos is None:
            raise HTTPException(409, "this review has no model to search with")
        size = request.headers.get("content-length", "")
        if not size.isdigit() or int(size) > MOST_UPLOADED:
            raise HTTPException(413, f"a photo may have at most {MOST_UPLOADED:,} bytes")
        return JSONResponse({"photo": self._photos.upload(await request.body())})

    async def choose(self, request: Request) -> Response:
        """Record a choice: ``{"what": "keep", "keep": 0, "move": [1, 2]}`` with positions of photos.

        ``what`` may also be ``keep-all``, ``different``, ``skip``, or ``open``, which withdraws a choice. ``most`` is
        the number of photos on the page: a choice that moves any other photo is refused.
        """
        found = self._found(request)
        body = await pages.read_body(request, what="", keep=0, move=int, most=_PHOTOS)
        return await self._write(lambda: self._session.choose(found.id, **body))

    async def take_back(self, _request: Request) -> Response:
        return await self._write(self._session.take_back)

    def rules(self, request: Request) -> Response:
        self._need_groups()
        state, wanted = self._state(), pages.read_filter(request.query_params)
        with self._session.lock:
            saved = self._session.store.settings.keep_rules()
        values = {"rules": PLAIN_RULES, "default": DEFAULT_RULES, "retired": RETIRED_RULES, "saved": saved}
        return self._page("rules.html.j2", state, wanted=wanted, **values)

    def count(self, request: Request) -> Response:
        """Part of a page: how much ``rule=original&rule=folder=/photos``, in this order, would choose.

        Without a state it counts open groups. The default rules are those of the search. If some groups are not counted
        yet, an element has ``data-goes-on``: ask again with its value in the query.
        """
        self._need_groups()
        query = request.query_params
        wanted, rules = pages.read_filter(query), pages.checked_rules(query.getlist("rule"))
        count = BulkCount(**{name: pages.read_number(request, name, most=10**15) for name in vars(BulkCount())})
        try:
            goes_on, error = count_by_rules(self._session, wanted, rules, count), ""
        except CannotChoose as refused:
            goes_on, error = False, str(refused)
        total = self._session.groups.count(open_by_default(wanted))
        return self._html("counts.html.j2", count=count, goes_on=goes_on and vars(count), total=total, error=error)

    async def choose_by_rules(self, request: Request) -> Response:
        """Choose for all wanted groups as one step: ``{"rules": [...], "tier": "", "text": ""}``."""
        body = await pages.read_body(request, tier="", state="", text="", rules=str)
        wanted, rules = pages.read_filter(body), pages.checked_rules(body["rules"])
        return await self._write(lambda: choose_by_rules(self._session, wanted, rules))

    async def save_rules(self, request: Request) -> Response:
        """Save rules for ``dedup --keep @mine``: ``{"name": "mine", "rules": [...]}``; no rules delete the name."""
        body = await pages.read_body(request, name="", rules=str)
        return await self._write(lambda: self._session.save_rules(body["name"], pages.checked_rules(body["rules"])))

    def plan(self, request: Request) -> Response:
        self._need_groups()
        job, state = self._worker.job, self._state()
        lines: dict[str, list[Move | Skip]] = {"failed": [], "stays": [], "moves": [], "moved": []}
        # Ask the state whether the job runs: a job that has just ended would show its end, but no lines.
        if job is not None and not state["job"]["is_running"]:
            for path, planned in job.planned.items():
                outcome = job.outcomes.get(path)
                is_left = "stays" if isinstance(planned, Skip) else "moves"
                lines[is_left if outcome is None else "moved" if outcome.done else "failed"].append(planned)
        sizes = {title: sum(map(_size, of_title)) for title, of_title in lines.items()}
        values = {"sizes": sizes, "outcomes": job.outcomes if job is not None else {}, "most": _LINES}
        return self._page("plan.html.j2", state, lines=lines, start=pages.read_number(request, "start"), **values)

    async def make_plan(self, request: Request) -> Response:
        body = await pages.read_body(request, merge_metadata=False)
        return await self._write(lambda: self._worker.plan(**body))

    async def apply(self, request: Request) -> Response:
        body = await pages.read_body(request, plan=0)
        return await self._write(lambda: self._worker.apply(body["plan"]))

    def history(self, _request: Request) -> Response:
        state, job = self._state(), self._worker.job
        failed = [] if job is None else [one for one in list(job.outcomes.values()) if not one.done]
        return self._page("history.html.j2", state, failed=failed, items=self._session.history())

    async def restore(self, request: Request) -> Response:
        run = request.path_params["run"]
        if run not in {item.run for item in self._session.history()}:
            raise HTTPException(404, "there is no such run")
        return await self._write(lambda: self._worker.restore(run))

    def _html(self, template: str, **values: Any) -> Response:
        return HTMLResponse(self._templates.get_template(template).render(values))

    def _page(self, template: str, state: dict[str, Any], **values: Any) -> Response:
        """Render a page. Read ``state`` before all that the page shows: a change meanwhile then reloads the page."""
        return self._html(template, session=self._session, state=state, **values)

    async def _write(self, act: Callable[[], object]) -> Response:
        self._need_groups()
        await run_in_threadpool(act)
        return JSONResponse(await run_in_threadpool(self._state))

    def _state(self) -> dict[str, Any]:
        session, job = self._session, self._worker.job
        return {
            "version": session.version,
            "phase": session.phase,
            "error": session.error,
            "notice": session.notice,
            "progress": [[what, done, total] for what, (done, total) in list(session.progress.items())],
            "totals": [total._asdict() for total in session.groups.totals()] if session.phase == READY else [],
            "job": job
            and {
                **{name: getattr(job, name) for name in _OF_A_JOB},
                "is_current": job.choices == session.choices_version,
            },
        }

    def _need_groups(self) -> None:
        if self._session.phase != READY:
            raise HTTPException(409, "the search has not finished")

    def _found(self, request: Request) -> FoundGroup:
        self._need_groups()
        found = self._session.groups.get(request.path_params["number"])
        if found is None:
            raise HTTPException(404, "there is no such group")
        return found


def _size(planned: Move | Skip) -> int:
    if isinstance(planned, Skip):
        return planned.photo.size_bytes
    return planned.duplicate.size_bytes if planned.folder else 0


def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, CannotChoose):
        said, status = str(error), error.status
    else:
        assert isinstance(error, HTTPException)
        said, status = error.detail, error.status_code
    if request.headers.get("sec-fetch-mode") != "navigate":
        return JSONResponse({"error": said}, status)
    said = escape(said[:1].upper() + said[1:])
    page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{said}</title><h1>{said}</h1>'
    return HTMLResponse(f"{page}<p>Go back, or open the address that the terminal shows.</p></html>", status)
