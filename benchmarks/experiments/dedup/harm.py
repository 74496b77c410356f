"""What moves do to the photos of a case, and what a count of harm says about its rate."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import imagehash
from PIL import Image, UnidentifiedImageError
from scipy.special import betaincinv  # type: ignore[import-untyped,unused-ignore]

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from benchmarks.experiments.dedup.applied import Applied
    from benchmarks.fixtures.copies.case import Case

HASH_BITS: Final = 10
"""Of 64: up to this many may differ for two pictures to be duplicates, by the default of imagededup."""
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, kw_only=True)
class Harm:
    """The files of a case that moved although no file that stayed shows all of them."""

    harmful: tuple[Path, ...]
    below: tuple[Path, ...]
    """Those of which what is lost is below the limits."""


def harm_of(case: Case, moved: Collection[Path]) -> Harm:
    """Return what is lost if ``moved`` leave, whatever file they leave for."""
    stay = {number for number, path in enumerate(case.files) if path not in moved}
    lost = [
        number for number, path in enumerate(case.files) if path in moved and stay.isdisjoint(case.shown_by[number])
    ]
    below = {number for number in lost if not stay.isdisjoint(case.nearly_shown_by[number])}
    return Harm(
        harmful=tuple(case.files[number] for number in lost if number not in below),
        below=tuple(case.files[number] for number in sorted(below)),
    )


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
        harm = harm_of(case, moved)
        counts[f"moved_{name}"] = int(not own.isdisjoint(moved))
        counts[f"harmful_{name}"] = int(bool(harm.harmful))
        counts[f"below_{name}"] = int(bool(harm.below))
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
