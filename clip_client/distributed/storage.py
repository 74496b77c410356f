"""Folders and files by path or URL: on a disk, in S3, GCS, Azure or HDFS (pyarrow), or in a file system of fsspec."""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

from clip_client._files import URL, FailedFile, stored_ns
from clip_client.dedup.files.reading import open_file, read_file
from clip_client.dedup.types import PhotoFile
from clip_client.distributed.cluster import DistributedError
from preprocess_ensemble.errors import first_line
from preprocess_ensemble.whole_file import whole_file

_KEYS: Final = re.compile(r"(?<=://)[^?]*@")
"""A user and a password, or keys of a bucket, in a URL; they must not get into a log."""

_GCS_RETRIES_S: Final = 60  # time to try a bucket; by default pyarrow tries for fifteen minutes
FOOTERS_AT_ONCE: Final = 32  # Parquet files examined at a time; a bucket is slow to answer


def is_url(text: str) -> bool:
    return URL.match(text) is not None


def read_photo(address: str) -> tuple[PhotoFile, bytes] | FailedFile:
    if not is_url(address):
        return read_file(address)
    try:
        data, _ = Location.of(address).read()
    except Exception as error:  # object stores and their libraries raise many kinds of errors
        return FailedFile(path=address, code="UNREADABLE", message=f"It cannot be read: {first_line(error)}.")
    return PhotoFile(address, len(data), 0), data


@dataclass(frozen=True, kw_only=True)
class Location:
    filesystem: Any
    path: str  # path in the file system, such as ``"bucket/folder"``
    prefix: str  # start of the URL, such as ``"s3://"``; empty for a disk

    def __str__(self) -> str:
        return self.prefix + self.path

    @classmethod
    def of(cls, address: str | os.PathLike[str]) -> Self:
        """Parse a path or URL; raise DistributedError if no installed package knows its scheme."""
        from pyarrow import fs

        text = os.fsdecode(address)
        if text.startswith(("gs://", "gcs://")) and "retry_limit_seconds" not in text:
            text += f"{'&' if '?' in text else '?'}retry_limit_seconds={_GCS_RETRIES_S}"
        if (match := URL.match(text)) is None:
            return cls(filesystem=fs.LocalFileSystem(), path=os.path.abspath(text), prefix="")
        try:
            try:
                filesystem, path = fs.FileSystem.from_uri(text)
            except ValueError as error:
                if not str(error).startswith("Unrecognized filesystem type"):
                    raise
                import fsspec

                inner, path = fsspec.core.url_to_fs(text)
                filesystem = fs.PyFileSystem(fs.FSSpecHandler(inner))
        except (ImportError, OSError, ValueError) as error:
            reason = first_line(error).replace(text, "the URL")
            raise DistributedError(f"{_KEYS.sub('', text)} cannot be opened: {reason}") from error
        is_local = filesystem.type_name == "local"
        return cls(filesystem=filesystem, path=path.rstrip("/"), prefix="" if is_local else match[0])

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def at(self, path: str) -> Location:
        return Location(filesystem=self.filesystem, path=path, prefix=self.prefix)

    def __truediv__(self, name: str) -> Location:
        return self.at(f"{self.path}/{name}")

    def files(self, *, recursive: bool) -> list[Any]:
        """Return pyarrow's ``FileInfo`` of this file, or of this folder's files, sorted. Raises DistributedError."""
        from pyarrow import fs

        try:
            own = self.filesystem.get_file_info(self.path)
            if own.type == fs.FileType.NotFound:
                raise DistributedError(f"there is no file or folder {self}")
            if own.is_file:
                return [own]
            found = self.filesystem.get_file_info(fs.FileSelector(self.path, recursive=recursive))
        except OSError as error:
            raise DistributedError(f"{self} cannot be listed: {first_line(error)}") from error
        return sorted((info for info in found if info.is_file), key=lambda info: info.path)

    def read(self) -> tuple[bytes, int | None]:
        """Read a whole file; return its bytes and, on a disk, its time of change in ns. Raises OSError."""
        if not self.prefix:  # pyarrow only opens UTF-8 paths, and waits at a FIFO until something writes to it
            with open_file(self.path) as plain:
                return plain.readall(), stored_ns(os.fstat(plain.fileno()).st_mtime_ns)
        with self.filesystem.open_input_stream(self.path) as file:
            return file.read(), None

    @contextmanager
    def usable(self) -> Iterator[None]:
        """Raise DistributedError for an OSError in the block, which changes this folder of the output."""
        try:
            yield
        except OSError as error:
            raise DistributedError(f"{self} cannot be used for the output: {first_line(error)}") from error

    @contextmanager
    def opened(self, remedy: str) -> Iterator[Any]:
        """Yield a file with random access. Raises DistributedError that ends with ``remedy``, also in the block."""
        import pyarrow as pa

        try:
            with self.filesystem.open_input_file(self.path) as file:
                yield file
        except (OSError, pa.ArrowException) as error:
            raise DistributedError(f"{self} cannot be read ({first_line(error)}); {remedy}") from error

    @contextmanager
    def written(self) -> Iterator[IO[bytes]]:
        """Yield a new file, ``.NAME.HEX.part`` until the block ends. Raises DistributedError with the machine."""
        part = self.path.removesuffix(self.name) + f".{self.name}.{uuid.uuid4().hex[:8]}.part"
        try:
            with whole_file(Path(self.path), part=Path(part)) if not self.prefix else self._moved(part) as file:
                yield file
        except OSError as error:
            reason = error.strerror or first_line(error)
            raise DistributedError(f"{socket.gethostname()} cannot write {self}: {reason}") from error

    @contextmanager
    def _moved(self, part: str) -> Iterator[IO[bytes]]:
        # An object store shows a file under its name when it is closed, complete or not.
        try:
            with self.filesystem.open_output_stream(part) as file:
                yield file
            self.filesystem.move(part, self.path)
        except BaseException:
            with suppress(OSError):
                self.filesystem.delete_file(part)
            raise
