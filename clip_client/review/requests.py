"""What the application reads from requests: filters, numbers, and JSON bodies. What is malformed is refused here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException

from clip_client.dedup.store.choices import KEEP, OPEN, SKIP
from clip_client.dedup.store.decisions import DIFFERENT, KEEP_ALL
from clip_client.review.state.found_groups import APPLIED, STAGED, Filter
from clip_client.review.state.photo_search import Wanted
from clip_client.search.filters import FILTERS

if TYPE_CHECKING:
    from starlette.requests import Request

STATE_NAMES: Final = {
    OPEN: "undecided",
    KEEP: "one stays",
    KEEP_ALL: "keep all",
    DIFFERENT: "different photos",
    SKIP: "skipped",
    APPLIED: "applied",
}


def read_filter(request: Request) -> Filter:
    """Read ``tier``, ``holds``, ``state`` and ``text`` of the query."""
    return checked_filter(**{name: request.query_params.get(name, "") for name in vars(Filter())})


def checked_filter(**given: str) -> Filter:
    """Return a filter, unless its state is unknown."""
    wanted = Filter(**given)
    if wanted.state not in ("", STAGED, *STATE_NAMES):
        raise HTTPException(400, f"a state is one of {', '.join((*STATE_NAMES, STAGED))}")
    return wanted


def read_wanted(request: Request) -> Wanted:
    """Read what to search for, and the filters; a text has at most 2,000 characters."""
    given = {name: text[:2000] for name, text in request.query_params.items()}
    demands = {name: text for name in FILTERS if (text := given.get(name, "").strip())}
    return Wanted(filter=demands, **{name: given.get(name, "") for name in ("q", "photo", "like")})


def query_of(wanted: Filter | None, **more: object) -> str:
    """Return the filter and ``more`` as the query of an address, with its question mark; empty for the first groups."""
    used = {name: value for name, value in {**vars(wanted or Filter()), **more}.items() if value}
    return f"?{urlencode(used)}" if used else ""


def used_rules(rules: list[str]) -> list[str]:
    """Leave out what a form sends for rules without an argument, such as ``folder=``."""
    if len(rules) > 100 or any(len(rule) > 5000 for rule in rules):
        raise HTTPException(400, "at most 100 rules of at most 5000 characters")
    return [rule for rule in rules if rule and not rule.endswith("=")]


def read_number(request: Request, name: str, *, default: int = 0, most: int = 10**9) -> int:
    """Read a number of the query."""
    return next(iter(read_numbers(request, name, most=most)), default)


def read_numbers(request: Request, name: str, *, most: int = 10**9) -> list[int]:
    """Read the numbers of this name in the query."""
    texts = request.query_params.getlist(name)
    if not all(text.isascii() and text.isdigit() and len(text) < 16 and int(text) <= most for text in texts):
        raise HTTPException(400, f"{name} is a number from 0 to {most}")
    return list(map(int, texts))


async def read_body(request: Request, **expected: Any) -> list[Any]:
    """Read values of the JSON object in the body, in the order in which they are ``expected``.

    An expected value is the default, whose type the value has. If it is a type, the value is a list of that type.
    """
    try:
        values = json.loads(await request.body() or b"{}")
    except ValueError:
        raise HTTPException(400, "the body is no JSON") from None
    if not isinstance(values, dict):
        raise HTTPException(400, "the body is no JSON object")
    found = []
    for name, default in expected.items():
        value = values.get(name, [] if isinstance(default, type) else default)
        wanted = list if isinstance(default, type) else type(default)
        if type(value) is not wanted or (wanted is list and any(type(one) is not default for one in value)):
            raise HTTPException(400, f"{name} has the wrong type")
        found.append(value)
    return found
