"""Which photos does ``dedup --apply`` move, and what would be lost with them?

Every case is a few files of which it is known which of them show all that another one shows (``fixtures.copies.case``
says what counts as a loss). The cases of a class lie in one folder, which is searched as the command does. The plan of
``--apply`` is then judged by the truth. Beside it is what a perceptual hash would delete. The cases are drawn from
seeds, so another seed is another set. ``--holdout`` adds cases that other tools make of other photos, with other fonts.
A count of harm is stated with the share of cases that it does not exclude, with 95 % confidence (Clopper and Pearson's
bound). The data are not those of DISC21 or AnyPattern, whose edits they imitate, so no figure here compares with
theirs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import imagehash
from PIL import Image, UnidentifiedImageError
from scipy.special import betaincinv  # type: ignore[import-untyped,unused-ignore]

from benchmarks.fixtures.copies.generator import write_cases
from benchmarks.fixtures.copies.holdout import write_holdout
from benchmarks.fixtures.copies.holdout_tools import missing_tools
from benchmarks.harness.experiment import CHECKPOINTS, REPOSITORY, Run, experiment, option, say
from clip_client import ClientConfig, ClipClient
from clip_client.dedup import Store, find_duplicates
from clip_client.dedup.actions.plan import plan_moves
from clip_client.dedup.types import is_random

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from benchmarks.fixtures.copies.case import Case

HOLDOUT: Final = "holdout"
TOTAL: Final = "all"
RECALL: Final = "copy: "
"""Classes of re-encoded copies, which a plain ``--apply`` should move: only the encoding or the size was changed."""
_TIMEOUT_S: Final = 3600.0
"""Long, because the rate does not matter here and a busy machine is slow."""
HASH_BITS: Final = 10
"""Most bits of 64 that may differ between duplicates, by the default of imagededup."""
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The findings in a folder, and the files that move."""

    moved: frozenset[Path]
    """Files that ``--apply`` moves."""
    groups: tuple[frozenset[Path], ...]
    """Files that the report shows together."""


async def applied(clip: ClipClient, folder: Path, store: Store) -> Applied:
    """Search ``folder`` as the command does, and plan the moves."""
    report = await find_duplicates(clip, [folder], store=store)
    moved = frozenset(Path(move.duplicate.path) for move in plan_moves(report, [folder]).moves)
    groups = tuple(frozenset(Path(member.path) for member in group.members) for group in report.groups)
    return Applied(moved=moved, groups=groups)


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
    for name, moved in (("default", applied.moved), ("hash", removed)):
        harmful, below = harm_of(case, moved)
        counts[f"moved_{name}"] = int(not own.isdisjoint(moved))
        counts[f"harmful_{name}"] = int(bool(harmful))
        counts[f"below_{name}"] = int(bool(below))
    is_found = any(len(own & group) > 1 for group in applied.groups)
    counts["only_found"] = int(is_found and own.isdisjoint(applied.moved))
    return counts


def summed(rows: Iterable[Counter[str]]) -> dict[str, Any]:
    """Return the sum of counts, with the upper bound of the share of cases that lost something."""
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row)
    return {**total, "bound_default": upper_bound(total["harmful_default"], total["can_harm"])}


async def judged(url: str, store: Store, cases: list[Case]) -> dict[str, Any]:
    """Search the folder of each class; return class -> counts, and every file that was lost."""
    rows: dict[str, Counter[str]] = {}
    harmful = []
    config = ClientConfig(urls=(url,), timeout_s=_TIMEOUT_S, target_latency_s=_TIMEOUT_S)
    async with ClipClient(config=config) as clip:
        for kind, members in groupby(cases, key=lambda case: case.kind):
            some = list(members)
            found = await applied(clip, some[0].files[0].parents[1], store)
            removed = removed_by_hash([path for case in some for path in case.files])
            rows[kind] = Counter()
            for case in some:
                rows[kind].update(counted(case, found, removed))
                harmful += [
                    {"kind": kind, "file": f"{path.parent.name}/{path.name}"} for path in harm_of(case, found.moved)[0]
                ]
            say(f"{kind}: {rows[kind]['cases']} cases, {rows[kind]['harmful_default']} with harm")
    return {"classes": rows, "harmful": harmful}


@experiment(
    option(
        "--seeds", "--seed", default="1,2,3", help="numbers, each of another set; an empty text for the holdout alone"
    ),
    option("--holdout", action="store_true", help="add the cases that other tools make of other photos"),
    option("--classes", nargs="+", default=[], metavar="WORD", help="only those whose name has one of these (all)"),
    option("--most", type=int, help="most cases of each class (default: all)"),
    REPOSITORY,
    option("--store", type=Path, default=CHECKPOINTS / "accuracy", help="keeps vectors, so that a later run continues"),
)
def measure(run: Run) -> dict[str, Any]:
    options = run.options
    sets: dict[str, Callable[[Path], list[Case]]] = {
        f"seed {seed}": partial(write_cases, seed=int(seed), most=options.most, words=options.classes)
        for seed in filter(None, options.seeds.split(","))
    }
    missing = missing_tools() if options.holdout else []
    if missing:
        say(f"left out: the holdout needs {', '.join(missing)}")
    elif options.holdout:
        sets[HOLDOUT] = partial(write_holdout, most=options.most, words=options.classes)
    url = run.serve().grpc_url
    store = run.stack.enter_context(Store(options.store))
    found = {
        name: run.saved.cell(name, partial(_measured, write, run.scratch / name, url, store))
        for name, write in sets.items()
    }
    model = run.passport.id
    return {"model": model, "random_weights": is_random(model), "left_out": missing, **summary(found)}


def _measured(write: Callable[[Path], list[Case]], folder: Path, url: str, store: Store) -> dict[str, Any]:
    return asyncio.run(judged(url, store, write(folder)))


def summary(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the sums over the seeds, and those of the holdout: class -> counts and bounds, with all and the recall."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for name, one in found.items():
        parts.setdefault(HOLDOUT if name == HOLDOUT else "seeds", []).append(one["classes"])
    result = {}
    for part, sets in parts.items():
        kinds = list(dict.fromkeys(kind for classes in sets for kind in classes))
        rows = {kind: summed(Counter(classes[kind]) for classes in sets if kind in classes) for kind in kinds}
        rows[TOTAL] = summed(Counter(row) for classes in sets for row in classes.values())
        copies = [row for kind, row in rows.items() if kind.startswith(RECALL)]
        recall = sum(row["moved_default"] for row in copies) / max(1, sum(row["cases"] for row in copies))
        result[part] = {"sets": len(sets), "classes": rows, "recall_of_copies": recall}
    return result
