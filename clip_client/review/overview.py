"""How many groups there are of each tier and in each state, and how many decisions wait to be applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clip_client.dedup.reporting.words import TIER_NAMES
from clip_client.dedup.store.choices import KEEP, OPEN
from clip_client.review.state.found_groups import APPLIED, STAGED_STATES
from clip_client.review.views import STATE_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clip_client.review.state.found_groups import Total


@dataclass(frozen=True)
class Option:
    """One choice of a filter."""

    key: str
    """Empty for all."""
    name: str
    groups: int


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The numbers above the list, and on the button that applies."""

    groups: int
    decided: int
    spare_bytes: int
    """Of all groups that have not been applied."""
    staged: int
    """Decisions that have not been applied."""
    staged_bytes: int
    tiers: tuple[Option, ...]
    states: tuple[Option, ...]


def overview(totals: Sequence[Total]) -> Overview:
    """Sum up the groups of one search."""

    def groups(chosen: Sequence[Total]) -> int:
        return sum(total.groups for total in chosen)

    def options(field: int, names: dict[str, str]) -> tuple[Option, ...]:
        counts = {key: groups([total for total in totals if total[field] == key]) for key in names}
        return tuple(Option(key, names[key], count) for key, count in counts.items() if count)

    staged = [total for total in totals if total.state in STAGED_STATES]
    return Overview(
        groups=groups(totals),
        decided=groups([total for total in totals if total.state != OPEN]),
        spare_bytes=sum(total.spare_bytes for total in totals if total.state != APPLIED),
        staged=groups(staged),
        staged_bytes=sum(total.spare_bytes for total in staged if total.state == KEEP),
        tiers=(Option("", "All", groups(totals)), *options(0, TIER_NAMES)),
        states=(Option("", "all", groups(totals)), *options(1, STATE_NAMES)),
    )
