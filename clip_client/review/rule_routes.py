"""Routes that choose for many groups at once, by keep rules, and save rules under a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from clip_client.dedup.compare.keep_rules import DEFAULT_RULES, KeepRules
from clip_client.review.requests import Body, Routes, checked_filter, query_of, read_filter
from clip_client.review.state.bulk import Bulk
from clip_client.review.state.refusal import CannotChoose

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from clip_client.review.state.applying import Worker
    from clip_client.review.state.session import Session


class RuleRoutes(Routes):
    """The routes."""

    def __init__(self, session: Session, worker: Worker) -> None:
        super().__init__(session, worker)
        self._bulk = Bulk(session)

    def rules(self, request: Request) -> Response:
        """The rules, and what is saved."""
        self._need_groups()
        state = self._state()
        wanted = read_filter(request)
        with self._session.lock:
            saved = self._session.store.settings.keep_rules()
        query = query_of(wanted)
        return self._page("rules.html.j2", state, rules=DEFAULT_RULES, saved=saved, wanted=wanted, query=query)

    def count(self, request: Request) -> Response:
        """How much the rules would choose: a part of a page."""
        self._need_groups()
        try:
            params = request.query_params
            count = self._bulk.count(read_filter(request), _used(params.getlist("rule")), params.getlist("also"))
        except CannotChoose as error:
            return self._html("counts.html.j2", count=None, error=str(error))
        return self._html("counts.html.j2", count=count, error="")

    async def choose(self, request: Request) -> Response:
        """Choose by rules."""
        self._need_groups()
        body = await Body.of(request)
        wanted = checked_filter(tier=body.one("tier", ""), state=body.one("state", ""), text=body.one("text", ""))
        rules, also = _used(body.several("rules", str)), body.several("also", str)
        return await self._write(lambda: self._bulk.choose(wanted, rules, also))

    async def save(self, request: Request) -> Response:
        """Save rules under a name; no rules delete the name."""
        body = await Body.of(request)
        name, rules = body.one("name", ""), _used(body.several("rules", str))

        def save() -> None:
            settings = self._session.store.settings
            with self._session.lock:
                if not rules:
                    settings.delete_keep_rules(name)
                    return
                try:
                    settings.save_keep_rules(name, KeepRules(rules).names)
                except ValueError as error:
                    raise CannotChoose(str(error)) from None

        return await self._write(save)


def _used(rules: list[str]) -> list[str]:
    """Leave out what a form sends for rules without an argument, such as ``folder=``."""
    if len(rules) > 100 or any(len(rule) > 5000 for rule in rules):
        raise HTTPException(400, "at most 100 rules of at most 5000 characters")
    return [rule for rule in rules if rule and not rule.endswith("=")]
