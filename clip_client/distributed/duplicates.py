"""The search for duplicates on a Ray cluster, among photos that it has embedded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from clip_client._errors import require
from clip_client.dedup.compare.cells import EXACT_ROWS
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES
from clip_client.dedup.compare.thresholds import thresholds_for
from clip_client.dedup.search import CANDIDATES, DEFAULT_HASH_BITS, GroupRules, check_group_rules
from clip_client.distributed.cluster import EXTRA, DistributedError, cluster
from clip_client.distributed.component_groups import DuplicateSummary
from clip_client.distributed.embedded_rows import chunks_of, embedded_files, inspect_files
from clip_client.distributed.folder_search import GROUPS, SUCCESS, FolderSearch, key_of
from clip_client.distributed.storage import Location

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from clip_client.dedup.report import DuplicateReport
    from clip_client.dedup.store.store import Store

    OnTasks = Callable[[str, int, int | None], None]

ROWS_AT_ONCE: Final = 65_536
"""Vectors that a worker compares at a time: 134 MB with 512 numbers each."""


def find_duplicates(
    vectors: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str],
    threshold: float | None = None,
    hash_bits: int = DEFAULT_HASH_BITS,
    references: Iterable[str] = (),
    keep: Sequence[str] = DEFAULT_RULES,
    store: Store | None = None,
    verify: str = CANDIDATES,
    address: str | None = None,
    exact_rows: int = EXACT_ROWS,
    rows_at_once: int = ROWS_AT_ONCE,
    on_progress: OnTasks | None = None,
) -> DuplicateSummary:
    """Find duplicates among the photos that ``embed_partitions(..., output=vectors, features=True)`` has embedded.

    The search is that of :func:`clip_client.dedup.find_duplicates`; ``threshold``, ``hash_bits``,
    ``references``, ``keep`` and ``verify`` mean the same. A ``store`` gives the decisions of a person and tuned
    thresholds. Up to ``exact_rows`` vectors are compared each with each; more are divided into cells, and the summary
    says which share of the alike pairs was found. Pixels are compared, and photos aligned, if a worker can read their
    files by path or URL; if it cannot, the row of a photo says so.

    ``output`` is a folder that every worker can write, or a URL. Its ``groups`` has a row for each photo of a group
    (:func:`.component_groups.group_schema`) and ``_SUCCESS``, with the summary, when it is complete; ``edges`` has the
    pairs that connect what is alike, and ``candidates`` further pairs that are worth aligning, by the numbers of their
    rows in the input; while the search runs, ``_cells`` and ``_components`` hold about five copies of the vectors. If
    the search ends early, call this again: what was compared stays. If it is complete, and rows and settings are the
    same, its summary is returned; to search anew, remove the output. A worker holds ``rows_at_once`` vectors, or the
    photos that may show the same if they are more. ``address`` is as for :func:`.embed_partitions`.
    ``on_progress(what, done, total)`` counts tasks.

    Raises DistributedError, which names the file, for input that cannot be read, lacks columns or mixes vectors of
    several models, and for output that cannot be written; ValueError for a threshold outside 0 to 1, an unknown rule or
    an unknown ``verify``; StoreError; and ImportError if Ray is missing.
    """
    require("ray.data", EXTRA)
    require("faiss", EXTRA)
    check_group_rules(keep, hash_bits, verify)

    folder = Location.of(vectors)
    (first,) = inspect_files([folder.at(info.path) for info in embedded_files(folder)[:1]])
    tuned = None if store is None else store.settings.tuned(first.model.vector_id)
    rules = GroupRules(
        thresholds=thresholds_for(first.model.id, threshold, tuned=tuned),
        hash_bits=hash_bits,
        keep=tuple(keep),
        references=tuple(references),
        decisions=() if store is None else tuple(store.decisions.all()),
        verify=verify,
    )
    summary, _ = search_folder(
        folder,
        Location.of(output),
        rules,
        address=address,
        exact_rows=exact_rows,
        rows_at_once=rows_at_once,
        on_progress=on_progress,
    )
    return summary


def search_folder(
    vectors: Location,
    output: Location,
    rules: GroupRules,
    *,
    address: str | None = None,
    exact_rows: int = EXACT_ROWS,
    rows_at_once: int = ROWS_AT_ONCE,
    working_folder: str | None = None,
    returns_groups: bool = False,
    on_progress: OnTasks | None = None,
) -> tuple[DuplicateSummary, DuplicateReport | None]:
    """Do the work of :func:`find_duplicates`; return the summary, and with ``returns_groups`` the groups as well.

    Paths that are relative are so to ``working_folder``, on every worker.
    """
    infos = embedded_files(vectors)
    files = [vectors.at(info.path) for info in infos]
    question = ([(str(file), info.size, info.mtime_ns) for file, info in zip(files, infos, strict=True)], rules)
    key = key_of(question, exact_rows, rows_at_once)
    if not returns_groups and (summary := _finished(output / GROUPS / SUCCESS, key)) is not None:
        return summary, None
    with cluster(address):
        inspected = inspect_files(files)
        chunks = chunks_of(inspected, max(1, rows_at_once // 2))
        if not chunks:
            raise DistributedError(f"{vectors} holds no photos")
        search = FolderSearch(
            model=inspected[0].model,
            chunks=chunks,
            output=output,
            rules=rules,
            exact_rows=exact_rows,
            rows_at_once=rows_at_once,
            working_folder=working_folder,
            returns_groups=returns_groups,
            progress=on_progress or (lambda what, done, total: None),
        )
        summary, grouped = search.run()
        search.finish(key, summary)
        return summary, grouped


def _finished(place: Location, key: str) -> DuplicateSummary | None:
    """Return the summary in the file of a search that is complete, if it answers the question with this ``key``."""
    try:
        answer = json.loads(place.read()[0])
    except (OSError, ValueError):
        return None
    return DuplicateSummary.of(answer["summary"]) if answer["key"] == key else None
