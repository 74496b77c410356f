"""Grouping of vectors, from 10,000 to a million: ``python -m benchmarks grouping``.

The question: what do groups cost as a collection grows, and how many pairs does the fast way miss? Vectors of 512
dimensions are spread evenly over the sphere, with planted families: copies whose cosine to their original is drawn
between 0.951 and 0.999. Two vectors that are not of one family have a cosine below 0.35, so the planted pairs at or
above the threshold of 0.95 are the truth, exactly. ``skewed`` adds what kills other tools: one camera that fired all
night, 20,000 vectors of one scene; its pairs are counted apart from the others. Each measurement runs in a process of
its own, for its peak of memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness.checkpoint import Checkpoint
from benchmarks.harness.environment import environment
from benchmarks.harness.results import RESULTS
from clip_client.dedup.compare.partitioned_join import join_vectors
from clip_client.dedup.compare.similarity_join import block_pairs
from clip_client.dedup.compare.star_groups import star_groups
from clip_client.dedup.compare.union_find import UnionFind

if TYPE_CHECKING:
    from numpy.typing import NDArray

DIMENSION: Final = 512
THRESHOLD: Final = 0.95
HOT: Final = 20_000
COPIED: Final = 0.05
"""Share of the vectors that are copies of another one."""
SIZES: Final = (10_000, 100_000, 300_000, 1_000_000)
MOST_EXACT: Final = 100_000
_BLOCK: Final = 65_536


def planted(rows: int, shape: str, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Return unit vectors (rows, 512) in no order, and the number of the family of each."""
    random = np.random.default_rng(seed)
    vectors = np.empty((rows, DIMENSION), dtype=np.float32)
    for start in range(0, rows, _BLOCK):
        block = random.standard_normal((min(_BLOCK, rows - start), DIMENSION), dtype=np.float32)
        vectors[start : start + len(block)] = block / np.linalg.norm(block, axis=1, keepdims=True)
    family = np.arange(rows)
    places = random.permutation(rows)
    hot = min(HOT, rows // 4) if shape == "skewed" else 0
    copies = round(rows * COPIED)
    _copy(vectors, family, places[:1].repeat(hot), places[1 : 1 + hot], random)
    originals = random.choice(places[1 + hot + copies :], copies)
    _copy(vectors, family, originals, places[1 + hot : 1 + hot + copies], random)
    return vectors, family


def _copy(
    vectors: NDArray[np.float32],
    family: NDArray[np.intp],
    originals: NDArray[np.intp],
    places: NDArray[np.intp],
    random: np.random.Generator,
) -> None:
    """Turn what is at ``places`` towards ``originals``, by a cosine drawn evenly."""
    cosine = random.uniform(0.951, 0.999, (len(places), 1)).astype(np.float32)
    away, towards = vectors[places], vectors[originals]
    away -= (away * towards).sum(axis=1, keepdims=True) * towards
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    vectors[places] = cosine * towards + np.sqrt(1 - cosine**2) * away
    family[places] = family[originals]


def products_s(vectors: NDArray[np.float32], part: slice) -> float:
    """Time a part of the products that any exact search needs, and nothing else."""
    started = time.perf_counter()
    for first, second in list(block_pairs(len(vectors)))[part]:
        vectors[first] @ vectors[second].T
    return time.perf_counter() - started


def measure(rows: int, shape: str, method: str) -> dict[str, Any]:
    """Group once and compare with what was planted."""
    vectors, family = planted(rows, shape)
    is_exact = method == "exact"
    # One half before, the other after: what else the machine does meanwhile is in both times.
    bare_s = products_s(vectors, slice(0, None, 2)) if is_exact else 0.0
    started, cpu_started = time.perf_counter(), time.process_time()
    union_find = UnionFind(rows)
    coverage = join_vectors(union_find, vectors, THRESHOLD, exact_rows=rows if is_exact else 0)
    components = union_find.components()
    joined_s = time.perf_counter() - started
    grouped = sum(len(star_groups(vectors[component], THRESHOLD)) for component in components)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    bare_s += products_s(vectors, slice(1, None, 2)) if is_exact else 0.0
    found = np.full(rows, -1)
    mixed = 0
    for number, component in enumerate(components):
        found[component] = number
        mixed += len(np.unique(family[component])) > 1
    # Every copy was planted within the threshold of its original, so the pairs are known without an exact search.
    original = family  # the number of a family is the row of its original
    copies = np.flatnonzero(original != np.arange(rows))
    together = (found[copies] == found[original[copies]]) & (found[copies] >= 0)
    sizes = np.bincount(family, minlength=rows)
    is_hot = sizes[original[copies]] == sizes.max() if shape == "skewed" else np.zeros(len(copies), dtype=bool)
    return {
        "rows": rows,
        "shape": shape,
        "method": coverage.method,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "join_seconds": joined_s,
        "bare_products_seconds": bare_s if is_exact else None,
        "peak_gb": peak_gb,
        "pair_recall": float(together[~is_hot].mean()),
        "hot_recall": float(together[is_hot].mean()) if is_hot.any() else None,
        "precision": 1 - mixed / max(1, len(components)),
        "pairs": int((~is_hot).sum()),
        "measured_recall": coverage.recall,
        "measured_recall_95": list(coverage.recall_95),
        "measured_pairs": coverage.pairs,
        "groups": grouped,
        "families": int((sizes > 1).sum()),
    }


def growth(results: list[dict[str, Any]], shape: str) -> float | None:
    """Return the exponent of the rows in the seconds of the fast way, by least squares over the sizes."""
    points = [(r["rows"], r["seconds"]) for r in results if r["shape"] == shape and r["method"] == "cells"]
    if len(points) < 2:
        return None
    sizes, seconds = np.log(np.array(points, dtype=np.float64)).T
    return float(np.polyfit(sizes, seconds, 1)[0])


def main() -> None:
    """Measure every size, shape and method, print the table, keep the JSON; a stopped run continues."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=SIZES[-1], help="largest number of vectors")
    parser.add_argument("--one", nargs=3, metavar=("ROWS", "SHAPE", "METHOD"), help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(int(arguments.one[0]), *arguments.one[1:])))
        return
    plan = [
        (rows, shape, method)
        for rows in SIZES
        if rows <= arguments.most
        for shape in ("even", "skewed")
        for method in (("exact", "cells") if rows <= MOST_EXACT else ("cells",))
    ]
    checkpoint = Checkpoint("grouping", {"plan": plan, "threshold": THRESHOLD, "commit": environment()["commit"]})
    results = [checkpoint.cell(" ".join(map(str, one)), partial(in_own_process, *one)) for one in plan]
    print_table(results)
    exponents = {shape: growth(results, shape) for shape in ("even", "skewed")}
    print(f"growth exponent of the seconds with cells: {exponents}")
    print(f"kept in {checkpoint.finish({'results': results, 'growth': exponents}, arguments.results)}")


def in_own_process(rows: int, shape: str, method: str) -> dict[str, Any]:
    """Run :func:`measure` where no other measurement has left memory behind."""
    command = [sys.executable, "-m", "benchmarks.experiments.dedup.grouping", "--one", str(rows), shape, method]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return answer


def print_table(results: list[dict[str, Any]]) -> None:
    """Print a line for each measurement."""
    table = Table(title=f"Groups of {DIMENSION}-d vectors, cosine at least {THRESHOLD}")
    for heading in (
        "vectors",
        "spread",
        "method",
        "s",
        "bare products, s",
        "ratio",
        "peak GB",
        "recall",
        "as the run says, 95 %",
        "hot scene",
        "precision",
    ):
        table.add_column(heading, justify="right")
    for r in results:
        bare, (low, high) = r["bare_products_seconds"], r["measured_recall_95"]
        said = f"{r['measured_recall']:.4f}, {low:.4f} to {high:.4f}" if r["method"] == "cells" else ""
        table.add_row(
            f"{r['rows']:,}", r["shape"], r["method"], f"{r['seconds']:.1f}", f"{bare:.1f}" if bare else "",
            f"{r['seconds'] / bare:.2f}" if bare else "", f"{r['peak_gb']:.1f}", f"{r['pair_recall']:.4f}", said,
            "" if r["hot_recall"] is None else f"{r['hot_recall']:.4f}", f"{r['precision']:.4f}",
        )  # fmt: skip
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
