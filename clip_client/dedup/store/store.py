"""The store: one folder with everything that stays after a search.

::

    cache.sqlite        files, copies, keypoints and outcomes       a cache
    looks/<algorithm>   SHA-256 -> size, hash, time of the photo    a cache, Parquet
    pixels/<algorithm>  SHA-256 -> SHA-256 of the pixels            a cache, Parquet
    vectors/<id>        SHA-256 -> vector of one model              a cache, Parquet
    index/<id>          the same vectors, for a search              a cache, see clip_client/search
    history.sqlite      moves, decisions, choices, saved rules      not replaceable

The caches and decisions are keyed by content, so files can be moved, renamed and copied between machines.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clip_client._storage.file_system import network_file_system
from clip_client._storage.parquet_store import ParquetStore
from clip_client._storage.sqlite import StoreError
from clip_client.dedup.store.cache import Cache
from clip_client.dedup.store.choices import Choices
from clip_client.dedup.store.contents import FileIndex, ProvenCopies
from clip_client.dedup.store.decisions import Decisions
from clip_client.dedup.store.history import History
from clip_client.dedup.store.journal import Journal
from clip_client.dedup.store.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

CACHE: Final = "cache.sqlite"


def default_directory() -> Path:
    if named := os.environ.get("CLIP_STORE"):
        return Path(named)
    from platformdirs import user_data_path

    return user_data_path("clip-client", appauthor=False)


def store_option(directory: Path) -> str:
    is_default = directory.absolute() == default_directory().absolute()
    return "" if is_default else f" --store {shlex.quote(str(directory))}"


def folder_name(vector_id: str) -> str:
    return hashlib.sha256(vector_id.encode()).hexdigest()[:16]


class Store(AbstractContextManager["Store"]):
    """An open store. One thread at a time may use it, any number of processes at once."""

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        """Open or make ``directory``; None makes a temporary store that ends with this object. Raises StoreError."""
        self._open = ExitStack()
        if directory is None:
            directory = self._open.enter_context(tempfile.TemporaryDirectory(prefix="clip-client-"))
        # Make it absolute, because pyarrow and SQLite read a relative name with a colon as an address.
        self.directory = Path(os.path.abspath(Path(directory).expanduser()))
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except FileExistsError:
            raise StoreError(f"the store {self.directory} is a file, and a folder is needed") from None
        except OSError as error:
            raise StoreError(f"the store {self.directory} cannot be created: {error.strerror}") from None
        if not os.access(self.directory, os.R_OK | os.X_OK):
            raise StoreError(f"the store {self.directory} cannot be read: you have no permission to look into it")

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._open.close()

    @property
    def warning(self) -> str:
        if not (kind := network_file_system(self.directory)):
            return ""
        return f"the store {self.directory} is on a network file system ({kind}): use it on one computer at a time"

    @cached_property
    def _history(self) -> History:
        return self._open.enter_context(closing(History(self.directory / "history.sqlite")))

    @cached_property
    def journal(self) -> Journal:
        return Journal(self._history)

    @cached_property
    def decisions(self) -> Decisions:
        return Decisions(self._history)

    @property
    def choices(self) -> Choices:
        return self.journal.choices

    @cached_property
    def settings(self) -> Settings:
        return Settings(self._history)

    @cached_property
    def cache(self) -> Cache:
        return self._open.enter_context(closing(Cache(self.directory / CACHE)))

    @cached_property
    def copies(self) -> ProvenCopies:
        return ProvenCopies(self.cache)

    @cached_property
    def files(self) -> FileIndex:
        return FileIndex(self.cache)

    def vectors(self, vector_id: str, dimension: int) -> ParquetStore:
        """Open the vectors of one id, of ``dimension`` numbers; ``code`` and ``message`` explain a missing one."""
        import pyarrow as pa

        folder = Path("vectors", folder_name(vector_id))
        columns = {"vector": pa.list_(pa.float32(), dimension), "code": pa.string(), "message": pa.string()}
        vectors = self.table(folder, columns, {"vector_id": vector_id})
        vectors.rows_per_group = 256  # 0.5 MB: what a search reads for each of a few photos among very many
        return vectors

    def table(self, folder: Path, columns: Mapping[str, pa.DataType], about: Mapping[str, str]) -> ParquetStore:
        import pyarrow as pa

        schema = pa.schema({"sha256": pa.binary(32), **columns}, metadata=dict(about))
        return ParquetStore(self.directory / folder, schema)
