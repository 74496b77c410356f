"""Routes that show groups and photos, and record what a person chooses about them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from anyio import CapacityLimiter, to_thread
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from clip_client.review.requests import MOST_ROWS, Body, Routes, query_of, read_filter, read_number, read_numbers
from clip_client.review.state.previews import SIZES, Previews
from clip_client.review.state.refusal import Busy, CannotChoose
from clip_client.review.state.session import READY, SCANNING
from clip_client.review.views import group_view

if TYPE_CHECKING:
    from starlette.requests import Request

    from clip_client.review.state.applying import Worker
    from clip_client.review.state.found_groups import FoundGroup
    from clip_client.review.state.session import Session

_ROWS: Final = 50
_MOST_DECODED: Final = 3
"""Photos at once. They have threads of their own, so that pages never wait for them."""


class GroupRoutes(Routes):
    """The routes."""

    def __init__(self, session: Session, worker: Worker) -> None:
        super().__init__(session, worker)
        self._previews = Previews(session.store.directory / "previews")
        self._decoding = CapacityLimiter(_MOST_DECODED)

    def groups(self, request: Request) -> Response:
        """The list of groups, or how far the search is, or why it failed."""
        state = self._state()
        if state["phase"] != READY:
            return self._page("scanning.html.j2" if state["phase"] == SCANNING else "failed.html.j2", state)
        return self._page("groups.html.j2", state, **self._rows(request))

    def rows(self, request: Request) -> Response:
        """The rows of the list."""
        self._need_groups()
        return self._html("rows.html.j2", **self._rows(request))

    def _rows(self, request: Request) -> dict[str, Any]:
        wanted = read_filter(request)
        start = read_number(request, "start", default=0, most=10**9)
        most = read_number(request, "most", default=_ROWS, most=MOST_ROWS)
        return {
            "wanted": wanted,
            "query": query_of(wanted),
            "start": start,
            "most": most,
            "count": self._session.groups.count(wanted),
            "groups": [group_view(found) for found in self._session.groups.page(wanted, start=start, most=most)],
        }

    def group(self, request: Request) -> Response:
        """One group."""
        state = self._state()
        found, wanted = self._found(request), read_filter(request)
        before, after = self._session.groups.neighbours(found.id, wanted)
        return self._page(
            "group.html.j2",
            state,
            group=group_view(found, problem_of=self._session.problem_of),
            is_undone=found.is_undone,
            before=before,
            after=after,
            wanted=wanted,
            query=query_of(wanted),
        )

    def plan(self, request: Request) -> Response:
        """Why photos of a group would stay."""
        found = self._found(request)
        view = group_view(found)
        keep = read_number(request, "keep", default=view.keep, most=10**6)
        move = [member.place for member in view.members if member.moves]
        if "keep" in request.query_params:
            move = read_numbers(request, "move", most=10**6)
        try:
            return JSONResponse(self._session.refusals(found, keep, move))
        except CannotChoose as error:
            raise HTTPException(error.status, str(error)) from None

    async def photo(self, request: Request) -> Response:
        """A picture of a photo."""
        sha256, size = request.path_params["sha256"], request.path_params["size"]
        paths = self._session.groups.paths(sha256)
        if size not in SIZES or not paths:
            raise HTTPException(404, "there is no such picture")
        jpeg = await to_thread.run_sync(partial(self._previews.jpeg, sha256, paths, size), limiter=self._decoding)
        if jpeg is None:
            raise HTTPException(404, "the photo cannot be shown: it is gone, has changed, or cannot be decoded")
        # The address names the content, so it never shows anything else.
        return Response(jpeg, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600, immutable"})

    def state(self, _request: Request) -> Response:
        """What changes."""
        return JSONResponse(self._state())

    async def choose(self, request: Request) -> Response:
        """Record a choice."""
        number = self._found(request).id
        body = await Body.of(request)
        what, keep, move = body.one("what", ""), body.one("keep", 0), body.several("move", int)
        return await self._write(lambda: self._session.choose(number, what, keep=keep, move=move))

    async def take_back(self, _request: Request) -> Response:
        """Undo the last step."""
        self._need_groups()

        def take_back() -> None:
            if not self._session.take_back():
                raise Busy("there is no choice to take back; the history lists what was applied")

        return await self._write(take_back)

    def _found(self, request: Request) -> FoundGroup:
        self._need_groups()
        found = self._session.groups.get(request.path_params["number"])
        if found is None:
            raise HTTPException(404, "there is no such group")
        return found
