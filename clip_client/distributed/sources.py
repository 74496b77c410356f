"""Sources of images, cut into partitions that workers read. Ray Data cannot open names that are not UTF-8."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from clip_client._storage.vector_file import FileVersion
from clip_client.dedup.files.file_types import PHOTO_SUFFIXES, suffix_of
from clip_client.dedup.files.scanner import scan
from clip_client.distributed.cluster import DistributedError
from clip_client.distributed.storage import FOOTERS_AT_ONCE, Location, is_url
from preprocess_ensemble.errors import first_line

Address: TypeAlias = str | os.PathLike[str]

_FEWEST_ROWS: Final = 100
_MOST_ROWS: Final = 10_000
"""Images in a partition: 20 MB of vectors, as in the files that ``clip-client embed`` writes."""

_PARQUET_ROWS_AT_ONCE: Final = 64  # images that are read at a time


class DamagedInput(DistributedError):
    """A partition cannot be read; the others can."""


@dataclass(frozen=True, kw_only=True)
class SourceImage:
    file: FileVersion  # path or URL, with size and time if known; in another file, with its name there
    read: Callable[[], tuple[bytes, int | None]]  # the same call as :meth:`Location.read`


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Images that are embedded into one file. A partition holds only their locations: a few kilobytes."""

    name: str
    id: str
    """Differs from the id of every other partition, and changes if the images change."""
    count: int | None
    """None if it is only known after reading the images."""
    images: Callable[[], Iterator[SourceImage]]
    """Yields the images. Blocks, and raises DamagedInput."""


def image_files(paths: Iterable[Address]) -> list[Partition]:
    """Return partitions of these files. A path is one that every worker can open, or a URL.

    A file that cannot be read or does not exist becomes a row with an error code.
    """
    files = (FileVersion(path=text) if is_url(text) else FileVersion.of(text) for text in map(os.fsdecode, paths))
    return _of_files(sorted(files, key=lambda file: os.fsencode(file.path)))


def images_below(*addresses: Address) -> list[Partition]:
    """Return partitions of all photos below folders and prefixes, such as ``"s3://bucket/photos"``.

    A photo is a file with one of the endings that ``clip-client embed`` reads. Every worker must be able to read the
    addresses. The list of files is held in memory, 0.35 KB each: if there are more than about ten million images, list
    them in Parquet (:func:`parquet_images`). Raises DistributedError if an address cannot be listed or has no photo.
    """
    partitions: list[Partition] = []
    for address in addresses:
        location = Location.of(address)
        if not (photos := list(_photos_below(location))):
            raise DistributedError(f"there is no photo below {location}")
        partitions += _of_files(photos, location)
    return partitions


def parquet_images(*addresses: Address, column: str = "bytes", path_column: str | None = None) -> list[Partition]:
    """Return partitions of the images in Parquet files, or in folders of them.

    ``column`` holds the bytes of image files, or texts, which are paths or URLs. A name with a dot is a field of a
    struct, such as ``"image.bytes"``. ``path_column`` holds the names of the images; without it, the name is the path,
    or ``FILE#ROW``. Raises DistributedError if a file cannot be read, lacks a column, or holds another type in it.
    """
    columns = [column] if path_column is None else [column, path_column]
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        parts = pool.map(lambda found: _row_groups(found[0], found[1], columns), _files_in(addresses, (".parquet",)))
        return [partition for partitions in parts for partition in partitions]


def webdataset_images(*addresses: Address) -> list[Partition]:
    """Return one partition for each tar file, named or in a folder. Every photo in a tar file is an image.

    The name of an image is the name of the tar file, a slash, and the name in the tar file. Raises DistributedError if
    an address cannot be listed.
    """
    return [
        Partition(
            name=str(tar), id=id_of(str(tar), info.size, info.mtime_ns), count=None, images=partial(_images_in_tar, tar)
        )
        for tar, info in _files_in(addresses, (".tar", ".tar.gz", ".tgz"))
    ]


