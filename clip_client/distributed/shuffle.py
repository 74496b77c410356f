"""The shuffle: files whose rows are sorted by bucket, so that a worker reads one bucket out of each.

A file is in Arrow's IPC format, with a record batch for each bucket. Files outlive a worker and the driver, and their
number does not grow with the number of buckets. ``Dataset.groupby`` would hold each vector in the object store, once
for each of its cells, and begin again when the driver has died.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from clip_client.distributed.storage import Location

RUN_AGAIN: Final = "remove it and run again"
_SIZES: Final = b"bucket_rows"


def write_buckets(
    place: Location, table: Any, rows: NDArray[np.intp], buckets: NDArray[np.intp], count: int
) -> NDArray[np.int64]:
    """Write ``rows`` of a ``pyarrow.Table`` of one piece, (M,), into their ``buckets``, (M,), below ``count``.

    A row may be in several buckets. Returns the rows of each bucket, (count,). Raises DistributedError.
    """
    import pyarrow as pa

    order = np.argsort(buckets, kind="stable")
    sizes = np.bincount(buckets, minlength=count)
    schema = table.schema.with_metadata({_SIZES: json.dumps(sizes.tolist())})
    with place.written() as file, pa.ipc.new_file(file, schema) as writer:
        for own in np.split(rows[order], np.cumsum(sizes)[:-1]):
            columns = [column.combine_chunks() for column in table.take(own).columns]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return sizes


def bucket_sizes(place: Location) -> NDArray[np.int64]:
    """Return what :func:`write_buckets` returned for this file; raises DistributedError."""
    import pyarrow as pa

    with place.opened(RUN_AGAIN) as file, pa.ipc.open_file(file) as reader:
        return np.array(json.loads(reader.schema.metadata[_SIZES]), dtype=np.int64)


def read_buckets(places: Iterable[Location], first: int, end: int) -> Iterator[Any]:
    """Yield a ``pyarrow.Table`` for each bucket from ``first`` to before ``end``, with its rows of all ``places``.

    The buckets are read before the first one is yielded, so that each file is opened once. Raises DistributedError.
    """
    import pyarrow as pa

    parts: list[list[Any]] = [[] for _ in range(first, end)]
    for place in places:
        with place.opened(RUN_AGAIN) as file, pa.ipc.open_file(file) as reader:
            for bucket, own in enumerate(parts, first):
                own.append(reader.get_batch(bucket))
    parts.reverse()
    while parts:
        yield pa.Table.from_batches(parts.pop()).combine_chunks()
