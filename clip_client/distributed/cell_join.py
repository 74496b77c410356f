"""Joins alike vectors that are too many for one machine, with the cells that one machine uses.

Tasks put each vector into its nearest cells (:mod:`.shuffle`), compare the vectors inside a cell, and write pairs that
connect what is alike. A cell with more vectors than a worker may hold is compared in parts, each with each.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client.dedup.compare.candidate_pairs import near_by_hashes, near_by_vectors
from clip_client.dedup.compare.cells import Cells, RecallSample
from clip_client.dedup.compare.hamming import equal_bands, join_hashes
from clip_client.dedup.compare.similarity_join import UnionFind, alike_links
from clip_client.distributed.embedded_rows import VECTOR, vectors_in
from clip_client.distributed.shuffle import RUN_AGAIN, bucket_sizes, read_buckets, write_buckets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from clip_client.dedup.compare.similarity_join import ComparePairs, Projection
    from clip_client.dedup.types import RecallEstimate
    from clip_client.distributed.embedded_rows import Chunk
    from clip_client.distributed.storage import Location

    Vectors = NDArray[np.float32]
    Indices = NDArray[np.intp]
    IsUsed = NDArray[np.bool_]

ROW: Final = "row"
_ASSIGNED_AT_ONCE: Final = 16_384
_GPU_BLOCK_ROWS: Final = 4096
"""Rows per block on a GPU: the pairs of two blocks take 270 MB at most."""
_EDGES_PER_GROUP: Final = 65_536
_NO_EDGES: Final = (np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0, np.float32))


@dataclass(frozen=True, kw_only=True, eq=False)
class Division:
    """How the vectors are compared."""

    threshold: float
    cells: Cells
    count: int
    """Cells of each vector."""
    projection: Projection | None
    estimate: RecallEstimate
    candidate: float | None
    """The least cosine of photos that are worth aligning; None if none are aligned, or all of those are alike."""
    gpu_share: float = 0
    """Part of a GPU that a comparing task needs; 0 without GPUs."""


def one_cell(dimension: int) -> Cells:
    """Return a cell that holds everything, so that each vector is compared with each."""
    nothing = np.zeros((1, dimension), np.float32)
    return Cells(centre=nothing[0], directions=nothing, numbers=np.zeros(1, np.intp))


def find_alike(
    chunk: Chunk, is_used: IsUsed, rows: Indices, sampled: Vectors, threshold: float, projection: Projection | None
) -> RecallSample:
    """Compare ``sampled`` vectors, (S, D), whose numbers are ``rows``, (S,), with those of a chunk that are used, (R,).

    The result lacks the sampled vectors.
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


def put_into_cells(chunk: Chunk, is_used: IsUsed, place: Location, division: Division) -> NDArray[np.int64]:
    """Write the used rows of a chunk, sorted by cell, unless that is done; return the rows of each cell, (K,)."""
    import pyarrow as pa
    from pyarrow import fs

    cells = division.cells
    if place.filesystem.get_file_info(place.path).type != fs.FileType.NotFound:
        return bucket_sizes(place)
    table = chunk.read([VECTOR])
    vectors, used = vectors_in(table), np.flatnonzero(is_used)
    rows, numbers = [used[:0]], [used[:0]]
    for start in range(0, len(used), _ASSIGNED_AT_ONCE):
        some = used[start : start + _ASSIGNED_AT_ONCE]
        positions, own = cells.assign(vectors[some], division.count)
        rows.append(some[positions])
        numbers.append(own)
    table = table.append_column(ROW, pa.array(np.arange(chunk.rows) + chunk.first_row))
    return write_buckets(place, table, np.concatenate(rows), np.concatenate(numbers), len(cells.numbers))


@dataclass(frozen=True, kw_only=True)
class CellBlock:
    """What one task compares: whole cells, or two parts of a large one."""

    first: int
    end: int
    """Cells from ``first`` to before ``end``."""
    chunks: tuple[int, ...]
    """The chunks whose rows are compared."""
    part: str = ""
    """Which parts of a large cell these are."""

    @property
    def name(self) -> str:
        """A name that no other block of a run has."""
        return f"{self.first:06}-{self.end:06}{self.part}"


