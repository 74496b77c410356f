"""What ``dedup --apply`` moves in a folder, what that does to the photos of a case, and what a count of harm says."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import imagehash
from PIL import Image, UnidentifiedImageError
from scipy.special import betaincinv  # type: ignore[import-untyped,unused-ignore]

from clip_client.dedup import find_duplicates
from clip_client.dedup.actions.plan import plan_moves
from clip_client.dedup.types import EDITED, SAFE_TIERS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from benchmarks.fixtures.copies.case import Case
    from clip_client import ClipClient
    from clip_client.dedup import Store

HASH_BITS: Final = 10
"""Of 64: up to this many may differ for two pictures to be duplicates, by the default of imagededup."""
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What was found in a folder, and what moves."""

    by_default: frozenset[Path]
    """Files that a plain ``--apply`` moves."""
    on_request: frozenset[Path]
    """Those, and the files that ``--act-on edited`` moves."""
    groups: tuple[frozenset[Path], ...]
    """Files that the report shows together."""


async def applied(clip: ClipClient, folder: Path, store: Store) -> Applied:
    """Search ``folder`` as the command does, and plan the moves."""
    report = await find_duplicates(clip, [folder], store=store)
    by_default, on_request = (
        frozenset(Path(move.duplicate.path) for move in plan_moves(report, [folder], tiers=tiers).moves)
        for tiers in (SAFE_TIERS, (*SAFE_TIERS, EDITED))
    )
    groups = tuple(frozenset(Path(member.path) for member in group.members) for group in report.groups)
    return Applied(by_default=by_default, on_request=by_default | on_request, groups=groups)


def harm_of(case: Case, moved: Collection[Path]) -> tuple[list[Path], list[Path]]:
    """Return the files of a case that no file that stays shows, if ``moved`` leave; and those lost below the limits."""
    stay = {number for number, path in enumerate(case.files) if path not in moved}
    harmful: list[Path] = []
    below: list[Path] = []
    for number, path in enumerate(case.files):
        if path in moved and stay.isdisjoint(case.shown_by[number]):
            (harmful if stay.isdisjoint(case.nearly_shown_by[number]) else below).append(path)
    return harmful, below


def upper_bound(events: int, trials: int) -> float:
    """Return the share that the true share does not exceed, with 95 % confidence: Clopper and Pearson's, one-sided.

    With no event this is 1 - 0.05 ** (1 / trials), about 3 / trials, the rule of three. Without a trial it is 1.
    """
    return float(betaincinv(events + 1, trials - events, CONFIDENCE)) if events < trials else 1.0


def removed_by_hash(paths: Sequence[Path]) -> frozenset[Path]:
    """Return the files that a search by perceptual hash deletes, as imagededup does: all but the first that are alike.

    The hash is that of imagededup but for the median, which includes the mean brightness here: a bit in 64. A HEIC is
    alike to none, because Pillow alone cannot read it.
    """
    hashes = {}
    for path in sorted(paths):
        with suppress(UnidentifiedImageError), Image.open(path) as image:
            hashes[path] = imagehash.phash(image.convert("RGB"))
    removed: set[Path] = set()
    for path, own in hashes.items():
        if path not in removed:
            removed |= {other for other in hashes if other > path and hashes[other] - own <= HASH_BITS}
    return frozenset(removed)


def counted(case: Case, applied: Applied, removed: Collection[Path]) -> Counter[str]:
    """Return the counts of one case, each 0 or 1: what moved, what was only found, and what was lost."""
    truths = zip(case.shown_by, case.nearly_shown_by, strict=True)
    counts: Counter[str] = Counter(cases=1, can_harm=int(not all(shown or nearly for shown, nearly in truths)))
    own = set(case.files)
    for name, moved in (("default", applied.by_default), ("request", applied.on_request), ("hash", removed)):
        harmful, below = harm_of(case, moved)
        counts[f"moved_{name}"] = int(not own.isdisjoint(moved))
        counts[f"harmful_{name}"] = int(bool(harmful))
        counts[f"below_{name}"] = int(bool(below))
    is_found = any(len(own & group) > 1 for group in applied.groups)
    counts["only_found"] = int(is_found and own.isdisjoint(applied.on_request))
    return counts


def summed(rows: Iterable[Counter[str]]) -> dict[str, Any]:
    """Return the sum of counts, with the upper bounds of the share of cases that lost something."""
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row)
    bounds = {
        f"bound_{name}": upper_bound(total[f"harmful_{name}"], total["can_harm"]) for name in ("default", "request")
    }
    return {**total, **bounds}
