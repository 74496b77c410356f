"""How well do detectors tell copies from other photos?

Every photo gets about seventy copies, from a renamed file to a screenshot of it (``fixtures.photo_edits``). Further
pictures only look alike. All detectors (``detectors``) read the same files. They are compared by pairs, by the groups
that they make, and by the most important number: of 1,000 photos that they would delete, how many had no copy left. A
threshold is chosen on half of the photos and reported on the other half, unless the weights are random.
"""

from __future__ import annotations

import asyncio
import hashlib
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.experiments.dedup.applied import applied_detectors, client, moved_in_pairs, search
from benchmarks.experiments.dedup.detectors import Detector, Facts, imagededup_detectors, own_detectors
from benchmarks.experiments.dedup.pair_metrics import (
    curve,
    delete_figures,
    group_figures,
    pair_figures,
    ranking_figures,
)
from benchmarks.experiments.dedup.proofs import proof_detectors
from benchmarks.fixtures.photo_edits import write_family, write_hard_negatives
from benchmarks.harness.checkpoint import CHECKPOINTS
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option
from benchmarks.harness.results import show
from clip_client.dedup import Store, scan, thresholds_for
from clip_client.dedup.features.image_features import extract_features
from clip_client.dedup.features.pixel_hash import pixel_hash
from preprocess_ensemble.testing.sample_photos import write_originals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from clip_client import ModelInfo
    from clip_client._encoding import TransferName

