"""How well copies are told from other photos: ``python -m benchmarks.accuracy [--photos DIR]``.

Every photo gets some fifty copies, from a renamed file to a screenshot of it (:mod:`benchmarks.transforms`), and beside
them lie pictures that only look alike. Detectors are compared on the same files: over pairs, over the groups they make,
and by the one number that hurts: how many of 1,000 photos that they would delete had no copy left. Thresholds are
chosen on one half of the photos and reported on the other; with random weights none is chosen.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy_page import write_page
from benchmarks.harness import RESULTS, write_result
from benchmarks.pair_metrics import delete_figures, group_figures, pair_figures, ranking_figures
from benchmarks.sample_photos import write_originals
from benchmarks.server import serving
from benchmarks.transforms import write_family, write_hard_negatives
from clip_client import ClipClient
from clip_client.dedup import scan, thresholds_for
from clip_client.dedup.find import DEFAULT_HASH_BITS
from clip_client.dedup.joining import Joining, bits_that_differ, where
from clip_client.dedup.looks import look_at, pixel_hash

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client import ModelInfo

COSINES: Final = (0.9, 0.95, 0.97, 0.98, 0.985, 0.99, 0.995, 0.998)
HASH_BITS: Final = (0, 3, 8, 10)
TUNED_PRECISION: Final = 0.995
_BOOTSTRAPS: Final = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Files and the truth about them; arrays run in parallel."""

    paths: list[Path]
    family: NDArray[np.intp]
    """Number of the original; hard negatives are a family each."""
    change: list[str]
    """What was done to the original; empty for originals, ``"negative"`` for hard negatives."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Detector:
    """One way to tell copies: which pairs it calls alike, and how it groups."""

    name: str
    alike: NDArray[np.bool_]
    """(N, N)"""
    groups: list[list[int]]
    """Rows, the kept one first."""


def make_corpus(photos: list[Path], folder: Path) -> Corpus:
    paths, family, change = [], [], []
    for number, photo in enumerate(photos):
        for name, path in write_family(photo, folder / f"{number:04d} {photo.stem}").items():
            paths.append(path)
            family.append(number)
            change.append(name)
    for alone, path in enumerate(path for some in write_hard_negatives(photos, folder / "negatives") for path in some):
        paths.append(path)
        family.append(len(photos) + alone)
        change.append("negative")
    return Corpus(paths=paths, family=np.array(family), change=change)


async def embed(url: str, paths: list[Path]) -> tuple[NDArray[np.float32], ModelInfo]:
    async with ClipClient(url, timeout_s=3600) as clip:
        batch = await clip.embed(paths)
        batch.raise_for_errors()
        return batch.vectors, await clip.model()


def detectors(corpus: Corpus, vectors: NDArray[np.float32], shipped: float) -> tuple[list[Detector], dict[str, Any]]:
    """Return the detectors, and the scores (N, N) by which pairs can be ranked."""
    data = [path.read_bytes() for path in corpus.paths]
    looks = [look_at(one) for one in data]
    flat = np.array([look.is_flat for look in looks])
    rank = np.lexsort(([-len(one) for one in data], [-look.width * look.height for look in looks]))
    hashes = np.array([look.perceptual_hash for look in looks], dtype=np.uint64)
    bits = bits_that_differ(hashes[:, None], hashes[None, :]).astype(np.float64)
    bits[flat, :] = bits[:, flat] = 64
    seeing = vectors.astype(np.float64)
    seeing[flat] = np.nan
    cosine = np.nan_to_num(np.round(seeing @ seeing.T, 6), nan=-1.0)
    exact = _equal([hashlib.sha256(one).hexdigest() for one in data])
    pixels = exact | _equal([pixel_hash(one) for one in data])
    found = [_detector("same bytes", exact, rank), _detector("same pixels (default of --apply)", pixels, rank)]
    found += [_detector(f"pHash, {most} bits", pixels | (bits <= most), rank) for most in HASH_BITS]
    found += [_detector(f"embedding {least:g}", pixels | (cosine >= least), rank) for least in COSINES]
    all_tiers = pixels | (bits <= DEFAULT_HASH_BITS) | (cosine >= shipped)
    found.append(_detector(f"all tiers: pixels, pHash {DEFAULT_HASH_BITS}, embedding {shipped:g}", all_tiers, rank))
    joined = _detector("the same, connected components", all_tiers, rank, chained=True)
    return [*found, joined], {"pHash": -bits, "embedding": cosine}


def _equal(keys: list[str]) -> NDArray[np.bool_]:
    _, number = np.unique(keys, return_inverse=True)
    same: NDArray[np.bool_] = number[:, None] == number[None, :]
    return same


def _detector(name: str, alike: NDArray[np.bool_], rank: NDArray[np.intp], *, chained: bool = False) -> Detector:
    """Group best photo first: stars as the product makes them, or whole components for comparison."""
    ordered = alike[np.ix_(rank, rank)]
    if chained:
        joining = Joining(len(ordered))
        joining.join(*where(ordered))
        groups = [rows.tolist() for rows in joining.components()]
    else:
        groups = _stars(ordered)
    return Detector(name=name, alike=alike, groups=[rank[rows].tolist() for rows in groups if len(rows) > 1])


def _stars(alike: NDArray[np.bool_]) -> list[list[int]]:
    """Go down the rows: one that is alike to no kept row is kept, the others join the best kept row they are like."""
    owner = np.full(len(alike), -1)
    for row in range(len(alike)):
        if owner[row] < 0:
            owner[np.flatnonzero(alike[row] & (owner < 0))] = row
            owner[row] = row
    # The kept row comes first of its group, because it comes before all that it owns.
    return [np.flatnonzero(owner == row).tolist() for row in np.unique(owner)]


def others(corpus: Corpus) -> tuple[list[Detector], list[str]]:
    """Return imagededup's detectors, and what is missing for them."""
    try:
        from imagededup.methods import CNN, PHash  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        return [], [f"imagededup: not installed ({error}); pip install imagededup"]
    found, missing = [], []
    rank = np.arange(len(corpus.paths))
    hasher = PHash(verbose=False)
    encodings = {str(row): hasher.encode_image(str(path)) for row, path in enumerate(corpus.paths)}
    pairs = hasher.find_duplicates(encoding_map=encodings, max_distance_threshold=10, scores=False)
    alike = np.eye(len(corpus.paths), dtype=bool)
    for row, near in pairs.items():
        alike[int(row), [int(other) for other in near]] = True
    found.append(_detector("imagededup pHash, 10 bits (its default)", alike | alike.T, rank))
    try:
        network = CNN(verbose=False)
        features = np.concatenate([network.encode_image(str(path)) for path in corpus.paths])
    except Exception as error:  # whatever its download raises where there is no network
        missing.append(f"imagededup CNN: its weights are not there ({type(error).__name__})")
    else:
        unit = features / np.linalg.norm(features, axis=1, keepdims=True)
        found.append(_detector("imagededup CNN, 0.9 (its default)", unit @ unit.T >= 0.9, rank))
    return found, missing


