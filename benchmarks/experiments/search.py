"""What does one query cost in a large index, beside NumPy and faiss alone?

Makes vectors that lie as close together as those of a trained model, writes them as a search does, and asks for the 20
nearest to queries that are none of them. In each round every system answers the same queries, one at a time. The index
is memory-mapped: its first answer after its files left the memory is measured on its own. Every system must find the
photos of a full sort in 64 bits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.fixtures.planted import DIMENSION, planted
from benchmarks.harness.experiment import Run, experiment, option, rounds
from clip_client.search import PhotoIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Answer = Callable[[NDArray[np.float32]], NDArray[np.intp]]

TOP: Final = 20
_QUERIES: Final = 10
_FITTING: Final = 0.1
"""Share of the photos that fit the filter."""
SYSTEMS: Final = {
    "index": "this, memory-mapped, 32 bits",
    "filtered": "this, of the tenth that fits a filter",
    "numpy": "NumPy, 32 bits, `argpartition`",
    "faiss": "faiss `IndexFlatIP`, 32 bits",
    "faiss-fp16": "faiss `IndexScalarQuantizer`, 16 bits",
}


@experiment(
    option("--photos", dest="sizes", type=int, nargs="+", default=[100_000, 1_000_000], help="photos in the index"),
    rounds(5),
)
def measure(run: Run) -> Mapping[str, Any]:
    found = {str(size): _measure(size, run) for size in run.options.sizes}
    return {"plan": run.plan, "sizes": found, "valid": all(one["valid"] for one in found.values())}


def _measure(size: int, run: Run) -> dict[str, Any]:
    vectors, _ = planted(size + _QUERIES)
    queries, vectors = vectors[:_QUERIES].copy(), vectors[_QUERIES:]
    folder = run.scratch / str(size)
    began = time.perf_counter()
    index = PhotoIndex(vectors.shape[1])
    index.add([f"/photos/{number}.jpg" for number in range(size)], vectors)
    index.save(folder)
    made_s = time.perf_counter() - began
    _leave_memory(folder)
    began = time.perf_counter()
    index = PhotoIndex.open(folder)
    index.nearest(queries[0], TOP)
    first_ms = 1000 * (time.perf_counter() - began)
    systems = _systems(index, vectors)
    expected = [_full_sort(query, vectors) for query in queries]
    is_right = {
        name: all(set(answer(query)) == set(rows) for query, rows in zip(queries, expected, strict=True))
        for name, answer in systems.items()
        if name != "filtered"
    }
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in run.rounds:
        for name, answer in systems.items():
            answer(queries[0])
            for query in queries:
                began = time.perf_counter()
                answer(query)
                times[name].append(1000 * (time.perf_counter() - began))
    return {
        "made_s": made_s,
        "first_ms": first_ms,
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "ms": {name: {"median": float(np.median(each)), "all": each} for name, each in times.items()},
        "is_right": is_right,
        "valid": is_right["index"],
    }


def _systems(index: PhotoIndex, vectors: NDArray[np.float32]) -> dict[str, Answer]:
    import faiss

    flat = faiss.IndexFlatIP(DIMENSION)
    flat.add(vectors)
    halves = faiss.IndexScalarQuantizer(DIMENSION, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    halves.train(vectors[:1])
    halves.add(vectors)
    fits = np.random.default_rng(0).random(len(vectors)) < _FITTING

    def of_index(query: NDArray[np.float32], among: NDArray[np.bool_] | None = None) -> NDArray[np.intp]:
        return np.array([hit.row for hit in index.nearest(query, TOP, among=among)])

    def of_numpy(query: NDArray[np.float32]) -> NDArray[np.intp]:
        cosines = vectors @ query
        best = np.argpartition(-cosines, TOP)[:TOP]
        return best[np.argsort(-cosines[best])]

    return {
        "index": of_index,
        "filtered": lambda query: of_index(query, fits),
        "numpy": of_numpy,
        "faiss": lambda query: flat.search(query[None], TOP)[1][0],
        "faiss-fp16": lambda query: halves.search(query[None], TOP)[1][0],
    }


def _full_sort(query: NDArray[np.float32], vectors: NDArray[np.float32]) -> NDArray[np.intp]:
    cosines = np.concatenate(
        [vectors[start : start + 65_536].astype(np.float64) @ query for start in range(0, len(vectors), 65_536)]
    )
    best: NDArray[np.intp] = np.argsort(-cosines)[:TOP]
    return best


def _leave_memory(folder: Path) -> None:
    """Ask the system to drop the files from its memory, as after a restart."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
