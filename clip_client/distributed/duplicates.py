"""The search for duplicates on a Ray cluster. The driver holds facts about rows, and workers a chunk of vectors."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clip_client._errors import require
from clip_client.dedup.compare.cells import ALL_COMPARED, EXACT_ROWS, Cells, RecallSample, fit_cells, sample_size
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES, KeepRules
from clip_client.dedup.compare.neighbours import ALIGNED_FROM, HASH_BITS, hash_parts, with_inner_hashes
from clip_client.dedup.compare.similarity_join import UnionFind, fit_projection
from clip_client.dedup.compare.thresholds import thresholds_for
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.search import GroupRules
from clip_client.dedup.store.store import Store
from clip_client.dedup.types import Indices, OnProgress, RecallEstimate
from clip_client.distributed import cell_join, component_groups
from clip_client.distributed.cluster import EXTRA, cluster, in_tasks
from clip_client.distributed.component_groups import DuplicateSummary
from clip_client.distributed.embedded_rows import (
    FACTS,
    EmbeddedRows,
    drawn,
    embedded_schema,
    first_with_content,
    read_facts,
)
from clip_client.distributed.storage import Location

Results = Generator[tuple[int, Any], None, None]

ROWS_AT_ONCE: Final = 65_536
"""Vectors that a worker compares at a time: 134 MB with 512 numbers each."""

_EDGES, _CANDIDATES, _GROUPS = "edges", "candidates", "groups"
_CELLS, _COMPONENTS = "_cells", "_components"
"""Folders whose names begin with an underscore are skipped by readers of Parquet."""
_OWN_FILE: Final = re.compile(r"[0-9a-f]{16}-.*|[0-9]{6}\.arrow|part-[0-9]{5,}\.parquet|_SUCCESS|\..*\.part")
_SUCCESS: Final = "_SUCCESS"

_RECALL_ROWS: Final = 5000  # vectors compared exactly, to measure the recall
_HASHES_PER_TASK: Final = 1 << 20
_PAIRED_PER_TASK: Final = 1 << 16
"""Hashes for which one task looks for turned and mirrored neighbours among all hashes."""
_GROUPED_PER_TASK: Final = 8192  # photos that are divided into groups; more if one component is larger
_ALIGNED_PER_TASK: Final = 512
"""Photos that are also aligned, in minutes; more if there would be too many tasks."""
_FEW_TASKS: Final = 4096
_SIMILARITIES_AT_ONCE: Final = 0.02
"""Step in which pairs that are worth aligning join components, the most similar first."""


def find_duplicates(
    vectors: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str],
    threshold: float | None = None,
    references: Iterable[str] = (),
    keep: Sequence[str] = DEFAULT_RULES,
    store: Store | None = None,
    verify: bool = True,
    address: str | None = None,
    exact_rows: int = EXACT_ROWS,
    rows_at_once: int = ROWS_AT_ONCE,
    on_progress: OnProgress | None = None,
) -> DuplicateSummary:
    """Find duplicates among the photos that ``embed_partitions(..., output=vectors, features=True)`` has embedded.

    ``threshold``, ``references``, ``keep`` and ``verify`` are those of :func:`clip_client.dedup.find_duplicates`. A
    ``store`` gives the decisions of a person. Up to ``exact_rows`` vectors, all pairs are compared; more are
    divided into cells. A worker holds ``rows_at_once`` vectors, or all photos that may show the same, if they are more.
    If a worker can read the files by path or URL, pixels are compared and photos aligned.

    ``output`` is a folder that every worker can write, or a URL. At the end it has the folders ``groups``
    (:func:`.group_schema`, and ``_SUCCESS`` with the summary), ``edges`` (pairs of similar rows of the input) and
    ``candidates`` (further pairs that are worth aligning). Until then ``_cells`` and ``_components`` hold about five
    copies of the vectors. If the search ends early, call this again: finished comparisons stay. If it is complete, and
    rows and settings are the same, this returns its summary. ``address`` is as for :func:`.embed_partitions`.
    ``on_progress(what, done, total)`` counts tasks.

    Raises DistributedError, which names the file, for input that cannot be read, lacks columns or mixes vectors of
    several models, and for output that cannot be written. Raises ValueError for a threshold outside 0 to 1 or an
    unknown rule, StoreError for an unusable store, and ImportError if Ray is missing.
    """
    require("ray.data", EXTRA)
    require("faiss", EXTRA)
    KeepRules(keep)  # raises ValueError
    rows = EmbeddedRows.of(Location.of(vectors), max(1, rows_at_once // 2))
    rules = GroupRules(
        thresholds=thresholds_for(rows.model.id, threshold),
        keep=tuple(keep),
        references=tuple(references),
        decisions=() if store is None else tuple(store.decisions.all()),
        verify=verify,
    )
    search = FolderSearch(
        rows=rows,
        output=Location.of(output),
        rules=rules,
        exact_rows=exact_rows,
        rows_at_once=rows_at_once,
        progress=on_progress or (lambda what, done, total: None),
    )
    if (summary := search.finished()) is None:
        with cluster(address):
            summary, _ = search.run()
    return summary


def _key_of(*facts: object, arrays: Iterable[NDArray[Any]] = ()) -> str:
    key = hashlib.blake2b(repr(facts).encode("utf-8", "surrogateescape"))
    for array in arrays:
        key.update(np.ascontiguousarray(array).tobytes())
    return key.hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class FolderSearch:
    """One search; its methods are its steps. Started again, it finds the files of finished steps."""

    rows: EmbeddedRows
    output: Location
    rules: GroupRules
    exact_rows: int = EXACT_ROWS
    rows_at_once: int = ROWS_AT_ONCE
    returns_groups_in: str | None = None
    """Folder for relative paths, on every worker, if :meth:`run` must return the groups."""
    progress: OnProgress

    def finished(self) -> DuplicateSummary | None:
        try:
            answer = json.loads((self.output / _GROUPS / _SUCCESS).read()[0])
        except (OSError, ValueError):
            return None
        return DuplicateSummary.of(answer["summary"]) if answer["key"] == self._question else None

    def run(self) -> tuple[DuplicateSummary, DuplicateReport]:
        count = self.rows.chunks[-1].row_slice.stop
        shares = [min(1.0, size / count) for size in (sample_size(count), _RECALL_ROWS)]
        facts, vectors = self._read(shares)
        firsts = first_with_content(facts)
        is_photo, is_first = firsts >= 0, firsts == np.arange(len(firsts))
        is_used = facts["is_picture"] & is_first
        division = self._divide(is_used, drawn(facts, shares), vectors)
        cells = division.cells
        settings = (self.rows.model.vector_id, self.rules.thresholds, self.rules.verify, HASH_BITS)
        rows = (division.count, self.rows_at_once, *(chunk.rows for chunk in self.rows.chunks))
        # Files of this name hold work that need not be done again.
        key = _key_of(settings, rows, arrays=(facts["content"], is_used, cells.centre, cells.directions, cells.numbers))
        self._compare(key, division, is_used)
        self._compare_hashes(key, np.flatnonzero(is_used), facts)
        edges = cell_join.read_edges(self._prepare(_EDGES, key))
        alike = UnionFind(len(firsts))
        alike.join(*edges)
        pairs = self._candidate_pairs(key, np.flatnonzero(is_first), facts)
        labels, pairs_left = component_groups.join_while_small(alike.labels, pairs, _GROUPED_PER_TASK)
        grouped, places = self._group(key, np.where(is_photo, labels[firsts], -1), division.estimate)
        groups, photos, copies, unverified = component_groups.count_groups(places)
        summary = DuplicateSummary(
            output=str(self.output / _GROUPS),
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
        )
        self._finish(summary)
        return summary, grouped

    def _read(self, shares: Sequence[float]) -> tuple[NDArray[Any], NDArray[np.float32]]:
        chunks = self.rows.chunks
        facts, vectors = np.zeros(chunks[-1].row_slice.stop, FACTS), {}
        calls = ((chunk,) for chunk in chunks)
        for number, (part, own) in self._results("reading", len(chunks), in_tasks(read_facts, calls, *shares)):
            facts[chunks[number].row_slice] = part
            vectors[number] = own
        return facts, np.concatenate([own for _, own in sorted(vectors.items())])

    def _divide(
        self, is_used: NDArray[np.bool_], draws: Sequence[NDArray[np.bool_]], vectors: NDArray[np.float32]
    ) -> cell_join.Division:
        threshold, count = self.rules.thresholds.similar, int(is_used.sum())
        seen, sampled = (vectors[(own & is_used)[np.any(draws, axis=0)]] for own in draws)
        projection = fit_projection(seen, np.arange(len(seen)), threshold)
        if count <= self.exact_rows or not len(seen):
            nothing = np.zeros((1, seen.shape[1]), np.float32)
            one_cell = Cells(centre=nothing[0], directions=nothing, numbers=np.zeros(1, np.intp))
            cells, estimate, per_vector = one_cell, ALL_COMPARED, 1
        else:
            calls = ((chunk, is_used[chunk.row_slice]) for chunk in self.rows.chunks)
            rows = np.flatnonzero(draws[1] & is_used)
            parts = in_tasks(cell_join.find_alike, calls, rows, sampled, threshold, projection)
            found = (part for _, part in self._results("measuring the recall", len(self.rows.chunks), parts))
            # One after the other, because a part may hold 16 vectors for each sampled vector.
            measured = functools.reduce(lambda one, other: RecallSample.combine([one, other]), found)
            cells = fit_cells(seen, count, threshold)
            estimate, per_vector = replace(measured, vectors=sampled).choose_count(cells)
        return cell_join.Division(
            threshold=threshold,
            cells=cells,
            count=per_vector,
            projection=projection,
            estimate=estimate,
            candidate=ALIGNED_FROM if self.rules.verify and threshold > ALIGNED_FROM else None,
        )

    def _compare(self, key: str, division: cell_join.Division, is_used: NDArray[np.bool_]) -> None:
        chunks = self.rows.chunks
        self._prepare(_CELLS, key)
        self._prepare(_CANDIDATES, key)
        places = [self.output / _CELLS / f"{key}-{chunk.number:06}.arrow" for chunk in chunks]
        calls = ((chunk, is_used[chunk.row_slice], place) for chunk, place in zip(chunks, places, strict=True))
        divided = self._results("dividing into cells", len(chunks), in_tasks(cell_join.put_into_cells, calls, division))
        sizes = np.stack([own for _, own in sorted(divided, key=lambda one: one[0])])
        named = ((f"cells-{block.name}.parquet", block) for block in cell_join.cell_blocks(sizes, self.rows_at_once))
        self._fill("comparing", _EDGES, key, cell_join.join_block, named, places, self.output / _CANDIDATES, division)

    def _compare_hashes(self, key: str, used: Indices, facts: NDArray[Any]) -> None:
        hashes = facts["hash"][used]
        parts = enumerate(hash_parts(hashes, HASH_BITS, _HASHES_PER_TASK))
        named = ((f"hashes-{number:06}.parquet", part) for number, part in parts)
        self._fill("comparing hashes", _EDGES, key, cell_join.join_equal_hashes, named, used, hashes, HASH_BITS)
        if self.rules.verify and len(used) <= _HASHES_PER_TASK:
            count = -(-len(used) // _PAIRED_PER_TASK)
            tasks = ((f"hashes-{number:06}.parquet", number) for number in range(count))
            both = with_inner_hashes(used, facts["hash"], facts["inner_hash"])
            self._fill("pairing hashes", _CANDIDATES, key, cell_join.pair_hashes, tasks, *both, count)

    def _candidate_pairs(self, key: str, rows: Indices, facts: NDArray[Any]) -> Iterator[tuple[Indices, Indices]]:
        """Yield pairs of ``rows`` that may show the same picture, the most certain first."""
        yield component_groups.equal_pairs(rows, facts["flat_size"])
        if not self.rules.verify:
            return
        places = self._prepare(_CANDIDATES, key)
        yield cell_join.read_edges(place for place in places if place.name.startswith(f"{key}-hashes-"))
        yield component_groups.equal_pairs(rows, facts["moment"])
        cells = [place for place in places if place.name.startswith(f"{key}-cells-")]
        steps = np.arange(self.rules.thresholds.similar, ALIGNED_FROM, -_SIMILARITIES_AT_ONCE).tolist()
        for high, low in itertools.pairwise([np.inf, *steps[1:], -1.0]):
            yield cell_join.read_edges(cells, similar=(low, high))

    def _group(self, key: str, labels: Indices, recall: RecallEstimate) -> tuple[DuplicateReport, list[Location]]:
        """Divide components of equal ``labels`` (R,), -1 for no photo; return the new groups and all files."""
        is_grouped = labels >= 0
        is_grouped[is_grouped] = np.bincount(labels[is_grouped], minlength=len(labels))[labels[is_grouped]] > 1
        rows = np.flatnonzero(is_grouped)
        _, which, sizes = np.unique(labels[rows], return_inverse=True, return_counts=True)
        at_once = _GROUPED_PER_TASK
        if self.rules.verify:
            at_once = min(at_once, max(_ALIGNED_PER_TASK, len(rows) // _FEW_TASKS))
        _, bucket_of = np.unique((np.cumsum(sizes) - sizes) // at_once, return_inverse=True)
        buckets, count = bucket_of[which], int(bucket_of.max(initial=-1)) + 1
        key = _key_of(key, self.rules, arrays=[labels])
        calls = []
        for chunk in self.rows.chunks:
            own = slice(*np.searchsorted(rows, [chunk.first_row, chunk.first_row + chunk.rows]))
            if own.start < own.stop:
                calls.append((f"{chunk.number:06}.arrow", chunk, rows[own] - chunk.first_row, buckets[own], count))
        self._fill("collecting groups", _COMPONENTS, key, cell_join.write_buckets, calls)
        if self.returns_groups_in is not None:
            self._prepare(_GROUPS)
        named = ((f"part-{bucket:05}.parquet", bucket) for bucket in range(count))
        shared = (self._prepare(_COMPONENTS, key), self.rules, self.returns_groups_in)
        # The result for no rows names all sources of pairs, and a missing package.
        no_rows = embedded_schema(self.rows.model, features=True).empty_table()
        nothing = component_groups.group_photos(no_rows, self.rules)
        parts = [nothing, *self._fill("grouping", _GROUPS, key, component_groups.group_bucket, named, *shared)]
        if not count:
            component_groups.write_groups(self.output / _GROUPS / f"{key}-part-00000.parquet", [])
        return DuplicateReport.combine(parts, recall), self._prepare(_GROUPS, key)

    @property
    def _question(self) -> str:
        return _key_of(self.rows.files, self.rules, self.exact_rows, self.rows_at_once)

    def _finish(self, summary: DuplicateSummary) -> None:
        """Write the summary, which marks the groups as complete, and remove the files that only the search needs."""
        with (self.output / _GROUPS / _SUCCESS).written() as file:
            file.write(json.dumps({"key": self._question, "summary": asdict(summary)}, indent=1).encode())
        with self.output.usable():
            for name in (_CELLS, _COMPONENTS):
                self.output.filesystem.delete_dir((self.output / name).path)

    def _prepare(self, name: str, key: str = "none") -> list[Location]:
        """Make a folder of the output and remove the files of other searches. Return the files of ``key``."""
        folder = self.output / name
        with folder.usable():
            folder.filesystem.create_dir(folder.path, recursive=True)
            found = folder.files(recursive=False)
            for info in found:
                if not info.base_name.startswith(key) and _OWN_FILE.fullmatch(info.base_name):
                    folder.filesystem.delete_file(info.path)
        return [folder.at(info.path) for info in found if info.base_name.startswith(key)]

    def _fill(
        self, what: str, name: str, key: str, function: Callable[..., Any], named: Iterable[Sequence[Any]], *shared: Any
    ) -> list[Any]:
        """Let tasks write missing files: ``named`` has the end of a name, and arguments. Return their results."""
        finished = {place.path for place in self._prepare(name, key)}
        files = ((self.output / name / f"{key}-{end}", arguments) for end, *arguments in named)
        calls = [(place, *arguments) for place, arguments in files if place.path not in finished]
        return [result for _, result in self._results(what, len(calls), in_tasks(function, calls, *shared))]

    def _results(self, what: str, total: int, results: Results) -> Results:
        with closing(results):  # end running tasks before the connection to the cluster
            for done, result in enumerate(results, 1):
                yield result
                self.progress(what, done, total)
