"""The templates of the pages. They share the design of the report, and parts of its templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import jinja2

from clip_client.dedup.reporting.environment import page_environment
from clip_client.dedup.reporting.previews import fit
from clip_client.dedup.text import folder_above, printable
from clip_client.dedup.types import is_random, tells_alike
from clip_client.review.overview import Overview, overview
from clip_client.review.state.found_groups import Total
from clip_client.review.views import STATE_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clip_client.review.state.found_groups import Filter
    from clip_client.review.views import MemberView

SIDES: Final = {"small": 112, "large": 480}
"""Longest side of a 4:3 picture on the pages, in CSS pixels, by the size that its address names."""


def environment(roots: Sequence[str]) -> jinja2.Environment:
    """Return the environment of all templates; they escape what they show. ``roots`` is what was searched."""
    above = printable(folder_above(roots))
    shared = jinja2.PrefixLoader({"report": jinja2.PackageLoader("clip_client.dedup.reporting")})
    made = page_environment(jinja2.ChoiceLoader([jinja2.PackageLoader("clip_client.review"), shared]))
    made.filters.update(
        below=lambda folder: folder.removeprefix(above),
        fitted=_fitted,
        is_random=is_random,
        tells_alike=tells_alike,
        run_time=_run_time,
        zip=zip,
    )
    made.globals.update(list_url=_list_url, overview=_overview, state_names=STATE_NAMES)
    return made


def _fitted(member: MemberView, size: str) -> tuple[int, int]:
    """Return width and height of a photo on the page; never more than it has."""
    return fit(member.width, member.height, SIDES[size])


def _overview(state: Mapping[str, Any]) -> Overview:
    return overview([Total(**total) for total in state["totals"]])


def _list_url(wanted: Filter) -> str:
    """Return the address of the list, without the number of the first group."""
    used = {name: value for name, value in vars(wanted).items() if value}
    return f"./?{urlencode({**used, 'start': ''})}"


def _run_time(run: str, between: str) -> str:
    """Return when a run was, by the clock of its computer: ``"20261122-181502-1a2b3c4d"`` is ``"2026-11-22 18:15"``."""
    return f"{run[:4]}-{run[4:6]}-{run[6:8]}{between}{run[9:11]}:{run[11:13]}"
