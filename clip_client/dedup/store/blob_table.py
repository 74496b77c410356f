"""Bytes by key, for what alignment keeps: about 100 kB for a photo, so few rows at a time are in memory."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from clip_client.dedup.store.sqlite import open_database, transaction

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

_VERSION: Final = 1
_SCHEMA: Final = "CREATE TABLE IF NOT EXISTS blobs (key BLOB PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID"


class BlobTable:
    """A table in the store. It may be lost at any time: then what it held is computed once more."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = open_database(path, _SCHEMA, version=_VERSION, durable=False)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __contains__(self, key: str) -> bool:
        found = self._connection.execute("SELECT 1 FROM blobs WHERE key = ?", (bytes.fromhex(key),))
        return found.fetchone() is not None

    def get(self, key: str) -> bytes | None:
        """Return the bytes of a key, which is written in hexadecimal; None if there are none."""
        found = self._connection.execute("SELECT data FROM blobs WHERE key = ?", (bytes.fromhex(key),)).fetchone()
        return None if found is None else found[0]

    def put(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Keep the bytes of keys. Raises StoreError if the disk cannot be written."""
        with transaction(self._connection):
            values = ((bytes.fromhex(key), data) for key, data in rows)
            self._connection.executemany("INSERT OR REPLACE INTO blobs VALUES (?, ?)", values)


def remove_other_tables(folder: Path, names: Collection[str]) -> None:
    """Remove the tables of a folder that have none of these names, which other versions of the program left there."""
    for path in folder.glob("*.sqlite*"):
        if path.name.partition(".sqlite")[0] not in names:
            with suppress(OSError):  # another process may use it, which only Windows minds
                path.unlink()
