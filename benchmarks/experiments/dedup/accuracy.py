"""Which photos does ``dedup --apply`` move, and what would be lost with them?

A case is a few files with a known truth: which file shows all that another file shows. ``fixtures.copies.case`` says
what counts as a loss. Cases are true copies, which one tool made in one step, and fakes, which a person can tell apart.
Each case is searched by itself, without a model, and the plan of ``--apply`` is judged by the truth. The table also
counts what a perceptual hash would delete. Another seed draws another set. The bound of a share of harm has 95 %
confidence (Clopper and Pearson).

``--originals DIR`` draws from JPEG files as cameras wrote them; ``python -m benchmarks originals DIR`` fetches some.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import imagehash
from PIL import Image, UnidentifiedImageError
from scipy.special import betaincinv  # type: ignore[import-untyped,unused-ignore]

from benchmarks.fixtures.copies.generator import COPY, kinds, write
from benchmarks.fixtures.copies.photos import camera_files
from benchmarks.harness.experiment import Run, experiment, option
from clip_client.dedup import Store, find_duplicates
from clip_client.dedup.actions.plan import plan_moves

if TYPE_CHECKING:
    from benchmarks.fixtures.copies.case import Case

TOTAL: Final = "all"
HASH_BITS: Final = 10
"""Most bits of 64 that may differ between duplicates, by the default of imagededup."""
CONFIDENCE: Final = 0.95


def moves_in(folder: Path) -> tuple[dict[Path, Path], bool]:
    """Search ``folder`` as the command does, without a model.

    Return what ``--apply`` moves -> the file that it keeps instead, and whether there is a group.
    """
    with Store() as store:
        report = asyncio.run(find_duplicates(None, [folder], store=store))
    moves = plan_moves(report, [folder]).moves
    return {Path(move.duplicate.path): Path(move.kept.path) for move in moves}, bool(report.groups)


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


def counted(case: Case, moved: Collection[Path], removed: Collection[Path], *, is_found: bool) -> Counter[str]:
    """Return the counts of one case, each 0 or 1: what moved, what was only found, and what was lost."""
    truths = zip(case.shown_by, case.nearly_shown_by, strict=True)
    counts: Counter[str] = Counter(cases=1, can_harm=int(not all(shown or nearly for shown, nearly in truths)))
    for name, gone in (("default", moved), ("hash", removed)):
        harmful, below = harm_of(case, gone)
        counts[f"moved_{name}"] = int(bool(gone))
        counts[f"harmful_{name}"] = int(bool(harmful))
        counts[f"below_{name}"] = int(bool(below))
    counts["only_found"] = int(is_found and not moved)
    return counts


def judged(kind: str, seed: int, count: int, originals: Sequence[Path]) -> dict[str, Any]:
    """Write, search and judge the cases of one class; return the counts, and the numbers of the cases with harm."""
    rows: Counter[str] = Counter()
    harmful = []
    for number in range(count):
        with tempfile.TemporaryDirectory() as folder:
            case = write(Path(folder, "case"), kind, seed, number, originals)
            moved, is_found = moves_in(Path(folder))
            row = counted(case, moved, removed_by_hash(case.files), is_found=is_found)
        rows.update(row)
        harmful += [number] if row["harmful_default"] else []
    return {**rows, "harmful_cases": harmful}


@experiment(
    option("--seeds", "--seed", default="1,2,3", help="numbers, each of another set"),
    option("--classes", nargs="+", default=[], metavar="WORD", help="only those whose name has one of these (all)"),
    option("--most", type=int, help="most cases of each class (default: all)"),
    option("--originals", type=Path, metavar="DIR", help="JPEG files of cameras (default: photos of packages)"),
)
def measure(run: Run) -> dict[str, Any]:
    options = run.options
    originals = camera_files(options.originals) if options.originals else []
    chosen = {
        kind: min(count, options.most or count)
        for kind, (count, _) in kinds().items()
        if not options.classes or any(word in kind for word in options.classes)
    }
    seeds = [int(seed) for seed in options.seeds.split(",")]
    run.saved.planned = len(seeds) * len(chosen)
    names = {(kind, seed): f"{kind}, seed {seed}" for kind in chosen for seed in seeds}
    # A search of a few photos keeps one core busy. A forked process could inherit a held lock of OpenCV.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {
            name: pool.submit(judged, kind, seed, chosen[kind], originals)
            for (kind, seed), name in names.items()
            if not run.saved.has(name)
        }
        for name, future in waiting.items():
            run.saved.cell(name, future.result)
    found = [(kind, run.saved.cells[name]) for (kind, _), name in names.items()]
    return {"photos": len(originals), **summary(found)}


def summary(found: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return class -> sums over the seeds, with bounds; the same for each group and for all; and the recall."""
    rows: dict[str, Counter[str]] = {}
    for kind, row in found:
        counts = {key: value for key, value in row.items() if key != "harmful_cases"}
        for name in (kind, f"{TOTAL}: {kind.partition(':')[0]}", TOTAL):
            rows.setdefault(name, Counter()).update(counts)
    classes = {
        name: {**row, "bound_default": upper_bound(row["harmful_default"], row["can_harm"])}
        for name, row in sorted(rows.items(), key=lambda item: item[0].startswith(TOTAL))
    }
    copies = rows.get(f"{TOTAL}: {COPY}", Counter())
    return {"classes": classes, "recall_of_copies": copies["moved_default"] / max(1, copies["cases"])}
