"""How well do detectors tell copies from other photos?

Every photo gets about sixty copies, from a renamed file to a screenshot of it (``fixtures.photo_edits``). Further
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

from benchmarks.experiments.dedup.accuracy_page import write_page
from benchmarks.experiments.dedup.detectors import Detector, Facts, imagededup_detectors, own_detectors
from benchmarks.experiments.dedup.pair_metrics import (
    curve,
    delete_figures,
    group_figures,
    pair_figures,
    ranking_figures,
)
from benchmarks.fixtures.photo_edits import write_family, write_hard_negatives
from benchmarks.harness.checkpoint import CHECKPOINTS
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option
from benchmarks.harness.results import show
from clip_client import ClientConfig, ClipClient
from clip_client.dedup import Store, scan, thresholds_for
from clip_client.dedup.features.image_features import extract_features
from clip_client.dedup.features.pixel_hash import pixel_hash
from preprocess_ensemble.testing.sample_photos import write_originals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from clip_client import ModelInfo
    from clip_client._encoding import TransferName

TUNED_PRECISION: Final = 0.995
TRANSFERS: Final[tuple[TransferName, ...]] = ("original", "thumbnail")
"""Photos as they are, and as the command line sends them by default."""
_BOOTSTRAPS: Final = 200
_TIMEOUT_S: Final = 3600.0
"""Long, because the rate does not matter here and a busy machine is slow."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Files, and what is true of them."""

    paths: list[Path]
    """(N,)"""
    family: NDArray[np.intp]
    """(N,): number of the original; each hard negative is a family."""
    originals: list[int]
    """Their rows."""
    copies: dict[str, list[int]]
    """What was done to each original -> row of the copy, in the order of ``originals``."""
    negatives: dict[str, list[NDArray[np.intp]]]
    """Kind -> sets of rows that look alike and are not copies of each other."""

    @cached_property
    def pairs(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """First and second row of every pair."""
        first, second = np.triu_indices(len(self.paths), 1)
        return first, second

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
    negatives: dict[str, list[NDArray[np.intp]]] = {}
    for kind, sets in write_hard_negatives(photos, folder / "negatives").items():
        negatives[kind] = []
        for members in sets:
            negatives[kind].append(np.arange(len(paths), len(paths) + len(members)))
            paths += members
    family += range(len(photos), len(photos) + len(paths) - len(family))
    originals = copies.pop("")
    return Corpus(paths=paths, family=np.array(family), originals=originals, copies=copies, negatives=negatives)


def facts_of(path: Path) -> Facts:
    """Read one file as a search does; in a worker process."""
    data = path.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    return Facts(features=extract_features(data), sha256=sha256, pixels=pixel_hash(data), size_bytes=len(data))


async def embed(
    url: str, transfer: TransferName, paths: Sequence[Path], facts: Sequence[Facts], store: Store, progress: Progress
) -> tuple[NDArray[np.float32], ModelInfo]:
    """Return vectors (N, D) and their model; vectors of an earlier run come from ``store``, by content."""
    config = ClientConfig(urls=(url,), transfer=transfer, timeout_s=_TIMEOUT_S, target_latency_s=_TIMEOUT_S)
    async with ClipClient(config=config) as clip:
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


def judge(detector: Detector, corpus: Corpus, area: NDArray[np.intp]) -> dict[str, Any]:
    """Return every figure of one detector."""
    hits = {change: detector.alike[rows, corpus.originals] for change, rows in corpus.copies.items()}
    per_family = np.mean(list(hits.values()), axis=0)  # (families,)
    random = np.random.default_rng(0)
    means = random.choice(per_family, (_BOOTSTRAPS, len(per_family))).mean(axis=1)
    return {
        "detector": detector.name,
        "recall_by_change": {change: float(found.mean()) for change, found in hits.items()},
        "recall_of_copies": float(per_family.mean()),
        "recall_95": np.percentile(means, [2.5, 97.5]).tolist(),
        "negatives_merged": {kind: _merged(detector, sets) for kind, sets in corpus.negatives.items()},
        **pair_figures(detector.alike[corpus.pairs], corpus.same),
        **group_figures(detector.groups, corpus.family, detector.alike),
        **delete_figures(detector.groups, corpus.family, area),
    }


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
    option("--most", type=int, default=100, help="most originals to take (default: %(default)s)"),
    option("--url", help="a running server (default: start one)"),
    REPOSITORY,
    option(
        "--store",
        type=Path,
        default=CHECKPOINTS / "accuracy",
        help="keeps vectors, so that a later run continues (default: %(default)s)",
    ),
    option("--page", type=Path, default=Path("build/accuracy.html"), help="HTML report (default: %(default)s)"),
)
def measure(run: Run) -> dict[str, Any]:
    """Make the files, judge every detector, print the table and write the page."""
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
        "detectors": figures, "rankings": rankings, "tuned": chosen, "missing": missing,
    }  # fmt: skip
    report(result)
    options.page.parent.mkdir(parents=True, exist_ok=True)
    write_page(result, options.page)
    print(f"page: {options.page}")
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
    for name, ranking in result["rankings"].items():
        console.print(f"{name}: uAP {ranking['uap']:.4f}, recall at 90 % precision {ranking['recall_at_p90']:.4f}")
    if result["tuned"]:
        console.print(f"threshold chosen on half of the photos, reported on the other half: {result['tuned']}")
    for line in result["missing"]:
        console.print(f"left out: {line}")
