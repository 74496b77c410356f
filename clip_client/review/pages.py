"""Read the requests of the pages, and prepare the values for the templates."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from starlette.exceptions import HTTPException
from starlette.requests import Request

from clip_client._files import printable
from clip_client.dedup.files.file_types import suffix_of
from clip_client.dedup.pages.html import page_environment
from clip_client.dedup.pages.previews import fit
from clip_client.dedup.pages.words import TIER_NAMES
from clip_client.dedup.photo import Photo
from clip_client.dedup.store.choices import KEEP, OPEN, SKIP
from clip_client.dedup.store.decisions import DIFFERENT, KEEP_ALL
from clip_client.dedup.text import folder_above
from clip_client.dedup.types import SAFE_TIERS
from clip_client.review.state.found_groups import APPLIED, STAGED, STAGED_STATES, Filter
from clip_client.search.filters import FILTERS

_STATE_NAMES: Final = {
    OPEN: "undecided",
    KEEP: "one stays",
    KEEP_ALL: "keep all",
    DIFFERENT: "different photos",
    SKIP: "skipped",
    APPLIED: "applied",
}
_SIDES: Final = {"small": 112, "large": 480}
"""Name of a size in the address of a picture -> longest side of a 4:3 picture on the pages, in CSS pixels."""


def read_filter(given: Mapping[str, Any]) -> Filter:
    wanted = Filter(**{name: given.get(name, "") for name in vars(Filter())})
    if wanted.state not in ("", STAGED, *_STATE_NAMES):
        raise HTTPException(400, f"a state must be one of {', '.join((*_STATE_NAMES, STAGED))}")
    return wanted


def query_of(wanted: Filter | None, **more: object) -> str:
    used = {name: value for name, value in {**vars(wanted or Filter()), **more}.items() if value}
    return f"?{urlencode(used)}" if used else ""


def checked_rules(rules: list[str]) -> list[str]:
    if len(rules) > 100 or any(len(rule) > 5000 for rule in rules):
        raise HTTPException(400, "at most 100 rules of at most 5000 characters")
    return rules


def read_number(request: Request, name: str, *, default: int = 0, most: int = 10**9) -> int:
    return next(iter(read_numbers(request, name, most=most)), default)


def read_numbers(request: Request, name: str, *, most: int = 10**9) -> list[int]:
    texts = request.query_params.getlist(name)
    if not all(text.isascii() and text.isdigit() and len(text) < 16 and int(text) <= most for text in texts):
        raise HTTPException(400, f"{name} must be a number from 0 to {most}")
    return list(map(int, texts))


async def read_body(request: Request, **expected: Any) -> dict[str, Any]:
    """Read the ``expected`` values of the JSON object in the body.

    An ``expected`` value is the default, and sets the type of the value. If it is a type, the value is a list of that
    type. Raises HTTPException (400) for other values.
    """
    try:
        values = json.loads(await request.body() or b"{}")
    except ValueError:
        raise HTTPException(400, "the body is not JSON") from None
    if not isinstance(values, dict):
        raise HTTPException(400, "the body is not a JSON object")
    found = {}
    for name, default in expected.items():
        value = values.get(name, [] if isinstance(default, type) else default)
        wanted = list if isinstance(default, type) else type(default)
        if type(value) is not wanted or (wanted is list and any(type(one) is not default for one in value)):
            raise HTTPException(400, f"{name} has the wrong type")
        found[name] = value
    return found


def environment(roots: Sequence[str]) -> jinja2.Environment:
    shared = jinja2.PrefixLoader({"report": jinja2.PackageLoader("clip_client.dedup.pages")})
    loader = jinja2.ChoiceLoader([jinja2.PackageLoader("clip_client.review"), shared])
    made = page_environment(loader, folder_above(roots))
    made.filters.update(
        ending=lambda path: suffix_of(path)[1:].upper(),
        fitted=lambda size, name: fit(size[0], size[1], _SIDES[name]),
        preferred=_preferred,
        run_time=_run_time,
    )
    made.globals.update(filters=FILTERS, overview=_overview, query_of=query_of)
    made.globals.update(safe_tiers=SAFE_TIERS, state_names=_STATE_NAMES)
    return made


def _preferred(photo: Photo) -> str:
    """Return the photo's folder as a keep rule names it; empty if a form cannot hold the name, as with a line break."""
    folder = photo.in_library.library if photo.in_library is not None else os.path.dirname(photo.path)
    folder = os.path.join(folder, "")
    return folder if printable(folder) == folder else ""


def _run_time(run: str, between: str) -> str:
    """Return the local time of a run: ``"20261122-181502-1a2b3c4d"`` becomes ``"2026-11-22 18:15"``."""
    return f"{run[:4]}-{run[4:6]}-{run[6:8]}{between}{run[9:11]}:{run[11:13]}"


def _overview(totals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def count(chosen: Sequence[Mapping[str, Any]]) -> int:
        return sum(total["groups"] for total in chosen)

    def options(field: str, names: Mapping[str, str]) -> list[tuple[str, str, int]]:
        counts = {key: count([total for total in totals if total[field] == key]) for key in names}
        return [("", "all", count(totals)), *((key, names[key], of) for key, of in counts.items() if of)]

    staged = [total for total in totals if total["state"] in STAGED_STATES]
    return {
        "groups": count(totals),
        "decided": count([total for total in totals if total["state"] != OPEN]),
        "leaving_bytes": sum(total["leaving_bytes"] for total in totals if total["state"] in (OPEN, KEEP)),
        "staged": count(staged),
        "staged_bytes": sum(total["leaving_bytes"] for total in staged),
        "tiers": options("tier", TIER_NAMES),
        "states": options("state", _STATE_NAMES),
    }


def better_ones(photos: Sequence[Photo]) -> dict[str, set[int]]:
    """Return field -> positions of the photos with the best value of the field, if other photos have a worse value."""
    values: dict[str, list[float]] = {
        "pixels": [photo.width * photo.height for photo in photos],
        "taken": [bool(photo.metadata.taken) for photo in photos],
        "companions": [len(photo.companions) for photo in photos],
    }
    return {
        field: {place for place, value in enumerate(of_each) if min(of_each) < value == max(of_each)}
        for field, of_each in values.items()
    }
