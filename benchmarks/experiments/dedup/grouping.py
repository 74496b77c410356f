"""What does grouping cost from 10,000 to three million vectors?

And how many pairs does the fast method miss? Vectors of 512 dimensions are spread evenly over the sphere. Some are
copies, with a cosine to their original between 0.951 and 0.999. Two vectors of different families have a cosine below
0.35, so the planted pairs are exactly the pairs at or above the threshold of 0.95. ``skewed`` adds the hard case for
other tools: 20,000 vectors of one scene, whose pairs are counted separately. ``dense`` vectors lie as close together as
those of a trained model, in topics of very uneven size; their copies have a cosine of 0.995, and the threshold is 0.99.
Three million vectors are measured in this shape only. Each measurement runs in a new process, for its peak of memory.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.fixtures.planted_vectors import DIMENSION, THRESHOLDS, planted
from benchmarks.harness.experiment import Run, experiment, option
from benchmarks.harness.results import show
from benchmarks.harness.rounds import growth_exponent
from benchmarks.harness.worker import in_new_process, peak_memory_mb
from clip_client.dedup.compare.partitioned_join import join_vectors
from clip_client.dedup.compare.similarity_join import block_pairs
from clip_client.dedup.compare.star_groups import star_groups
from clip_client.dedup.compare.union_find import UnionFind

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZES: Final = (10_000, 100_000, 300_000, 1_000_000, 3_000_000)
MOST: Final = 1_000_000
MOST_EXACT: Final = 100_000


def products_s(vectors: NDArray[np.float32], part: slice) -> float:
    """Time a part of the products that any exact search needs, and nothing else."""
    started = time.perf_counter()
    for first, second in list(block_pairs(len(vectors)))[part]:
        vectors[first] @ vectors[second].T
    return time.perf_counter() - started


def measure_one(rows: int, shape: str, method: str) -> dict[str, Any]:
    """Group once and compare with what was planted."""
    vectors, family = planted(rows, shape)
    threshold = THRESHOLDS[shape]
    is_exact = method == "exact"
    # One half before and the other half after, so that other work of the machine slows both measurements.
    bare_s = products_s(vectors, slice(0, None, 2)) if is_exact else 0.0
    started, cpu_started = time.perf_counter(), time.process_time()
    union_find = UnionFind(rows)
    coverage = join_vectors(union_find, vectors, threshold, exact_rows=rows if is_exact else 0)
    components = union_find.components()
    joined_s = time.perf_counter() - started
    grouped = sum(len(star_groups(vectors[component], threshold)) for component in components)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    peak_gb = peak_memory_mb() / 1e3
    bare_s += products_s(vectors, slice(1, None, 2)) if is_exact else 0.0
    found = np.full(rows, -1)
    mixed = 0
    for number, component in enumerate(components):
        found[component] = number
        mixed += len(np.unique(family[component])) > 1
    # Every copy was planted within the threshold of its original, so the pairs are known without an exact search.
    copies = np.flatnonzero(family != np.arange(rows))
    originals = family[copies]  # the number of a family is the row of its original
    together = (found[copies] == found[originals]) & (found[copies] >= 0)
    sizes = np.bincount(family, minlength=rows)
    is_hot = (sizes[originals] == sizes.max()) & (shape == "skewed")
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


@experiment(option("--most", type=int, default=MOST, help="largest number of vectors"))
def measure(run: Run) -> dict[str, Any]:
    """Measure every size, shape and method, each in a new process."""
    plan = [
        (rows, shape, method)
        for rows in SIZES
        if rows <= run.options.most
        for shape in (THRESHOLDS if rows <= MOST else ("dense",))
        for method in (("exact", "cells") if rows <= MOST_EXACT else ("cells",))
    ]
    checkpoint = run.checkpoint(total=len(plan))
    results = [checkpoint.cell(" ".join(map(str, one)), partial(in_new_process, measure_one, *one)) for one in plan]
    rows = []
    for r in results:
        bare, (low, high) = r["bare_products_seconds"], r["measured_recall_95"]
        estimate = f"{r['measured_recall']:.4f}, {low:.4f} to {high:.4f}" if r["method"] == "cells" else ""
        rows.append((
            f"{r['rows']:,}", r["shape"], r["method"], f"{r['seconds']:.1f}", f"{bare:.1f}" if bare else "",
            f"{r['seconds'] / bare:.2f}" if bare else "", f"{r['peak_gb']:.1f}", f"{r['pair_recall']:.4f}", estimate,
            "" if r["hot_recall"] is None else f"{r['hot_recall']:.4f}", f"{r['precision']:.4f}",
        ))  # fmt: skip
    headings = (
        "vectors", "spread", "method", "s", "bare products, s", "ratio", "peak GB", "recall", "estimated, 95 %",
        "hot scene", "precision",
    )  # fmt: skip
    show(f"Groups of {DIMENSION}-d vectors, cosine at least: {THRESHOLDS}", headings, rows, width=140)
    fast = [one for one in results if one["method"] == "cells"]
    exponents = {shape: growth_exponent([one for one in fast if one["shape"] == shape]) for shape in THRESHOLDS}
    print(f"growth exponent of the seconds with cells: {exponents}")
    return {"results": results, "growth": exponents}
