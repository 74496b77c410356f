"""Joins similar vectors that are too many for one machine, with the same cells as a search on one machine.

Rows get to their cells, and photos to their components, through files in Arrow's IPC format, with a record batch for
each bucket; the files stay if a worker or the driver dies. ``Dataset.groupby`` would hold each vector in the object
store once for each of its cells, need a whole cell in one worker, and start over if the driver died.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clip_client.dedup.compare.cells import Cells, RecallSample
from clip_client.dedup.compare.neighbours import join_hashes, near_by_hashes, near_by_vectors
from clip_client.dedup.compare.similarity_join import Projection, UnionFind, alike_links
from clip_client.dedup.types import Indices, Mask, RecallEstimate, Vectors
from clip_client.distributed.embedded_rows import VECTOR, Chunk, vectors_in
from clip_client.distributed.storage import Location

Edges = tuple[Indices, Indices, Vectors]  # two arrays of rows, and the cosines of the pairs

ROW: Final = "row"
_RUN_AGAIN: Final = "remove it and run again"
_BUCKET_ROWS: Final = b"bucket_rows"


@dataclass(frozen=True, kw_only=True, eq=False)
class Division:
    threshold: float
    cells: Cells
    count: int  # number of cells that each vector is put into
    projection: Projection | None
    estimate: RecallEstimate
    candidate: float | None
    """Least cosine of photos worth aligning. None if none are aligned, or all such photos are alike."""


def find_alike(
    chunk: Chunk, is_used: Mask, rows: Indices, sampled: Vectors, threshold: float, projection: Projection | None
) -> RecallSample:
    """Compare ``sampled`` vectors (S, D) with the used vectors of a chunk; return what is alike, without the vectors.

    ``rows`` (S,) are the numbers of the sampled vectors; ``is_used`` (R,) marks the rows of the chunk.
    """
    used, count = np.flatnonzero(is_used), len(rows)
    vectors = np.concatenate([sampled, vectors_in(chunk.read([VECTOR]))[used]])
    found = RecallSample.find(
        vectors,
        np.arange(count, len(vectors)),
        np.arange(count),
        threshold,
        ids=np.concatenate([rows, used + chunk.first_row]),
        projected=None if projection is None else projection(vectors),
    )
    return replace(found, vectors=found.vectors[:0])


def put_into_cells(chunk: Chunk, is_used: Mask, place: Location, division: Division) -> NDArray[np.int64]:
    """Write the used rows of a chunk, sorted by cell, unless the file exists; return the rows of each cell (K,)."""
    import pyarrow as pa
    from pyarrow import fs

    if place.filesystem.get_file_info(place.path).type != fs.FileType.NotFound:
        with place.opened(_RUN_AGAIN) as file, pa.ipc.open_file(file) as reader:
            return np.array(json.loads(reader.schema.metadata[_BUCKET_ROWS]), dtype=np.int64)
    table, used = chunk.read([VECTOR]), np.flatnonzero(is_used)
    positions, cells = division.cells.assign(vectors_in(table)[used], division.count)
    return write_buckets(place, chunk, used[positions], cells, len(division.cells.numbers), table)


def write_buckets(
    place: Location, chunk: Chunk, rows: Indices, buckets: Indices, count: int, table: Any = None
) -> NDArray[np.int64]:
    """Write ``rows`` (M,) of a chunk, with their numbers, into ``buckets`` (M,), numbers below ``count``.

    A row may be in several buckets. ``table`` has the chunk's columns to write (default: all). Returns the number of
    rows in each bucket (count,). Raises DistributedError.
    """
    import pyarrow as pa

    table = (chunk.read() if table is None else table).append_column(
        ROW, pa.array(np.arange(chunk.rows) + chunk.first_row)
    )
    order = np.argsort(buckets, kind="stable")
    sizes = np.bincount(buckets, minlength=count)
    schema = table.schema.with_metadata({_BUCKET_ROWS: json.dumps(sizes.tolist())})
    with place.written() as file, pa.ipc.new_file(file, schema) as writer:
        for own in np.split(rows[order], np.cumsum(sizes)[:-1]):
            columns = [column.combine_chunks() for column in table.take(own).columns]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return sizes


def read_buckets(places: Iterable[Location], first: int, end: int) -> Iterator[Any]:
    """Yield each bucket in ``range(first, end)`` of all ``places`` as a ``pyarrow.Table``. Raises DistributedError."""
    import pyarrow as pa

    parts: list[list[Any]] = [[] for _ in range(first, end)]
    for place in places:
        with place.opened(_RUN_AGAIN) as file, pa.ipc.open_file(file) as reader:
            for bucket, own in enumerate(parts, first):
                own.append(reader.get_batch(bucket))
    parts.reverse()  # a part is freed before the next one is joined
    while parts:
        yield pa.Table.from_batches(parts.pop()).combine_chunks()


@dataclass(frozen=True, kw_only=True)
class CellBlock:
    """The rows of cells ``first`` to before ``end`` in these chunks: whole cells, or two parts of a large cell."""

    name: str
    first: int
    end: int
    chunks: tuple[int, ...]


def cell_blocks(sizes: NDArray[np.int64], most_rows: int) -> list[CellBlock]:
    """Divide cells into blocks; ``sizes`` (chunks, K) are a chunk's rows in a cell, at most ``most_rows // 2``."""
    blocks: list[CellBlock] = []
    first = rows = 0

    def add(end: int, chunks: Sequence[int], part: str = "") -> None:
        blocks.append(CellBlock(name=f"{first:06}-{end:06}{part}", first=first, end=end, chunks=tuple(chunks)))

    for cell, size in enumerate(sizes.sum(axis=0).tolist()):
        if rows and rows + size > most_rows:
            add(cell, range(len(sizes)))
            first, rows = cell, 0
        rows += size
        if size > most_rows:
            for number, chunks in enumerate(_pairs_of_parts(sizes[:, cell], most_rows // 2)):
                add(cell + 1, chunks, f"-{number:06}")
            first, rows = cell + 1, 0
    if rows:
        add(sizes.shape[1], range(len(sizes)))
    return blocks


def _pairs_of_parts(sizes: NDArray[np.int64], most_rows: int) -> Iterator[list[int]]:
    parts: list[list[int]] = []
    rows = most_rows
    for chunk in np.flatnonzero(sizes).tolist():
        if rows + sizes[chunk] > most_rows:
            parts.append([])
            rows = 0
        parts[-1].append(chunk)
        rows += sizes[chunk]
    # If a file has row groups of this size, one chunk may hold the whole cell.
    yield from (left + right for left, right in itertools.combinations(parts, 2)) if len(parts) > 1 else parts


def join_block(
    edges: Location, block: CellBlock, places: Sequence[Location], candidates: Location, division: Division
) -> None:
    """Compare the rows of a block cell by cell; write the edges, and to ``candidates`` pairs worth aligning."""
    alike: list[Edges] = []
    near: list[Edges] = []
    for table in read_buckets([places[chunk] for chunk in block.chunks], block.first, block.end):
        vectors, rows = vectors_in(table), table.column(ROW).to_numpy()
        projected = None if division.projection is None else division.projection(vectors)
        left, right = alike_links(np.arange(len(vectors)), vectors, division.threshold, projected=projected)
        alike.append((rows[left], rows[right], np.einsum("ij,ij->i", vectors[left], vectors[right])))
        for left, right in () if division.candidate is None else near_by_vectors(vectors, division.candidate):
            similarity = np.einsum("ij,ij->i", vectors[left], vectors[right])
            rest = (similarity < division.threshold) & (left != right)
            near.append((rows[left[rest]], rows[right[rest]], similarity[rest]))
    if division.candidate is not None:
        write_edges(candidates / edges.name, near)
    write_edges(edges, alike)


def join_equal_hashes(
    edges: Location, part: Indices, rows: Indices, hashes: NDArray[np.uint64], most_bits: int
) -> None:
    """Write edges between the rows at positions ``part`` whose ``hashes`` differ in at most ``most_bits``."""
    rows, hashes = rows[part], hashes[part]
    alike = UnionFind(len(rows))
    join_hashes(alike, np.arange(len(rows)), hashes, most_bits)
    linked = np.flatnonzero(alike.labels != np.arange(len(rows)))
    _write_unmeasured(edges, [(rows[linked], rows[alike.labels[linked]])])


def pair_hashes(candidates: Location, part: int, rows: Indices, hashes: NDArray[np.uint64], parts: int) -> None:
    """Write the pairs of ``rows`` (N,) that are worth aligning by their ``hashes`` (N,), also turned and mirrored.

    A row with two hashes is there twice. Of ``parts`` tasks, number ``part`` looks for the neighbours of its own rows.
    """
    _write_unmeasured(candidates, near_by_hashes(rows, hashes, part, parts))


def _write_unmeasured(place: Location, pairs: Iterable[tuple[Indices, Indices]]) -> None:
    write_edges(place, ((left, right, np.full(len(left), np.nan, np.float32)) for left, right in pairs))


def write_edges(place: Location, edges: Iterable[Edges]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    nothing: Edges = (np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0, np.float32))
    sides = (np.concatenate(side) for side in zip(nothing, *edges, strict=True))
    # The order lets a reader of some similarities skip the other row groups.
    table = pa.table(dict(zip(("left", "right", "similarity"), sides, strict=True)))
    with place.written() as file:
        pq.write_table(table.sort_by([("similarity", "descending")]), file, row_group_size=65_536)


def read_edges(places: Iterable[Location], *, similar: tuple[float, float] | None = None) -> tuple[Indices, Indices]:
    """Return the left and right rows (E,) of all edges, or of edges from the first to below the second ``similar``."""
    import pyarrow.parquet as pq

    wanted = None if similar is None else [("similarity", ">=", similar[0]), ("similarity", "<", similar[1])]
    sides: list[tuple[Any, Any]] = [(np.empty(0, np.intp), np.empty(0, np.intp))]
    for place in places:
        with place.opened(_RUN_AGAIN) as file:
            table = pq.read_table(file, columns=["left", "right"], filters=wanted)
        sides.append((table.column("left").to_numpy(), table.column("right").to_numpy()))
    left, right = (np.concatenate(side) for side in zip(*sides, strict=True))
    return left, right
