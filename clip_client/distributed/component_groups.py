"""Divides components into groups around the photo to keep. Each task searches its part as one machine would."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from clip_client._files import printable
from clip_client.dedup.compare.similarity_join import UnionFind
from clip_client.dedup.features.collect import CollectedFeatures
from clip_client.dedup.features.image_features import FeatureTable, feature_columns
from clip_client.dedup.group import DuplicateGroup
from clip_client.dedup.judge.verdicts import as_proved
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.search import GroupRules, group_contents
from clip_client.dedup.store.store import Store
from clip_client.dedup.types import Indices, PhotoFile, RecallEstimate, Thresholds
from clip_client.distributed.cell_join import ROW, read_buckets
from clip_client.distributed.cluster import DistributedError
from clip_client.distributed.embedded_rows import vectors_in
from clip_client.distributed.storage import Location, read_photo
from preprocess_ensemble.errors import first_line


@dataclass(frozen=True, kw_only=True)
class DuplicateSummary:
    """The result of :func:`.find_duplicates`, in numbers."""

    output: str
    """Folder of the groups, for ``ray.data.read_parquet``; see :func:`group_schema`."""
    thresholds: Thresholds
    photos: int
    """Images that were compared, each path once."""
    contents: int
    """Images with different bytes among ``photos``."""
    groups: int
    grouped: int
    """Photos in groups, including the kept ones."""
    copies: int
    """Copies in groups; frames of a burst and moments of a scene are not copies."""
    unverified: int
    """Photos in groups that could not be aligned with any other: their rows say why (``cannot_verify``)."""
    pairs_left: int
    """Pairs that were worth aligning, but left out because one worker could not hold all photos that they connect."""
    note: str
    """Reason, for people, if no copy could be verified; else empty."""
    edges: int
    """Pairs that were written to connect similar photos."""
    recall: RecallEstimate
    """The method that compared vectors, and the share of the similar pairs that it found."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        recall = {**fields["recall"], "recall_95": tuple(fields["recall"]["recall_95"])}
        return cls(**{**fields, "thresholds": Thresholds(**fields["thresholds"]), "recall": RecallEstimate(**recall)})

    def __str__(self) -> str:
        recall, (low, high) = self.recall.recall, self.recall.recall_95
        return (
            f"{self.photos:,} photos: {self.groups:,} groups with {self.copies:,} copies; recall {recall:.4f} "
            f"(95 % interval {low:.4f} to {high:.4f}, {self.recall.method}, {self.recall.pairs:,} pairs sampled)"
        )


def equal_pairs(rows: Indices, values: NDArray[np.uint64]) -> tuple[Indices, Indices]:
    """Return pairs that connect ``rows`` with equal ``values`` (R,); the value 0 connects nothing."""
    rows = rows[values[rows] != 0]
    rows = rows[np.argsort(values[rows], kind="stable")]
    is_equal = values[rows[1:]] == values[rows[:-1]]
    return rows[:-1][is_equal], rows[1:][is_equal]


def join_while_small(alike: Indices, pairs: Iterable[tuple[Indices, Indices]], most_rows: int) -> tuple[Indices, int]:
    """Join the components ``alike`` (R,) by ``pairs``, arrays of (E,) rows, as far as a worker can hold the result.

    A joined component has at most ``most_rows`` rows, plus the rows of the largest component that it was made of.
    Returns the labels (R,), and the number of pairs that were left out.
    """
    sizes = np.bincount(alike, minlength=len(alike))[alike]
    labels, left_out = alike, 0
    for left, right in pairs:
        joined = UnionFind(len(labels))
        joined.labels = labels
        joined.join(left, right)
        largest = np.zeros(len(labels), dtype=np.intp)
        np.maximum.at(largest, joined.labels, sizes)
        fits = np.bincount(joined.labels, minlength=len(labels)) <= most_rows + largest
        labels = np.where(fits[joined.labels], joined.labels, labels)
        left_out += int((labels[left] != labels[right]).sum())
    return labels, left_out


def group_schema() -> Any:
    """Return the ``pyarrow.Schema`` of the groups: a row for each photo of a group, the kept photo first.

    ``group`` is the number of the group in this output. The other columns are fields of
    :class:`~clip_client.dedup.group.Member` and, after ``group_``, of
    :class:`~clip_client.dedup.group.DuplicateGroup`.
    """
    import pyarrow as pa

    return pa.schema(
        {
            "group": pa.int64(),
            "path": pa.string(),
            "path_bytes": pa.binary(),
            "kept": pa.bool_(),
            "tier": pa.string(),
            "similarity": pa.float64(),
            "is_copy": pa.bool_(),
            "why": pa.string(),
            "cannot_verify": pa.string(),
            "moment": pa.string(),
            "sha256": pa.binary(32),
            "size_bytes": pa.int64(),
            "width": pa.int32(),
            "height": pa.int32(),
            "group_tier": pa.string(),
            "group_min_similarity": pa.float64(),
            "group_reason": pa.string(),
        }
    )