def judge(detector: Detector, corpus: Corpus, area: NDArray[np.intp]) -> dict[str, Any]:
    """Return every figure of one detector."""
    upper = np.triu_indices(len(corpus.paths), 1)
    same = corpus.family[upper[0]] == corpus.family[upper[1]]
    recalls: dict[str, list[float]] = {}
    originals = {int(corpus.family[row]): row for row, change in enumerate(corpus.change) if change == ""}
    for row, change in enumerate(corpus.change):
        if change not in ("", "negative"):
            hit = detector.alike[row, originals[int(corpus.family[row])]]
            recalls.setdefault(change, []).append(float(hit))
    per_family = np.array(list(recalls.values())).mean(axis=0)  # (families,)
    random = np.random.default_rng(0)
    means = random.choice(per_family, (_BOOTSTRAPS, len(per_family))).mean(axis=1)
    return {
        "detector": detector.name,
        "recall_by_change": {change: float(np.mean(hits)) for change, hits in recalls.items()},
        "recall_of_copies": float(per_family.mean()),
        "recall_95": np.percentile(means, [2.5, 97.5]).tolist(),
        **pair_figures(detector.alike[upper], same),
        **group_figures(detector.groups, corpus.family, detector.alike),
        **delete_figures(detector.groups, corpus.family, area),
    }


