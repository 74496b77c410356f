"""The search for duplicates on a Ray cluster, among photos that it has embedded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clip_client._errors import require
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES
from clip_client.dedup.compare.partitioned_join import EXACT_ROWS
from clip_client.dedup.compare.thresholds import thresholds_for
from clip_client.dedup.search import CANDIDATES, DEFAULT_HASH_BITS, GroupRules, check_group_rules
from clip_client.distributed.cluster import EXTRA
from clip_client.distributed.folder_search import ROWS_AT_ONCE, search_folder
from clip_client.distributed.storage import Location

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from clip_client._vectors.file_model import FileModel
    from clip_client.dedup.store.store import Store
    from clip_client.distributed.component_groups import DuplicateSummary


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
    on_progress: Callable[[str, int, int | None], None] | None = None,
) -> DuplicateSummary:
    """Find duplicates among the photos that ``embed_partitions(..., output=vectors, features=True)`` has embedded.

    The search is that of :func:`clip_client.dedup.find_duplicates`; ``threshold``, ``hash_bits``,
    ``references``, ``keep`` and ``verify`` mean the same. A ``store`` gives the decisions of a person and tuned
    thresholds. Up to ``exact_rows`` vectors are compared each with each; more are divided into cells, and the summary
    says which share of the alike pairs was found. Pixels are compared, and photos aligned, if a worker can read their
    files by path or URL; if it cannot, the row of a photo says so.

    ``output`` is a folder that every worker can write, or a URL. Its ``groups`` has a row for each photo of a group
    (:func:`.component_groups.group_schema`) and ``_SUCCESS`` when it is complete; ``edges`` has the pairs that connect
    what is alike, and ``candidates`` further pairs that are worth aligning, by the numbers of their rows in the input;
    while the search runs, ``_cells`` and ``_components`` hold about five copies of the vectors. If the search ends
    early, call this again: what was compared stays. A worker holds ``rows_at_once`` vectors, or the photos that may
    show the same if they are more. ``address`` is as for :func:`.embed_partitions`.
    ``on_progress(what, done, total)`` counts tasks.

    Raises DistributedError, which names the file, for input that cannot be read, lacks columns or mixes vectors of
    several models, and for output that cannot be written; ValueError for a threshold outside 0 to 1, an unknown rule or
    an unknown ``verify``; StoreError; and ImportError if Ray is missing.
    """
    require("ray.data", EXTRA)
    require("faiss", EXTRA)
    check_group_rules(keep, hash_bits, verify)

    def rules_for(model: FileModel) -> GroupRules:
        tuned = None if store is None else store.settings.tuned(model.vector_id)
        return GroupRules(
            thresholds=thresholds_for(model.id, threshold, tuned=tuned),
            hash_bits=hash_bits,
            keep=tuple(keep),
            references=tuple(references),
            decisions=() if store is None else tuple(store.decisions.all()),
            verify=verify,
        )

    summary, _ = search_folder(
        Location.of(vectors),
        Location.of(output),
        rules_for,
        address=address,
        exact_rows=exact_rows,
        rows_at_once=rows_at_once,
        on_progress=on_progress,
    )
    return summary