TUNED_PRECISION: Final = 0.995
TRANSFERS: Final[tuple[TransferName, ...]] = ("original", "thumbnail")
"""Photos as they are, and as the command line sends them by default."""
_BOOTSTRAPS: Final = 200
_BY_CHANGE: Final = ("--apply", "re-encoded", "edited", "imagededup")
"""Detectors whose recall and precision is printed for each change."""
_NEIGHBOURS: Final = 3
"""Files of other families that each file is aligned with, by each score."""
PAIRED: Final = (
    "T6 crop 5%", "T6 crop 10%", "T6 crop 15%", "T6 crop 20%", "T6 crop 30%",
    "T7 brightness 0.75", "T7 brightness 1.25", "T7 contrast 0.75", "T7 contrast 1.25", "T7 grey",
    "T8 rotate 90", "T8 rotate 270", "T8 mirror",
    "T11 border 5%", "T11 border 15%", "T11 white border 6%", "T12 blur 2",
)  # fmt: skip
"""Changes that are also searched for alone: a folder with the original and one copy."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Files, and what is true of them."""

    paths: list[Path]
    """(N,)"""
    family: NDArray[np.intp]
    """(N,): number of the original; each hard negative is a family."""
    cut_from: NDArray[np.intp]
    """(N,): the family, or, of a hard negative that is a part of an original, that of the original."""
    originals: list[int]
    """Their rows."""
    copies: dict[str, list[int]]
    """What was done to each original -> row of the copy, in the order of ``originals``."""
    negatives: dict[str, list[NDArray[np.intp]]]
    """Kind -> sets of rows that look alike and are not copies of each other."""

    @cached_property
    def pairs(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """First and second row of every pair, but for those of an original's copies and the parts cut out of it, of
        which one may be a crop of the other."""
        first, second = np.triu_indices(len(self.paths), 1)
        is_part = (self.family[first] != self.family[second]) & (self.cut_from[first] == self.cut_from[second])
        return first[~is_part], second[~is_part]

    @cached_property
    def same(self) -> NDArray[np.bool_]:
        """Whether the files of each pair are copies of one original."""
        first, second = self.pairs
        same: NDArray[np.bool_] = self.family[first] == self.family[second]
        return same


def make_corpus(photos: list[Path], folder: Path, progress: Progress) -> Corpus:
    """Write the copies of every photo, and pictures that only look alike."""
    paths: list[Path] = []
    copies: dict[str, list[int]] = {}
    folders = [folder / f"{number:04d} {photo.stem}" for number, photo in enumerate(photos)]
    family: list[int] = []
    with ProcessPoolExecutor() as pool:
        families = pool.map(write_family, photos, folders)
        for number, written in enumerate(progress.track(families, len(photos), description="writing copies")):
            for change, path in written.items():
                copies.setdefault(change, []).append(len(paths))
                paths.append(path)
            family += [number] * len(written)
    originals = copies.pop("")
    row_of = dict(zip(photos, originals, strict=True))
    negatives: dict[str, list[NDArray[np.intp]]] = {}
    kinds, cut_from = write_hard_negatives(photos, folder / "negatives")
    for path in (path for sets in kinds.values() for members in sets for path in members if path not in row_of):
        row_of[path] = len(paths)
        paths.append(path)
    for kind, sets in kinds.items():
        negatives[kind] = [np.array([row_of[path] for path in members]) for members in sets]
    family += range(len(photos), len(photos) + len(paths) - len(family))
    sources = np.array(family)
    sources[[row_of[path] for path in cut_from]] = list(cut_from.values())
    return Corpus(
        paths=paths,
        family=np.array(family),
        cut_from=sources,
        originals=originals,
        copies=copies,
        negatives=negatives,
    )


def facts_of(path: Path) -> Facts:
    """Read one file as a search does; in a worker process."""
    data = path.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    return Facts(features=extract_features(data), sha256=sha256, pixels=pixel_hash(data), size_bytes=len(data))


async def embed(
    url: str, transfer: TransferName, paths: Sequence[Path], facts: Sequence[Facts], store: Store, progress: Progress
) -> tuple[NDArray[np.float32], ModelInfo]:
    """Return vectors (N, D) and their model; vectors of an earlier run come from ``store``, by content."""
    async with client(url, transfer) as clip:
        model = await clip.model()
        stored = store.vectors(model.vector_id, model.dimension)
        table = stored.read()
        known = dict(zip(table.column("sha256").to_pylist(), table.column("vector").to_pylist(), strict=True))
        keys = [bytes.fromhex(one.sha256) for one in facts]
        first_with = {key: path for key, path in zip(keys, paths, strict=True) if key not in known}
        new = list(first_with)
        async with aclosing(clip.embed_stream(list(first_with.values()), ordered=False)) as items:
            task = progress.add_task(f"embedding, {transfer}", total=len(new))
            async for item in items:
                if item.error is not None:
                    raise item.error
                known[new[item.index]] = item.vector
                stored.add({"sha256": new[item.index], "vector": item.vector, "code": "", "message": ""})
                progress.advance(task)
        stored.flush()
        return np.array([known[key] for key in keys], dtype=np.float32), model


def _worth_a_look(corpus: Corpus, scores: Mapping[str, NDArray[np.float64]]) -> list[tuple[int, int]]:
    """Return the pairs to align: copies with their originals, the look-alikes, and for each file its neighbours."""
    pairs = {
        (row, original) for rows in corpus.copies.values() for row, original in zip(rows, corpus.originals, strict=True)
    }
    pairs |= {
        (int(first), int(second))
        for sets in corpus.negatives.values()
        for rows in sets
        for first in rows
        for second in rows
        if first < second
    }
    is_other = corpus.family[:, None] != corpus.family[None, :]
    for score in scores.values():
        nearest = np.argsort(np.where(is_other, -score, np.inf), axis=1)[:, :_NEIGHBOURS]
        pairs |= {(row, other) for row, others in enumerate(nearest.tolist()) for other in others}
    return sorted({(min(pair), max(pair)) for pair in pairs})


def judge(detector: Detector, corpus: Corpus, area: NDArray[np.intp]) -> dict[str, Any]:
    """Return every figure of one detector."""
    hits = {
        change: detector.alike[rows, corpus.originals] if detector.moved is None else detector.moved[rows]
        for change, rows in corpus.copies.items()
    }
    per_family = np.mean(list(hits.values()), axis=0)  # (families,)
    random = np.random.default_rng(0)
    means = random.choice(per_family, (_BOOTSTRAPS, len(per_family))).mean(axis=1)
    return {
        "detector": detector.name,
        "recall_by_change": {change: float(found.mean()) for change, found in hits.items()},
        "precision_by_change": {
            change: _precision(detector, corpus, change, int(found.sum())) for change, found in hits.items()
        },
        "recall_of_copies": float(per_family.mean()),
        "recall_95": np.percentile(means, [2.5, 97.5]).tolist(),
        "negatives_merged": {kind: _merged(detector, sets) for kind, sets in corpus.negatives.items()},
        **pair_figures(detector.alike[corpus.pairs], corpus.same),
        **group_figures(detector.groups, corpus.family, detector.alike),
        **delete_figures(detector.groups, corpus.family, corpus.cut_from, area),
    }


def _precision(detector: Detector, corpus: Corpus, change: str, found: int) -> float:
    """Return the share of what was found for one change that is right."""
    rows = np.array(corpus.copies[change])
    if detector.moved is None:
        return float(found / max(1, detector.alike[rows][:, corpus.originals].sum()))
    moved = rows[detector.moved[rows]]
    kin = detector.alike[moved] & (corpus.family[moved][:, None] == corpus.family)
    return float((kin.sum(axis=1) > 1).sum() / max(1, len(moved)))  # each file is its own kin


def _merged(detector: Detector, sets: list[NDArray[np.intp]]) -> float:
    """Return the share of the pairs within ``sets`` that are called alike."""
    blocks = [detector.alike[np.ix_(rows, rows)][np.triu_indices(len(rows), 1)] for rows in sets]
    return float(np.concatenate(blocks).mean())


def tuned(corpus: Corpus, cosine: NDArray[np.float64]) -> dict[str, float]:
    """Choose the lowest cosine with enough precision on the even families; report it on the odd ones."""
    result = {}
    for half, name in ((0, "tune"), (1, "test")):
        rows = np.flatnonzero(corpus.family % 2 == half)
        upper = np.triu_indices(len(rows), 1)
        same = (corpus.family[rows][:, None] == corpus.family[rows][None, :])[upper]
        scores = cosine[np.ix_(rows, rows)][upper]
        if half == 0:
            at, precision, _ = curve(scores, same)
            enough = np.flatnonzero(precision >= TUNED_PRECISION)
            result["threshold"] = float(at[enough[-1]]) if len(enough) else 1.0
        figures = pair_figures(scores >= result["threshold"], same)
        result |= {f"{name}_{figure}": value for figure, value in figures.items()}
    return result


@experiment(
    option("--photos", type=Path, help="folder of originals (default: the sample photos)"),
    option("--most", type=int, default=100, help="most originals to take"),
    option("--url", help="a running server (default: start one)"),
    REPOSITORY,
    option("--store", type=Path, default=CHECKPOINTS / "accuracy", help="keeps vectors, so that a later run continues"),
)
def measure(run: Run) -> dict[str, Any]:
    """Make the files, judge every detector and print the tables."""
    options = run.options
    photos = (
        [Path(path) for path in scan([options.photos]).photos[: options.most]]
        if options.photos
        else write_originals(run.scratch / "originals")
    )
    if len(photos) < 2:
        raise SystemExit(f"{options.photos} holds {len(photos)} photos; at least two are needed")
    columns = (TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        corpus = make_corpus(photos, run.scratch / "copies", progress)
        with ProcessPoolExecutor() as pool:
            reading = pool.map(facts_of, corpus.paths, chunksize=8)
            facts = list(progress.track(reading, len(corpus.paths), description="reading"))
        url = options.url or run.serve().grpc_url
        store = run.stack.enter_context(Store(options.store))
        vectors: dict[str, NDArray[np.float32]] = {}
        for transfer in TRANSFERS:
            vectors[transfer], model = asyncio.run(embed(url, transfer, corpus.paths, facts, store, progress))
        found, scores = own_detectors(facts, vectors, thresholds_for(model.id).similar)
        applied = asyncio.run(search(url, TRANSFERS[-1], run.scratch / "copies", store))
        pairs = {
            change: [
                (corpus.paths[original], corpus.paths[copy])
                for original, copy in zip(corpus.originals, rows, strict=True)
            ]
            for change, rows in corpus.copies.items()
            if change in PAIRED
        }
        moved = asyncio.run(moved_in_pairs(url, TRANSFERS[-1], pairs, store))
        found += applied_detectors(applied, run.scratch / "copies", corpus.paths)
        found += proof_detectors(facts, corpus.paths, _worth_a_look(corpus, scores), progress)
        rivals, their_scores, missing = imagededup_detectors(corpus.paths, progress)
        area = np.array([one.features.width * one.features.height for one in facts])
        detectors = progress.track([*found, *rivals], description="judging")
        figures = [judge(detector, corpus, area) for detector in detectors]
    rankings = {
        name: ranking_figures(score[corpus.pairs], corpus.same) for name, score in {**scores, **their_scores}.items()
    }
    chosen = {} if model.is_random else tuned(corpus, scores[f"embedding, {TRANSFERS[0]}"])
    result = {
        "model": model.id, "random_weights": model.is_random, "files": len(corpus.paths), "photos": len(photos),
        "detectors": figures, "moved_in_pairs": moved, "rankings": rankings, "tuned": chosen, "missing": missing,
    }  # fmt: skip
    report(result)
    return result


def report(result: dict[str, Any]) -> None:
    """Print the table, under the model's id."""
    console = Console(width=150)
    console.rule(f"[bold]{result['model']}", characters="=")
    if result["random_weights"]:
        console.print("The weights are random: no threshold or precision here is a recommendation.", style="bold red")
    headings = ("detector", "recall", "95 %", "pair precision", "B-cubed F1", "chained", "largest", "deleted")
    rows = [
        (
            row["detector"], f"{row['recall_of_copies']:.3f}", "{:.2f}-{:.2f}".format(*row["recall_95"]),
            f"{row['precision']:.4f}", f"{row['bcubed_f1']:.3f}", f"{row['chaining']:.3f}", str(row["largest_group"]),
            str(row["deleted"]), f"{row['harmful_per_1000']:.1f}",
        )
        for row in result["detectors"]
    ]  # fmt: skip
    show(f"{result['files']} files of {result['photos']} photos", (*headings, "harmful/1000"), rows, width=150)
    by_change = [row for row in result["detectors"] if row["detector"].startswith(_BY_CHANGE)]
    show(
        "recall (precision) by what was done",
        ("", *(row["detector"].partition(" (")[0] for row in by_change)),
        [
            (
                change,
                *(
                    f"{row['recall_by_change'][change]:.2f} ({row['precision_by_change'][change]:.2f})"
                    for row in by_change
                ),
            )
            for change in result["detectors"][0]["recall_by_change"]
        ],
        width=150,
    )
    show(
        "moved by --apply with edited copies, in a folder with the original and one copy",
        ("", "the copy", "either"),
        [
            (change, f"{shares['copy_moves']:.2f}", f"{shares['either_moves']:.2f}")
            for change, shares in result["moved_in_pairs"].items()
        ],
        width=150,
    )
    for name, ranking in result["rankings"].items():
        console.print(f"{name}: uAP {ranking['uap']:.4f}, recall at 90 % precision {ranking['recall_at_p90']:.4f}")
    if result["tuned"]:
        console.print(f"threshold chosen on half of the photos, reported on the other half: {result['tuned']}")
    for line in result["missing"]:
        console.print(f"left out: {line}")
