"""The keypoints of photos by content: about 100 kB each, so only those of two photos at a time are in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clip_client.dedup.store.sqlite import open_database, transaction

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_VERSION: Final = 1
_SCHEMA: Final = "CREATE TABLE IF NOT EXISTS keypoints (sha256 BLOB PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID"


class KeypointTable:
    """A table in the store. It may be lost at any time: then the photos that need keypoints are decoded once more."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = open_database(path, _SCHEMA, version=_VERSION, durable=False)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def known(self) -> set[str]:
        """Return every content (SHA-256, hexadecimal) that has keypoints."""
        return {key.hex() for (key,) in self._connection.execute("SELECT sha256 FROM keypoints")}

    def get(self, sha256: str) -> bytes | None:
        """Return the keypoints of a content; None if there are none."""
        key = bytes.fromhex(sha256)
        found = self._connection.execute("SELECT data FROM keypoints WHERE sha256 = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def put(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Keep the keypoints of contents. Raises StoreError if the disk cannot be written."""
        with transaction(self._connection):
            values = ((bytes.fromhex(sha256), data) for sha256, data in rows)
            self._connection.executemany("INSERT OR REPLACE INTO keypoints VALUES (?, ?)", values)