def tuned(corpus: Corpus, cosine: NDArray[np.float64]) -> dict[str, float]:
    """Choose the lowest cosine with enough precision on the even families; report it on the odd ones."""
    result = {}
    for half, name in ((0, "tune"), (1, "test")):
        rows = np.flatnonzero(corpus.family % 2 == half)
        upper = np.triu_indices(len(rows), 1)
        same = (corpus.family[rows][:, None] == corpus.family[rows][None, :])[upper]
        scores = cosine[np.ix_(rows, rows)][upper]
        if half == 0:
            order = np.argsort(-scores, kind="stable")
            precision = np.cumsum(same[order]) / np.arange(1, len(order) + 1)
            enough = np.flatnonzero(precision >= TUNED_PRECISION)
            result["threshold"] = float(scores[order][enough[-1]]) if len(enough) else 1.0
        figures = pair_figures(scores >= result["threshold"], same)
        result |= {f"{name}_{figure}": value for figure, value in figures.items()}
    return result


def main() -> None:
    """Make the files, judge every detector, print the table, write the page and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, help="folder of originals (default: the sample photos)")
    parser.add_argument("--most", type=int, default=100, help="originals to take")
    parser.add_argument("--url", help="a running server (default: start one)")
    parser.add_argument("--repository", type=Path, default=Path("triton_models"))
    parser.add_argument("--page", type=Path, default=Path("build/accuracy.html"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        photos = (
            [Path(path) for path in scan([arguments.photos]).photos[: arguments.most]]
            if arguments.photos
            else write_originals(folder / "originals")
        )
        corpus = make_corpus(photos, folder / "copies")
        print(f"{len(corpus.paths)} files of {len(photos)} photos", file=sys.stderr)
        url = arguments.url or stack.enter_context(serving(arguments.repository)).grpc_url
        vectors, model = asyncio.run(embed(url, corpus.paths))
        shipped = thresholds_for(model.id)
        found, scores = detectors(corpus, vectors, shipped.similar)
        rivals, missing = others(corpus)
        looks = [look_at(path.read_bytes()) for path in corpus.paths]
    area = np.array([look.width * look.height for look in looks])
    figures = [judge(detector, corpus, area) for detector in (*found, *rivals)]
    upper = np.triu_indices(len(corpus.paths), 1)
    same = corpus.family[upper[0]] == corpus.family[upper[1]]
    rankings = {name: ranking_figures(score[upper], same) for name, score in scores.items()}
    chosen = {} if model.is_random else tuned(corpus, scores["embedding"])
    result = {
        "model": model.id, "random_weights": model.is_random, "files": len(corpus.paths), "photos": len(photos),
        "detectors": figures, "rankings": rankings, "tuned": chosen, "missing": missing,
    }  # fmt: skip
    report(result)
    arguments.page.parent.mkdir(parents=True, exist_ok=True)
    write_page(result, arguments.page)
    print(f"page: {arguments.page}\nkept in {write_result('accuracy', result, arguments.results)}")


def report(result: dict[str, Any]) -> None:
    """Print the table, under the model's id."""
    console = Console(width=150)
    console.rule(f"[bold]{result['model']}", characters="=")
    if result["random_weights"]:
        console.print("The weights are random: no threshold or precision here is a recommendation.", style="bold red")
    table = Table(title=f"{result['files']} files of {result['photos']} photos")
    for heading in (
        "detector",
        "recall",
        "95 %",
        "pair precision",
        "B-cubed F1",
        "chained",
        "largest",
        "deleted",
        "harmful/1000",
    ):
        table.add_column(heading, justify="left" if heading == "detector" else "right")
    for row in result["detectors"]:
        low, high = row["recall_95"]
        table.add_row(
            row["detector"], f"{row['recall_of_copies']:.3f}", f"{low:.2f}-{high:.2f}", f"{row['precision']:.4f}",
            f"{row['bcubed_f1']:.3f}", f"{row['chaining']:.3f}", str(row["largest_group"]), str(row["deleted"]),
            f"{row['harmful_per_1000']:.1f}",
        )  # fmt: skip
    console.print(table)
    for name, ranking in result["rankings"].items():
        console.print(f"{name}: uAP {ranking['uap']:.4f}, recall at 90 % precision {ranking['recall_at_p90']:.4f}")
    if result["tuned"]:
        console.print(f"threshold chosen on half of the photos, reported on the other half: {result['tuned']}")
    for line in result["missing"]:
        console.print(f"left out: {line}")


if __name__ == "__main__":
    main()
