"""The steps of a search for duplicates among the rows of :func:`.embed_partitions`, on a Ray cluster.

Workers hold a chunk or a block of cells at a time. The driver holds numbers and hashes of the rows, a sample of the
vectors, and the union-find that joins the rows of all edges.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from clip_client.dedup.compare.candidate_pairs import with_inner_hashes
from clip_client.dedup.compare.cells import sample_size
from clip_client.dedup.compare.partitioned_join import EXACT_ROWS
from clip_client.dedup.compare.similarity_join import fit_projection
from clip_client.dedup.compare.union_find import UnionFind
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.search import OFF, GroupRules
from clip_client.distributed.cell_join import (
    Division,
    SampledVectors,
    cell_blocks,
    divide,
    everything_in_one_cell,
    find_alike,
    hash_parts,
    join_block,
    join_equal_hashes,
    pair_hashes,
    put_into_cells,
    read_edges,
)
from clip_client.distributed.chunks import chunks_of, embedded_files, inspect_files, one_model
from clip_client.distributed.cluster import DistributedError, cluster, gpu_share, in_tasks
from clip_client.distributed.component_groups import (
    DuplicateSummary,
    count_groups,
    group_bucket,
    group_photos,
    join_while_small,
    put_into_components,
    write_groups,
)
from clip_client.distributed.contents import Facts, Sample, equal_pairs, read_facts
from clip_client.distributed.partition_folder import embedded_schema
from preprocess_ensemble.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from clip_client._vectors.file_model import FileModel
    from clip_client.dedup.types import RecallEstimate
    from clip_client.distributed.chunks import Chunk
    from clip_client.distributed.storage import Location

    Indices = NDArray[np.intp]

_T = TypeVar("_T")

_CELLS: Final = "_cells"
_EDGES: Final = "edges"
_CANDIDATES: Final = "candidates"
_COMPONENTS: Final = "_components"
_GROUPS: Final = "groups"
"""Folders of the output; readers of Parquet skip what begins with an underscore."""
_OWN_FILE: Final = re.compile(r"[0-9a-f]{16}-.*|[0-9]{6}\.arrow|part-[0-9]{5,}\.parquet|_SUCCESS|\..*\.part")
_NO_KEY: Final = "none"
_SUCCESS: Final = "_SUCCESS"

ROWS_AT_ONCE: Final = 65_536
"""Vectors that a worker compares at a time: 134 MB with 512 numbers each."""
_FILES_PER_TASK: Final = 64
"""Files that a task inspects."""
_RECALL_ROWS: Final = 5000
"""Vectors whose alike vectors are found exactly, to measure the recall."""
_HASHES_PER_TASK: Final = 1 << 20
_PAIRED_PER_TASK: Final = 1 << 16
"""Hashes whose turned and mirrored neighbours a task looks for, among all of them."""
_GROUPED_PER_TASK: Final = 8192
"""Photos that a task divides into groups, unless one component has more."""
_ALIGNED_PER_TASK: Final = 512
"""The same if it aligns them, which takes minutes, as long as there are few tasks."""
_FEW_TASKS: Final = 4096
_SIMILARITIES_AT_ONCE: Final = 0.02
"""Pairs that are worth aligning join components in steps of this, the most similar first."""


def search_folder(
    vectors: Location,
    output: Location,
    rules_for: Callable[[FileModel], GroupRules],
    *,
    address: str | None = None,
    exact_rows: int = EXACT_ROWS,
    rows_at_once: int = ROWS_AT_ONCE,
    working_folder: str | None = None,
    returns_groups: bool = False,
    on_progress: Callable[[str, int, int | None], None] | None = None,
) -> tuple[DuplicateSummary, DuplicateReport]:
    """Do the work of :func:`.find_duplicates`; return the summary, and with ``returns_groups`` the groups as well.

    Paths that are relative are so to ``working_folder``, on every worker.
    """
    files = embedded_files(vectors)
    with cluster(address):
        batches = ((files[start : start + _FILES_PER_TASK],) for start in range(0, len(files), _FILES_PER_TASK))
        inspected = dict(in_tasks(inspect_files, batches))
        embedded = [file for _, some in sorted(inspected.items()) for file in some]
        model = one_model(embedded)
        chunks = chunks_of(embedded, max(1, rows_at_once // 2))
        if not chunks:
            raise DistributedError(f"{vectors} holds no photos")
        search = _Search(
            model=model,
            chunks=chunks,
            output=output,
            rules=rules_for(model),
            exact_rows=exact_rows,
            rows_at_once=rows_at_once,
            working_folder=working_folder,
            returns_groups=returns_groups,
            progress=on_progress or (lambda what, done, total: None),
        )
        return search.run()


@dataclass(frozen=True, kw_only=True)
class _Search:
    """One search; its methods are its steps."""

    model: FileModel
    chunks: Sequence[Chunk]
    output: Location
    rules: GroupRules
    exact_rows: int
    rows_at_once: int
    working_folder: str | None
    returns_groups: bool
    progress: Callable[[str, int, int | None], None]

    def run(self) -> tuple[DuplicateSummary, DuplicateReport]:
        """Search; raises as :func:`.find_duplicates`."""
        facts, sample = self._read()
        firsts = facts.first_with_content()
        is_photo, is_first = firsts >= 0, firsts == np.arange(len(firsts))
        is_used = facts.is_picture & is_first
        division = replace(self._divide(sample, is_used), gpu_share=gpu_share())
        key = self._key(facts, is_used, division)
        sizes = self._put_into_cells(key, is_used, division)
        edges = self._compare(key, facts, is_used, division, sizes)
        alike = UnionFind(len(firsts))
        alike.join(*edges)
        pairs = self._candidate_pairs(key, np.flatnonzero(is_first), facts, division)
        labels, pairs_left = join_while_small(alike.labels, pairs, _GROUPED_PER_TASK)
        totals, grouped = self._group(key, np.where(is_photo, labels[firsts], -1), division.estimate)
        self._finish()
        cells = sizes.sum(axis=0)
        groups, photos, copies, unverified = totals
        summary = DuplicateSummary(
            output=str(self._place(_GROUPS)),
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
            largest_cell=int(cells.max(initial=0)),
            mean_cell=float(cells.sum() / max(1, np.count_nonzero(cells))),
        )
        return summary, grouped

    @property
    def _candidate(self) -> float | None:
        """The least cosine of photos that are worth aligning, if some of them are not alike."""
        thresholds = self.rules.thresholds
        is_lower = self.rules.verify != OFF and thresholds.candidate < thresholds.similar
        return thresholds.candidate if is_lower else None

    def _read(self) -> tuple[Facts, Sample]:
        """Read all chunks; return the facts about all rows, and the vectors that were drawn."""
        rows = sum(chunk.rows for chunk in self.chunks)
        facts, samples = Facts.empty(rows), []
        shares = (min(1.0, drawn / rows) for drawn in (sample_size(rows), _RECALL_ROWS))
        read = in_tasks(read_facts, ((chunk,) for chunk in self.chunks), *shares)
        for number, (part, sample) in self._shown("reading", read, len(self.chunks)):
            facts.fill(self.chunks[number].row_slice, part)
            samples.append(sample)
        return facts, Sample.concatenate(samples)

    def _divide(self, sample: Sample, is_used: NDArray[np.bool_]) -> Division:
        """Decide how the vectors are compared."""
        sample = sample.of(is_used[sample.rows])
        threshold, count = self.rules.thresholds.similar, int(is_used.sum())
        seen = sample.vectors[sample.is_for_cells]
        if count <= self.exact_rows or not len(seen):
            return everything_in_one_cell(seen, threshold, self._candidate)
        projection = fit_projection(seen, np.arange(len(seen)), threshold)
        sampled = SampledVectors(
            rows=sample.rows[sample.is_for_recall],
            vectors=sample.vectors[sample.is_for_recall],
            threshold=threshold,
            projection=projection,
        )
        calls = ((chunk, is_used[chunk.row_slice]) for chunk in self.chunks)
        found = self._shown("measuring the recall", in_tasks(find_alike, calls, sampled), len(self.chunks))
        measured = sampled.measured(part for _, part in found)
        return divide(seen, count, measured, threshold, projection, self._candidate)

    def _key(self, facts: Facts, is_used: NDArray[np.bool_], division: Division) -> str:
        """Return a name for what is compared, and how: work under this name can be continued."""
        cells = division.cells
        settings = (
            self.model.vector_id,
            division.threshold,
            division.count,
            division.candidate,
            self.rules.verify,
            self.rules.hash_bits,
            tuple(chunk.rows for chunk in self.chunks),
            self.rows_at_once,
        )
        key = hashlib.blake2b(repr(settings).encode())
        for array in (facts.contents, is_used, cells.centre, cells.directions, cells.numbers):
            key.update(array.tobytes())
        return key.hexdigest()[:16]

    def _put_into_cells(self, key: str, is_used: NDArray[np.bool_], division: Division) -> NDArray[np.int64]:
        """Sort the vectors of each chunk by cell; return how many of them are in each cell, (chunks, K)."""
        self._only(_CELLS, key)
        sizes = np.zeros((len(self.chunks), len(division.cells.numbers)), np.int64)
        calls = ((chunk, is_used[chunk.row_slice], self._cells_of(key, chunk)) for chunk in self.chunks)
        divided = in_tasks(put_into_cells, calls, division)
        for number, own in self._shown("dividing into cells", divided, len(self.chunks)):
            sizes[number] = own
        return sizes

    def _compare(
        self,
        key: str,
        facts: Facts,
        is_used: NDArray[np.bool_],
        division: Division,
        sizes: NDArray[np.int64],
    ) -> tuple[Indices, Indices]:
        """Compare what is not compared yet; return all pairs that connect what is alike."""
        finished, edges = self._only(_EDGES, key), self._place(_EDGES)
        paired, candidates = self._only(_CANDIDATES, key), self._place(_CANDIDATES)
        blocks = [
            (block, edges / name, candidates / name)
            for block in cell_blocks(sizes, self.rows_at_once)
            if (name := f"{key}-cells-{block.name}.parquet") not in finished
        ]
        places = [self._cells_of(key, chunk) for chunk in self.chunks]
        joined = in_tasks(join_block, blocks, places, division, gpu_share=division.gpu_share)
        for _ in self._shown("comparing", joined, len(blocks)):
            pass
        most_bits = self.rules.hash_bits
        used = np.flatnonzero(is_used)
        hashes = facts.hashes[used]
        parts = (
            (used[part], hashes[part], edges / name)
            for number, part in enumerate(hash_parts(hashes, most_bits, _HASHES_PER_TASK))
            if (name := f"{key}-hashes-{number:06}.parquet") not in finished
        )
        for _ in self._shown("comparing hashes", in_tasks(join_equal_hashes, parts, most_bits), None):
            pass
        if self.rules.verify != OFF and len(used) <= _HASHES_PER_TASK:
            count = -(-len(used) // _PAIRED_PER_TASK)
            names = [f"{key}-hashes-{number:06}.parquet" for number in range(count)]
            tasks = [(candidates / name, number) for number, name in enumerate(names) if name not in paired]
            both = with_inner_hashes(used, facts.hashes, facts.inner_hashes)
            written = in_tasks(pair_hashes, tasks, *both, count)
            for _ in self._shown("pairing hashes", written, len(tasks)):
                pass
        return read_edges(edges / name for name in sorted(self._only(_EDGES, key)))

    def _candidate_pairs(
        self, key: str, rows: Indices, facts: Facts, division: Division
    ) -> Iterator[tuple[Indices, Indices]]:
        """Yield the pairs of ``rows`` that may show the same, the most certain first."""
        yield equal_pairs(rows, facts.flat_sizes)
        if self.rules.verify == OFF:
            return
        folder = self._place(_CANDIDATES)
        names = sorted(self._only(_CANDIDATES, key))
        cells = [folder / name for name in names if name.startswith(f"{key}-cells-")]
        yield read_edges(folder / name for name in names if name.startswith(f"{key}-hashes"))
        yield equal_pairs(rows, facts.moments)
        if division.candidate is not None:
            steps = np.arange(division.threshold, division.candidate, -_SIMILARITIES_AT_ONCE).tolist()
            for high, low in itertools.pairwise([np.inf, *steps[1:], -1.0]):
                yield read_edges(cells, similar=(low, high))

    def _group(self, key: str, labels: Indices, recall: RecallEstimate) -> tuple[list[int], DuplicateReport]:
        """Divide components into groups; ``labels``, (R,), are equal for the rows of one, and -1 for no photo.

        A part that was finished by a search that ended early stays, unless the groups themselves are wanted.

        Returns the numbers of groups, of their photos, of copies among these, and of those that could not be aligned.
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
        self._only(_COMPONENTS)
        calls, places = [], []
        for chunk in self.chunks:
            own = slice(*np.searchsorted(rows, [chunk.first_row, chunk.first_row + chunk.rows]))
            if own.start < own.stop:
                places.append(self._place(_COMPONENTS) / f"{chunk.number:06}.arrow")
                calls.append((chunk, rows[own] - chunk.first_row, buckets[own], count, places[-1]))
        for _ in self._shown("collecting groups", in_tasks(put_into_components, calls), len(calls)):
            pass
        key = hashlib.blake2b(repr((key, self.rules)).encode() + labels.tobytes()).hexdigest()[:16]
        folder = self._place(_GROUPS)
        is_complete = folder.filesystem.get_file_info((folder / _SUCCESS).path).is_file
        finished = self._only(_GROUPS, _NO_KEY if is_complete or self.returns_groups else key)
        names = [f"{key}-part-{bucket:05}.parquet" for bucket in range(count)]
        tasks = ((bucket, folder / name) for bucket, name in enumerate(names) if name not in finished)
        written = in_tasks(group_bucket, tasks, places, self.rules, self.working_folder, self.returns_groups)
        totals = sum((count_groups(folder / name) for name in finished), np.zeros(4, np.int64))
        # What grouping nothing returns names all sources of pairs, and the package that is missing.
        parts = [group_photos(embedded_schema(self.model, features=True).empty_table(), self.rules)]
        for _, part in self._shown("grouping", written, count - len(finished)):
            totals += part.counts
            parts.append(part.grouped)
        if not count:
            write_groups(folder / f"{key}-part-00000.parquet", [])
        return totals.tolist(), DuplicateReport.combine(parts, recall)

    def _finish(self) -> None:
        """Say that the groups are complete, and remove what only the search needs."""
        try:
            with (self._place(_GROUPS) / _SUCCESS).replacing():
                pass
            for name in (_CELLS, _COMPONENTS):
                self.output.filesystem.delete_dir(self._place(name).path)
        except OSError as error:
            raise DistributedError(f"{self.output} cannot be used for the output: {first_line(error)}") from error

    def _place(self, name: str) -> Location:
        return self.output / name

    def _cells_of(self, key: str, chunk: Chunk) -> Location:
        return self._place(_CELLS) / f"{key}-{chunk.number:06}.arrow"

    def _only(self, name: str, key: str = _NO_KEY) -> set[str]:
        """Make a folder of the output, remove other files of a search than those of ``key``, and name the latter."""
        folder = self._place(name)
        try:
            folder.filesystem.create_dir(folder.path, recursive=True)
            found = folder.files(recursive=False)
            for info in found:
                if not info.base_name.startswith(key) and _OWN_FILE.fullmatch(info.base_name):
                    folder.filesystem.delete_file(info.path)
        except OSError as error:
            raise DistributedError(f"{folder} cannot be used for the output: {first_line(error)}") from error
        return {info.base_name for info in found if info.base_name.startswith(key)}

    def _shown(self, what: str, results: Iterable[tuple[int, _T]], total: int | None) -> Iterator[tuple[int, _T]]:
        for done, result in enumerate(results, 1):
            yield result
            self.progress(what, done, total)