def cell_blocks(sizes: NDArray[np.int64], most_rows: int) -> list[CellBlock]:
    """Divide the cells into blocks of at most ``most_rows`` rows; ``sizes``, (chunks, K), are the rows of each.

    No chunk has more than ``most_rows // 2`` rows of one cell.
    """
    everything = tuple(range(len(sizes)))
    blocks: list[CellBlock] = []
    first = rows = 0
    for cell, size in enumerate(sizes.sum(axis=0).tolist()):
        if rows + size > most_rows:
            if rows:
                blocks.append(CellBlock(first=first, end=cell, chunks=everything))
            first, rows = cell, 0
        if size > most_rows:
            blocks.extend(_pairs_of_parts(cell, sizes[:, cell], most_rows // 2))
            first = cell + 1
        else:
            rows += size
    if rows:
        blocks.append(CellBlock(first=first, end=sizes.shape[1], chunks=everything))
    return blocks


def _pairs_of_parts(cell: int, sizes: NDArray[np.int64], most_rows: int) -> Iterator[CellBlock]:
    """Divide a cell into parts of at most ``most_rows`` rows, and yield each two of them."""
    parts: list[list[int]] = []
    rows = most_rows
    for chunk in np.flatnonzero(sizes).tolist():
        if rows + sizes[chunk] > most_rows:
            parts.append([])
            rows = 0
        parts[-1].append(chunk)
        rows += sizes[chunk]
    # One chunk may hold the whole cell, if a file has row groups of this size.
    pairs = list(itertools.combinations(parts, 2)) or [(parts[0], [])]
    for number, (left, right) in enumerate(pairs):
        yield CellBlock(first=cell, end=cell + 1, chunks=(*left, *right), part=f"-{number:06}")


def join_block(
    block: CellBlock, edges: Location, candidates: Location, places: Sequence[Location], division: Division
) -> int:
    """Compare the rows of each cell in a block, read from the chunks' files in ``places``; return the edges written.

    Pairs that are worth aligning and not alike go into ``candidates``.
    """
    found, near = [], [_NO_EDGES]
    for table in read_buckets([places[chunk] for chunk in block.chunks], block.first, block.end):
        vectors, rows = vectors_in(table), table.column(ROW).to_numpy()
        left, right = _links(vectors, division)
        found.append((rows[left], rows[right], np.einsum("ij,ij->i", vectors[left], vectors[right])))
        for left, right in () if division.candidate is None else near_by_vectors(vectors, division.candidate):
            similarity = np.einsum("ij,ij->i", vectors[left], vectors[right])
            rest = (similarity < division.threshold) & (left != right)
            near.append((rows[left[rest]], rows[right[rest]], similarity[rest]))
    if division.candidate is not None:
        write_edges(candidates, *(np.concatenate(side) for side in zip(*near, strict=True)))
    return write_edges(edges, *(np.concatenate(side) for side in zip(*found, strict=True)))


def _links(vectors: Vectors, division: Division) -> tuple[Indices, Indices]:
    """Return pairs that connect what is alike, found on a GPU if the task has one."""
    rows = np.arange(len(vectors))
    if division.gpu_share:
        compare = alike_pairs_on("cuda")
        return alike_links(rows, vectors, division.threshold, block_rows=_GPU_BLOCK_ROWS, compare=compare)
    projected = None if division.projection is None else division.projection(vectors)
    return alike_links(rows, vectors, division.threshold, projected=projected)


def alike_pairs_on(device: str) -> ComparePairs:
    """Return what does the work of :func:`.similarity_join.alike_pairs` with PyTorch on a device."""
    import torch

    def compare(
        vectors: Vectors, left: Indices, right: Indices, threshold: float, shorts: tuple[Vectors, Vectors] | None
    ) -> tuple[Indices, Indices]:
        one, other = (torch.from_numpy(vectors[rows]).to(device) for rows in (left, right))
        found = torch.nonzero(one @ other.T >= threshold).cpu().numpy()
        return found[:, 0], found[:, 1]

    return compare


def hash_parts(hashes: NDArray[np.uint64], most_bits: int, most_rows: int) -> Iterator[Indices]:
    """Yield positions of ``hashes`` that one task compares; two that differ in few bits are together at least once.

    A part has about ``most_rows`` hashes, or as many as agree in a band of bits, and none has them if ``most_bits`` is
    negative.
    """
    if len(hashes) <= most_rows:
        if most_bits >= 0:
            yield np.arange(len(hashes))
        return
    for runs in equal_bands(hashes, most_bits) if most_bits >= 0 else ():
        ends = np.cumsum([len(run) for run in runs])
        for _, part in itertools.groupby(zip(ends.tolist(), runs, strict=True), lambda one: one[0] // most_rows):
            yield np.concatenate([run for _, run in part])


def join_equal_hashes(rows: Indices, hashes: NDArray[np.uint64], edges: Location, most_bits: int) -> int:
    """Compare the perceptual ``hashes`` of ``rows``, both (N,); return the number of edges written."""
    alike = UnionFind(len(rows))
    join_hashes(alike, np.arange(len(rows)), hashes, most_bits)
    linked = np.flatnonzero(alike.labels != np.arange(len(rows)))
    similarity = np.full(len(linked), np.nan, dtype=np.float32)
    return write_edges(edges, rows[linked], rows[alike.labels[linked]], similarity)


def pair_hashes(candidates: Location, part: int, rows: Indices, hashes: NDArray[np.uint64], parts: int) -> int:
    """Write the pairs of ``rows`` whose ``hashes``, both (N,), are worth aligning, also turned and mirrored.

    A row with two hashes stands twice. Each of the ``parts`` looks for the neighbours of other rows.
    """
    nothing = (rows[:0], rows[:0])
    found = near_by_hashes(rows, hashes, part, parts)
    pairs = [nothing, *found]
    left, right = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return write_edges(candidates, left, right, np.full(len(left), np.nan, dtype=np.float32))


def write_edges(place: Location, left: Indices, right: Indices, similarity: Vectors) -> int:
    """Write pairs of rows with their cosines, all (E,), and return their number; raises DistributedError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # In this order, a reader of some similarities skips the other row groups.
    order = np.argsort(-similarity, kind="stable")
    table = pa.table({"left": left[order], "right": right[order], "similarity": similarity[order]})
    with place.written() as file:
        pq.write_table(table, file, row_group_size=_EDGES_PER_GROUP)
    return len(left)


def read_edges(places: Iterable[Location], *, similar: tuple[float, float] | None = None) -> tuple[Indices, Indices]:
    """Return the rows of all edges, both (E,), or of those from the first to below the second of ``similar``.

    Raises DistributedError.
    """
    wanted = None if similar is None else [("similarity", ">=", similar[0]), ("similarity", "<", similar[1])]
    import pyarrow.parquet as pq

    sides: list[tuple[Any, Any]] = [(np.empty(0, np.intp), np.empty(0, np.intp))]
    for place in places:
        with place.opened(RUN_AGAIN) as file:
            table = pq.read_table(file, columns=["left", "right"], filters=wanted)
        sides.append((table.column("left").to_numpy(), table.column("right").to_numpy()))
    left, right = (np.concatenate(side) for side in zip(*sides, strict=True))
    return left, right
