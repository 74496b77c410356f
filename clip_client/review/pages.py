"""What the templates of the pages show. They share the design of the report and parts of its templates."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jinja2

from clip_client.dedup.files.file_types import suffix_of
from clip_client.dedup.reporting.html import page_environment
from clip_client.dedup.reporting.previews import fit
from clip_client.dedup.reporting.words import TIER_NAMES
from clip_client.dedup.store.choices import KEEP, OPEN
from clip_client.dedup.text import folder_above, printable
from clip_client.dedup.types import SAFE_TIERS
from clip_client.review.requests import STATE_NAMES, query_of
from clip_client.review.state.found_groups import APPLIED, STAGED_STATES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clip_client.dedup.photo import Photo

SIDES: Final = {"small": 112, "large": 480}
"""Longest side of a 4:3 picture on the pages, in CSS pixels, by the size that its address names."""


class Option(NamedTuple):
    """One choice of a filter."""

    key: str
    """Empty for all."""
    name: str
    groups: int


def environment(roots: Sequence[str]) -> jinja2.Environment:
    """Return the environment of all templates; they escape what they show. ``roots`` is what was searched."""
    shared = jinja2.PrefixLoader({"report": jinja2.PackageLoader("clip_client.dedup.reporting")})
    loader = jinja2.ChoiceLoader([jinja2.PackageLoader("clip_client.review"), shared])
    made = page_environment(loader, folder_above(roots))
    made.filters.update(ending=_ending, fitted=_fitted, preferred=_preferred, run_time=_run_time)
    made.globals.update(overview=_overview, query_of=query_of, safe_tiers=SAFE_TIERS, state_names=STATE_NAMES)
    return made


def _ending(path: str) -> str:
    """Return the ending of a file's name, in capitals."""
    return suffix_of(path)[1:].upper()


def _fitted(size: tuple[int, int], name: str) -> tuple[int, int]:
    """Return width and height of a photo of this size on the page; never more than it has."""
    return fit(*size, SIDES[name])


def _preferred(photo: Photo) -> str:
    """Return its folder as a keep rule names it; empty if a form cannot hold that name, as with a line break in it."""
    folder = photo.in_library.library if photo.in_library is not None else os.path.dirname(photo.path)
    folder = os.path.join(folder, "")
    return folder if printable(folder) == folder else ""


def _run_time(run: str, between: str) -> str:
    """Return when a run was, by the clock of its computer: ``"20261122-181502-1a2b3c4d"`` is ``"2026-11-22 18:15"``."""
    return f"{run[:4]}-{run[4:6]}-{run[6:8]}{between}{run[9:11]}:{run[11:13]}"


def _overview(totals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum up the groups of one search: the numbers above the list, and on the button that applies."""

    def count(chosen: Sequence[Mapping[str, Any]]) -> int:
        return sum(total["groups"] for total in chosen)

    def options(field: str, names: Mapping[str, str]) -> list[Option]:
        counts = {key: count([total for total in totals if total[field] == key]) for key in names}
        return [Option("", "all", count(totals)), *(Option(key, names[key], of) for key, of in counts.items() if of)]

    staged = [total for total in totals if total["state"] in STAGED_STATES]
    return {
        "groups": count(totals),
        "decided": count([total for total in totals if total["state"] != OPEN]),
        "spare_bytes": sum(total["spare_bytes"] for total in totals if total["state"] != APPLIED),
        "staged": count(staged),
        "staged_bytes": sum(total["spare_bytes"] for total in staged if total["state"] == KEEP),
        "tiers": options("tier", TIER_NAMES),
        "states": options("state", STATE_NAMES),
    }


def better_ones(photos: Sequence[Photo]) -> dict[str, set[int]]:
    """Return field -> the positions of the photos with its best value, if there is a worse one."""
    values: dict[str, list[float]] = {
        "pixels": [photo.width * photo.height for photo in photos],
        "taken": [bool(photo.metadata.taken) for photo in photos],
        "companions": [len(photo.companions) for photo in photos],
    }
    return {
        field: {place for place, value in enumerate(of_each) if min(of_each) < value == max(of_each)}
        for field, of_each in values.items()
    }