def group_bucket(
    output: Location, bucket: int, places: Sequence[Location], rules: GroupRules, returns_groups_in: str | None
) -> DuplicateReport:
    """Write the groups of one bucket; with a folder of relative paths, also return them. Raises DistributedError."""
    if returns_groups_in is not None:
        try:
            os.chdir(returns_groups_in)
        except OSError as error:
            reason = f"{socket.gethostname()} has no folder {returns_groups_in}: {error.strerror}"
            raise DistributedError(reason) from error
    (table,) = read_buckets(places, bucket, bucket + 1)
    table = table.sort_by(ROW)
    grouped = group_photos(table, rules)
    # Content -> number of its first row.
    numbers = dict(zip(*(reversed(table[name].to_pylist()) for name in ("sha256", ROW)), strict=True))
    write_groups(output, [row for group in grouped.groups for row in _rows(group, numbers)])
    return replace(grouped, groups=()) if returns_groups_in is None else grouped


def group_photos(table: Any, rules: GroupRules) -> DuplicateReport:
    with Store() as store:
        return group_contents(_collected(table), rules, store, lambda what, done, total: None)


def _collected(table: Any) -> CollectedFeatures:
    names = ("sha256", "path_bytes", "size_bytes", "mtime_ns", "error_code", "error", "code", "message")
    digests, paths, sizes, times, codes, messages, *own = (table.column(name).to_pylist() for name in names)
    contents = [digest.hex() for digest in digests]
    copies: dict[str, list[PhotoFile]] = {}
    for sha256, path, size_bytes, mtime_ns in zip(contents, paths, sizes, times, strict=True):
        copies.setdefault(sha256, []).append(PhotoFile(os.fsdecode(path), size_bytes or 0, mtime_ns or 0))
    # The first row with a vector stands for its content; if no row has a vector, the first row does. The last entry of
    # ``ordered`` wins.
    ordered = sorted(range(len(contents)), key=lambda row: (codes[row] is None, -row))
    first = {contents[row]: row for row in ordered}
    reasons = {
        sha256: (codes[row], messages[row]) if codes[row] else (own[0][row], own[1][row])
        for sha256, row in first.items()
    }
    vectors, features = vectors_in(table), table.select(list(feature_columns()))
    return CollectedFeatures(
        copies=copies,
        features=FeatureTable(list(first), features.take(np.array(list(first.values()), np.int64))),
        vectors_of=lambda some: vectors[np.array([first[sha256] for sha256 in some], np.int64)],
        refused={sha256: reason for sha256, reason in reasons.items() if reason[0]},
        read=read_photo,
        threads=1,  # a task has one CPU, and decodes one photo at a time to limit its memory
    )


def write_groups(output: Location, rows: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with output.written() as file:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=group_schema()), file)


def _rows(group: DuplicateGroup, numbers: Mapping[bytes, int]) -> Iterator[Mapping[str, Any]]:
    number = numbers[bytes.fromhex(group.members[0].sha256)]
    for member in group.members:
        photo, is_kept = member.photo, member is group.members[0]
        yield {
            "group": number,
            "path": printable(photo.path),
            "path_bytes": os.fsencode(photo.path),
            "kept": is_kept,
            "tier": member.tier,
            "similarity": member.similarity,
            "is_copy": not is_kept and as_proved(member, group, is_trained=True).is_copy,
            "why": member.why,
            "cannot_verify": member.cannot_verify,
            "moment": member.other_shot,
            "sha256": bytes.fromhex(photo.sha256),
            "size_bytes": photo.size_bytes,
            "width": photo.width,
            "height": photo.height,
            "group_tier": group.tier,
            "group_min_similarity": group.min_similarity,
            "group_reason": group.reason,
        }


def count_groups(places: Sequence[Location]) -> tuple[int, int, int, int]:
    import pyarrow as pa
    from pyarrow import dataset

    is_kept, is_copy, reason = map(dataset.field, ("kept", "is_copy", "cannot_verify"))
    try:
        paths = [place.path for place in places]
        rows = dataset.dataset(paths, group_schema(), format="parquet", filesystem=places[0].filesystem)
        groups, photos, copies, unverified = map(rows.count_rows, (is_kept, None, is_copy, reason != ""))
    except (OSError, pa.ArrowException) as error:
        raise DistributedError(f"groups/ cannot be read ({first_line(error)}); remove it and run again") from error
    return groups, photos, copies, unverified
