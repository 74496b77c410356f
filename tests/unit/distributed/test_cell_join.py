"""Blocks of cells that workers compare: together they compare each pair of a cell, and none holds too many rows."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from clip_client.dedup.compare.hamming import hash_parts
from clip_client.distributed import DistributedError
from clip_client.distributed.cell_join import cell_blocks, read_buckets, write_buckets
from clip_client.distributed.component_groups import join_while_small
from clip_client.distributed.embedded_rows import Chunk
from clip_client.distributed.storage import Location

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("most_rows", [20, 64, 1000])
def test_blocks_compare_each_pair_of_a_cell_and_stay_small(most_rows: int) -> None:
    sizes = np.random.default_rng(0).integers(0, most_rows // 2, (6, 20))
    sizes[:, 5] = most_rows // 2
    sizes[:, 7] = 0
    blocks = cell_blocks(sizes, most_rows)
    assert len({block.name for block in blocks}) == len(blocks)
    for block in blocks:
        assert sizes[list(block.chunks), block.first : block.end].sum() <= most_rows
    for cell in range(sizes.shape[1]):
        inside = [block.chunks for block in blocks if block.first <= cell < block.end]
        together = {pair for chunks in inside for pair in itertools.product(chunks, chunks)}
        filled = np.flatnonzero(sizes[:, cell]).tolist()
        assert together.issuperset(itertools.product(filled, filled))


def test_a_chunk_that_is_a_large_cell_is_one_block() -> None:
    """If a file has row groups of more rows than a worker should hold, the worker holds them all the same."""
    (block,) = cell_blocks(np.array([[50]]), 20)
    assert (block.first, block.end, block.chunks) == (0, 1, (0,))


@pytest.mark.parametrize("most_rows", [20, 200, 1000])
def test_hashes_that_differ_in_few_bits_are_compared(most_rows: int) -> None:
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**64, 200, dtype=np.uint64)
    flips = np.array([[0, 1, 63], [20, 21, 22], [15, 31, 47], [5, 5, 5]], dtype=np.uint64)
    near = np.concatenate([hashes[:100] ^ np.bitwise_xor.reduce(np.uint64(1) << flip) for flip in flips])
    hashes = np.concatenate([hashes, near])
    parts = list(hash_parts(hashes, 3, most_rows))
    assert (len(parts) == 1) == (most_rows == 1000)
    together = {pair for part in parts for pair in itertools.combinations(sorted(part.tolist()), 2)}
    assert together.issuperset((row % 100, 200 + row) for row in range(400))


def test_components_are_joined_as_long_as_a_worker_can_hold_them() -> None:
    alike = np.array([0, 0, 0, 0, 0, 5, 6, 7, 8, 9])  # five that are alike, and five others
    pairs = [(np.array([5, 0]), np.array([6, 7])), (np.array([7, 8]), np.array([5, 9]))]
    labels, left_out = join_while_small(alike, pairs, 2)
    assert labels.tolist() == [0, 0, 0, 0, 0, 5, 5, 0, 8, 8]
    assert left_out == 1
    labels, left_out = join_while_small(alike, pairs, 3)
    assert labels.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 8, 8]
    assert left_out == 0


def test_buckets_hold_the_rows_of_all_files(tmp_path: Path) -> None:
    places = [Location.of(tmp_path / name) for name in ("a", "b")]
    chunk = Chunk(number=1, first_row=10, rows=3, pieces=())
    table = pa.table({"letter": ["x", "y", "z"]})
    rows, buckets = np.array([0, 1, 1, 2]), np.array([3, 0, 3, 0])
    assert write_buckets(places[0], chunk, table, rows, buckets, 4).tolist() == [2, 0, 0, 2]
    write_buckets(places[1], chunk, table, rows[:0], buckets[:0], 4)
    read = [own.to_pydict() for own in read_buckets(places, 0, 4)]
    assert read[0] == {"letter": ["y", "z"], "row": [11, 12]}
    assert [own["row"] for own in read] == [[11, 12], [], [], [10, 11]]
    assert [own.to_pydict() for own in read_buckets(places, 3, 4)] == read[3:]


def test_a_damaged_file_of_the_shuffle_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(b"nothing")
    with pytest.raises(DistributedError, match=r"a\.arrow cannot be read .* remove it and run again"):
        next(read_buckets([Location.of(tmp_path / "a.arrow")], 0, 1))