def id_of(*facts: object) -> str:
    return hashlib.blake2b(repr(facts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _files_in(addresses: Iterable[Address], endings: tuple[str, ...]) -> Iterator[tuple[Location, Any]]:
    """Yield each file with its ``pyarrow.fs.FileInfo``. A file that is itself an address may have any ending."""
    for address in addresses:
        place = Location.of(address)
        files = place.files(recursive=True)
        found = [info for info in files if info.path == place.path or info.path.lower().endswith(endings)]
        if not found:
            raise DistributedError(f"there is no file with the ending {' or '.join(endings)} in {place}")
        yield from ((place.at(info.path), info) for info in found)


def _photos_below(location: Location) -> list[FileVersion]:
    if not location.prefix:  # scan() handles hidden files, links, and names that are not UTF-8
        found = scan([location.path])
        return [*map(FileVersion.of, found.photos), *(FileVersion(path=failure.path) for failure in found.failed)]
    return [
        FileVersion(path=location.prefix + info.path, size_bytes=info.size, mtime_ns=info.mtime_ns)
        for info in location.files(recursive=True)
        if suffix_of(info.base_name) in PHOTO_SUFFIXES or info.path == location.path
    ]


def _of_files(files: Sequence[FileVersion], below: Location | None = None) -> list[Partition]:
    """Cut ``files`` into partitions. ``below`` is their place; its file system may have options that URLs lack."""
    # The number depends only on the files, so that a second run makes the same partitions.
    rows = min(_MOST_ROWS, max(_FEWEST_ROWS, len(files) // 64))
    return [
        Partition(
            name=own[0].path + (f" and {len(own) - 1:,} more" if len(own) > 1 else ""),
            id=id_of([(file.path, file.size_bytes, file.mtime_ns) for file in own]),
            count=len(own),
            images=partial(_images_in_files, own, below),
        )
        for own in (tuple(files[start : start + rows]) for start in range(0, len(files), rows))
    ]


def _images_in_files(files: Sequence[FileVersion], below: Location | None) -> Iterator[SourceImage]:
    for file in files:
        location = Location.of(file.path) if below is None else below.at(file.path.removeprefix(below.prefix))
        yield SourceImage(file=file, read=location.read)


def _images_in_tar(location: Location) -> Iterator[SourceImage]:
    try:
        with (
            location.filesystem.open_input_stream(location.path, compression=None) as file,
            tarfile.open(fileobj=file, mode="r|*") as tar,
        ):
            for member in tar:
                if member.isfile() and suffix_of(member.name) in PHOTO_SUFFIXES:
                    extracted = tar.extractfile(member)
                    assert extracted is not None, "a regular file has content"
                    yield image_in_row(extracted.read(), f"{location}/{member.name}")
    except (OSError, EOFError, tarfile.TarError) as error:
        raise DamagedInput(f"{location} cannot be read as a tar file: {first_line(error)}") from error


def _row_groups(location: Location, info: Any, columns: Sequence[str]) -> list[Partition]:
    import pyarrow.parquet as pq

    with location.opened("replace or remove it") as file, pq.ParquetFile(file) as parquet:
        schema, metadata = parquet.schema_arrow, parquet.metadata
        ends = np.cumsum([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]).tolist()
    for column in columns:
        check_column(schema, column, location)
    partitions, groups, first = list[Partition](), list[int](), 0
    for group, end in enumerate(ends):
        groups.append(group)
        if end - first >= _MOST_ROWS or group == len(ends) - 1:
            name = f"{location}, rows {first:,} to {end - 1:,}"
            partitions.append(
                Partition(
                    name=name,
                    id=id_of(str(location), info.size, info.mtime_ns, tuple(columns), tuple(groups)),
                    count=end - first,
                    images=partial(_images_in_rows, location, name, tuple(columns), tuple(groups), first),
                )
            )
            groups, first = [], end
    return partitions


def _images_in_rows(
    location: Location, name: str, columns: Sequence[str], groups: Sequence[int], row: int
) -> Iterator[SourceImage]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with (
            location.filesystem.open_input_file(location.path) as file,
            pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False) as parquet,
        ):
            for batch in parquet.iter_batches(_PARQUET_ROWS_AT_ONCE, row_groups=groups, columns=columns):
                table = pa.Table.from_batches([batch])
                values, names = (flattened(table, one)[one].to_pylist() for one in (columns[0], columns[-1]))
                for value, name in zip(values, names, strict=True):
                    is_name = len(columns) > 1 or isinstance(value, str)
                    yield image_in_row(value, (name if is_name else None) or f"{location}#{row}")
                    row += 1
    except (OSError, pa.ArrowException) as error:
        raise DamagedInput(f"{name} cannot be read: {first_line(error)}") from error


def image_in_row(value: bytes | str | None, name: str | bytes) -> SourceImage:
    """Return the image of a column's value: bytes, or the path or URL of a file. None is an empty file."""
    if isinstance(value, str):
        # The address is parsed when the image is read, so that a wrong address only affects its own row.
        return SourceImage(file=FileVersion(path=os.fsdecode(name)), read=lambda: Location.of(value).read())
    data = value or b""
    return SourceImage(file=FileVersion(path=os.fsdecode(name), size_bytes=len(data)), read=lambda: (data, None))


def flattened(table: Any, column: str) -> Any:
    """Return a ``pyarrow.Table`` with ``column``, in which field b of a struct a may be the column ``a.b``."""
    from pyarrow.types import is_struct

    while column not in table.column_names and any(map(is_struct, table.schema.types)):
        table = table.flatten()
    return table


def check_column(schema: Any, column: str, place: object) -> None:
    """Raise DistributedError if the ``pyarrow.Schema`` of ``place`` has no ``column`` of files, paths or URLs."""
    import pyarrow as pa

    schema = flattened(schema.empty_table(), column).schema
    if column not in schema.names:
        raise DistributedError(f"{place} has no column {column!r}; it has {', '.join(schema.names)}")
    kind = schema.field(column).type
    if kind not in (pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.null()):
        raise DistributedError(
            f"the column {column!r} of {place} holds {kind}; it must hold the bytes of image files, or their paths"
        )
