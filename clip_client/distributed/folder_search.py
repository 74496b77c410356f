"""The steps of a search for duplicates among the rows of :func:`.embed_partitions`, on a Ray cluster.

Workers hold a chunk or a block of cells at a time. The driver holds numbers and hashes of the rows, a sample of the
vectors, and the union-find that joins the rows of all edges.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client.dedup.compare.candidate_pairs import with_inner_hashes
from clip_client.dedup.compare.cells import ALL_COMPARED, RecallSample, fit_cells, sample_size
from clip_client.dedup.compare.similarity_join import UnionFind, fit_projection
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.search import OFF, GroupRules
from clip_client.distributed.cell_join import (
    Division,
    cell_blocks,
    find_alike,
    hash_parts,
    join_block,
    join_equal_hashes,
    one_cell,
    pair_hashes,
    put_into_cells,
    read_edges,
)
from clip_client.distributed.cluster import DistributedError, gpu_share, in_tasks
from clip_client.distributed.component_groups import (
    DuplicateSummary,
    count_groups,
    equal_pairs,
    group_bucket,
    group_photos,
    join_while_small,
    put_into_components,
    write_groups,
)
from clip_client.distributed.embedded_rows import FACTS, first_with_content, read_facts
from clip_client.distributed.partition_folder import embedded_schema
from preprocess_ensemble.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from clip_client._vectors.vector_file import FileModel
    from clip_client.dedup.types import RecallEstimate
    from clip_client.distributed.embedded_rows import Chunk
    from clip_client.distributed.storage import Location

    Indices = NDArray[np.intp]
    OnTasks = Callable[[str, int, int | None], None]
    Results = Generator[tuple[int, Any], None, None]

_CELLS: Final = "_cells"
_EDGES: Final = "edges"
_CANDIDATES: Final = "candidates"
_COMPONENTS: Final = "_components"
GROUPS: Final = "groups"
"""Folders of the output; readers of Parquet skip what begins with an underscore."""
_OWN_FILE: Final = re.compile(r"[0-9a-f]{16}-.*|[0-9]{6}\.arrow|part-[0-9]{5,}\.parquet|_SUCCESS|\..*\.part")
_NO_KEY: Final = "none"
SUCCESS: Final = "_SUCCESS"

_RECALL_ROWS: Final = 5000
"""Vectors whose alike vectors are found exactly, to measure the recall."""
_HASHES_PER_TASK: Final = 1 << 20
_PAIRED_PER_TASK: Final = 1 << 16
"""Hashes whose turned and mirrored neighbours a task looks for, among all of them."""
_GROUPED_PER_TASK: Final = 8192
"""Photos that a task divides into groups, unless one component has more."""
_ALIGNED_PER_TASK: Final = 512
"""Photos that a task divides into groups and aligns, which takes minutes; more if there would be too many tasks."""
_FEW_TASKS: Final = 4096
_SIMILARITIES_AT_ONCE: Final = 0.02
"""Pairs that are worth aligning join components in steps of this, the most similar first."""


def key_of(*facts: object, arrays: Iterable[NDArray[Any]] = ()) -> str:
    """Return a name for work that was done with these facts: what is under this name need not be done again."""
    key = hashlib.blake2b(repr(facts).encode("utf-8", "surrogateescape"))
    for array in arrays:
        key.update(np.ascontiguousarray(array).tobytes())
    return key.hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class FolderSearch:
    """One search; its methods are its steps."""

    model: FileModel
    chunks: Sequence[Chunk]
    output: Location
    rules: GroupRules
    exact_rows: int
    rows_at_once: int
    working_folder: str | None
    returns_groups: bool
    progress: OnTasks

    def run(self) -> tuple[DuplicateSummary, DuplicateReport]:
        """Search; raises as :func:`.find_duplicates`."""
        facts, sample = self._read()
        firsts = first_with_content(facts)
        is_photo, is_first = firsts >= 0, firsts == np.arange(len(firsts))
        is_used = facts["is_picture"] & is_first
        division = self._divide(sample, is_used)
        cells = division.cells
        settings = (self.model.vector_id, self.rules.thresholds, self.rules.verify, self.rules.hash_bits)
        rows = (division.count, self.rows_at_once, *(chunk.rows for chunk in self.chunks))
        arrays = (facts["content"], is_used, cells.centre, cells.directions, cells.numbers)
        key = key_of(settings, rows, arrays=arrays)
        sizes = self._put_into_cells(key, is_used, division)
        self._compare(key, division, sizes)
        self._compare_hashes(key, facts, np.flatnonzero(is_used))
        edges = read_edges(self._places(_EDGES, key))
        alike = UnionFind(len(firsts))
        alike.join(*edges)
        pairs = self._candidate_pairs(key, np.flatnonzero(is_first), facts)
        labels, pairs_left = join_while_small(alike.labels, pairs, _GROUPED_PER_TASK)
        grouped, places = self._group(key, np.where(is_photo, labels[firsts], -1), division.estimate)
        groups, photos, copies, unverified = count_groups(places)
        in_cells = sizes.sum(axis=0)
        summary = DuplicateSummary(
            output=str(self.output / GROUPS),
            thresholds=self.rules.thresholds,
            photos=int(is_photo.sum()),
            contents=int(is_first.sum()),
            groups=groups,
            grouped=photos,
            copies=copies,
            unverified=unverified,
            pairs_left=pairs_left,
            note=grouped.note,
            edges=len(edges[0]),
            recall=division.estimate,
            largest_cell=int(in_cells.max(initial=0)),
            mean_cell=float(in_cells.sum() / max(1, np.count_nonzero(in_cells))),
        )
        return summary, grouped

    def _read(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Read all chunks; return the facts about all rows, and the vectors that were drawn, in the order of rows."""
        rows = sum(chunk.rows for chunk in self.chunks)
        facts, samples = np.zeros(rows, FACTS), {}
        shares = (min(1.0, drawn / rows) for drawn in (sample_size(rows), _RECALL_ROWS))
        read = in_tasks(read_facts, ((chunk,) for chunk in self.chunks), *shares)
        for number, (part, sample) in self._shown("reading", read, len(self.chunks)):
            facts[self.chunks[number].row_slice] = part
            samples[number] = sample
        return facts, np.concatenate([sample for _, sample in sorted(samples.items())])

    def _divide(self, sample: NDArray[Any], is_used: NDArray[np.bool_]) -> Division:
        """Decide how the vectors are compared."""
        thresholds, count = self.rules.thresholds, int(is_used.sum())
        threshold = thresholds.similar
        is_lower = self.rules.verify != OFF and thresholds.candidate < threshold
        candidate = thresholds.candidate if is_lower else None
        sample = sample[is_used[sample["row"]]]
        seen = np.ascontiguousarray(sample["vector"][sample["for_cells"]])
        projection = fit_projection(seen, np.arange(len(seen)), threshold)
        if count <= self.exact_rows or not len(seen):
            cells, estimate, per_vector = one_cell(seen.shape[1]), ALL_COMPARED, 1
        else:
            drawn = sample[sample["for_recall"]]
            calls = ((chunk, is_used[chunk.row_slice]) for chunk in self.chunks)
            sampled = np.ascontiguousarray(drawn["vector"])
            parts = in_tasks(find_alike, calls, drawn["row"], sampled, threshold, projection)
            found = (part for _, part in self._shown("measuring the recall", parts, len(self.chunks)))
            # One after the other: a part may hold 16 vectors for each that was sampled.
            measured = functools.reduce(lambda one, other: RecallSample.combine([one, other]), found)
            cells = fit_cells(seen, count, threshold)
            estimate, per_vector = replace(measured, vectors=sampled).choose_count(cells)
        return Division(
            threshold=threshold,
            cells=cells,
            count=per_vector,
            projection=projection,
            estimate=estimate,
            candidate=candidate,
            gpu_share=gpu_share(),
        )

    def _put_into_cells(self, key: str, is_used: NDArray[np.bool_], division: Division) -> NDArray[np.int64]:
        """Sort the vectors of each chunk by cell; return how many of them are in each cell, (chunks, K)."""
        self._places(_CELLS, key)
        sizes = np.zeros((len(self.chunks), len(division.cells.numbers)), np.int64)
        calls = ((chunk, is_used[chunk.row_slice], self._cells_of(key, chunk)) for chunk in self.chunks)
        divided = in_tasks(put_into_cells, calls, division)
        for number, own in self._shown("dividing into cells", divided, len(self.chunks)):
            sizes[number] = own
        return sizes

    def _compare(self, key: str, division: Division, sizes: NDArray[np.int64]) -> None:
        """Compare the vectors in each cell that is not compared yet."""
        self._places(_CANDIDATES, key)
        calls = (
            (block, self.output / _EDGES / name, self.output / _CANDIDATES / name)
            for block in cell_blocks(sizes, self.rows_at_once)
            for name in (f"{key}-cells-{block.name}.parquet",)
        )
        missing = list(self._missing(_EDGES, key, calls, 1))
        places = [self._cells_of(key, chunk) for chunk in self.chunks]
        joined = in_tasks(join_block, missing, places, division, gpu_share=division.gpu_share)
        self._wait("comparing", joined, len(missing))

    def _compare_hashes(self, key: str, facts: NDArray[Any], used: Indices) -> None:
        """Compare the perceptual hashes of the rows in ``used`` that are not compared yet."""
        most_bits, hashes = self.rules.hash_bits, facts["hash"][used]
        parts = (
            (used[part], hashes[part], self.output / _EDGES / f"{key}-hashes-{number:06}.parquet")
            for number, part in enumerate(hash_parts(hashes, most_bits, _HASHES_PER_TASK))
        )
        missing = self._missing(_EDGES, key, parts, 2)
        self._wait("comparing hashes", in_tasks(join_equal_hashes, missing, most_bits), None)
        if self.rules.verify != OFF and len(used) <= _HASHES_PER_TASK:
            count = -(-len(used) // _PAIRED_PER_TASK)
            tasks = (
                (self.output / _CANDIDATES / f"{key}-hashes-{number:06}.parquet", number) for number in range(count)
            )
            unpaired = list(self._missing(_CANDIDATES, key, tasks, 0))
            both = with_inner_hashes(used, facts["hash"], facts["inner_hash"])
            self._wait("pairing hashes", in_tasks(pair_hashes, unpaired, *both, count), len(unpaired))

    def _candidate_pairs(self, key: str, rows: Indices, facts: NDArray[Any]) -> Iterator[tuple[Indices, Indices]]:
        """Yield the pairs of ``rows`` that may show the same, the most certain first."""
        yield equal_pairs(rows, facts["flat_size"])
        if self.rules.verify == OFF:
            return
        places = self._places(_CANDIDATES, key)
        cells = [place for place in places if f"{key}-cells-" in place.path]
        yield read_edges(place for place in places if f"{key}-hashes-" in place.path)
        yield equal_pairs(rows, facts["moment"])
        thresholds = self.rules.thresholds
        steps = np.arange(thresholds.similar, thresholds.candidate, -_SIMILARITIES_AT_ONCE).tolist()
        for high, low in itertools.pairwise([np.inf, *steps[1:], -1.0]):
            yield read_edges(cells, similar=(low, high))

    def _group(self, key: str, labels: Indices, recall: RecallEstimate) -> tuple[DuplicateReport, list[Location]]:
        """Divide components into groups; ``labels``, (R,), are equal for the rows of one, and -1 for no photo.

        A part that was finished by a search that ended early stays, unless the groups themselves are wanted. Returns
        what this search has grouped, and the files of all groups.
        """
        is_grouped = labels >= 0
        is_grouped[is_grouped] = np.bincount(labels[is_grouped], minlength=len(labels))[labels[is_grouped]] > 1
        rows = np.flatnonzero(is_grouped)
        _, which, sizes = np.unique(labels[rows], return_inverse=True, return_counts=True)
        at_once = _GROUPED_PER_TASK
        if self.rules.verify != OFF:
            at_once = min(at_once, max(_ALIGNED_PER_TASK, len(rows) // _FEW_TASKS))
        _, bucket_of = np.unique((np.cumsum(sizes) - sizes) // at_once, return_inverse=True)
        buckets, count = bucket_of[which], int(bucket_of.max(initial=-1)) + 1
        self._places(_COMPONENTS)
        calls, places = [], []
        for chunk in self.chunks:
            own = slice(*np.searchsorted(rows, [chunk.first_row, chunk.first_row + chunk.rows]))
            if own.start < own.stop:
                places.append(self.output / _COMPONENTS / f"{chunk.number:06}.arrow")
                calls.append((chunk, rows[own] - chunk.first_row, buckets[own], count, places[-1]))
        self._wait("collecting groups", in_tasks(put_into_components, calls), len(calls))
        key = key_of(key, self.rules, arrays=[labels])
        files = [self.output / GROUPS / f"{key}-part-{bucket:05}.parquet" for bucket in range(max(count, 1))]
        missing = list(self._missing(GROUPS, _NO_KEY if self.returns_groups else key, enumerate(files[:count]), 1))
        written = in_tasks(group_bucket, missing, places, self.rules, self.working_folder, self.returns_groups)
        # What grouping nothing returns names all sources of pairs, and the package that is missing.
        parts = [group_photos(embedded_schema(self.model, features=True).empty_table(), self.rules)]
        parts += (part for _, part in self._shown("grouping", written, len(missing)))
        if not count:
            write_groups(files[0], [])
        return DuplicateReport.combine(parts, recall), files

    def finish(self, key: str, summary: DuplicateSummary) -> None:
        """Say that the groups are complete, and remove what only the search needs."""
        try:
            with (self.output / GROUPS / SUCCESS).replacing() as file:
                file.write(json.dumps({"key": key, "summary": asdict(summary)}, indent=1).encode())
            for name in (_CELLS, _COMPONENTS):
                self.output.filesystem.delete_dir((self.output / name).path)
        except OSError as error:
            raise DistributedError(f"{self.output} cannot be used for the output: {first_line(error)}") from error

    def _cells_of(self, key: str, chunk: Chunk) -> Location:
        return self.output / _CELLS / f"{key}-{chunk.number:06}.arrow"

    def _places(self, name: str, key: str = _NO_KEY) -> list[Location]:
        """Make a folder of the output, remove other files of a search than those of ``key``, and return the latter."""
        folder = self.output / name
        try:
            folder.filesystem.create_dir(folder.path, recursive=True)
            found = folder.files(recursive=False)
            for info in found:
                if not info.base_name.startswith(key) and _OWN_FILE.fullmatch(info.base_name):
                    folder.filesystem.delete_file(info.path)
        except OSError as error:
            raise DistributedError(f"{folder} cannot be used for the output: {first_line(error)}") from error
        return [folder.at(info.path) for info in found if info.base_name.startswith(key)]

    def _missing(self, name: str, key: str, calls: Iterable[tuple[Any, ...]], place: int) -> Iterator[tuple[Any, ...]]:
        """Return those calls of tasks whose output, their argument number ``place``, is not in a folder."""
        finished = {one.path for one in self._places(name, key)}
        return (call for call in calls if call[place].path not in finished)

    def _wait(self, what: str, results: Results, total: int | None) -> None:
        for _ in self._shown(what, results, total):
            pass

    def _shown(self, what: str, results: Results, total: int | None) -> Results:
        with closing(results):  # what still runs ends before the connection to the cluster
            for done, result in enumerate(results, 1):
                yield result
                self.progress(what, done, total)
