"""Which photos does ``dedup --apply`` move, and what would be lost with them?

Every case is a few files of which it is known which of them show all that another one shows
(``fixtures.copies.case`` says what counts as a loss). The cases of a class lie in one folder, which is searched as the
command does. The plan of ``--apply`` is then judged by the truth, with and without ``--act-on edited``. Beside it is
what a perceptual hash would delete. The cases are drawn from seeds, so another seed is another set. ``--holdout`` adds
cases that other tools make of other photos, with other fonts. A count of harm is stated with the share of cases that it
does not exclude, with 95 % confidence (Clopper and Pearson's bound). The data are not those of DISC21 or AnyPattern,
whose edits they imitate, so no figure here compares with theirs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.experiments.dedup.harm import applied, counted, harm_of, removed_by_hash, summed
from benchmarks.fixtures.copies.generator import write_cases
from benchmarks.fixtures.copies.holdout import write_holdout
from benchmarks.fixtures.copies.holdout_tools import missing_tools
from benchmarks.harness.checkpoint import CHECKPOINTS, say
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option
from clip_client import ClientConfig, ClipClient
from clip_client.dedup import Store
from clip_client.dedup.types import is_random

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.fixtures.copies.case import Case

HOLDOUT: Final = "holdout"
TOTAL: Final = "all"
RECALL: Final = "copy: "
"""Classes of re-encoded copies, which a plain ``--apply`` should move: only the encoding or the size was changed."""
_TIMEOUT_S: Final = 3600.0
"""Long, because the rate does not matter here and a busy machine is slow."""


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
                by_default, _ = harm_of(case, found.by_default)
                harmful += [
                    {"kind": kind, "file": f"{path.parent.name}/{path.name}", "by_default": path in by_default}
                    for path in harm_of(case, found.on_request)[0]
                ]
            say(f"{kind}: {rows[kind]['cases']} cases, {rows[kind]['harmful_request']} with harm")
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
    """Write each set, and judge what moves."""
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
