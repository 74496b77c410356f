"""Bytes that a search keeps beside its store, as long as there is room."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from clip_client.dedup.store.blob_table import Spool

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_spool_gives_back_what_fits_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clip_client.dedup.store.blob_table._MOST_BYTES", 10)
    with Spool(tmp_path) as spool:
        for key, data in (("a", b"12345"), ("b", b"123456"), ("c", b"678")):
            spool.put(key, data)
        assert dict(spool) == {"a": b"12345", "c": b"678"}
    assert not [*tmp_path.iterdir()]


class FullDisk(io.BytesIO):
    """A file with room for 4 bytes."""

    def write(self, data: object) -> int:
        assert isinstance(data, bytes)
        return super().write(data[: 4 - self.tell()])


def test_a_full_disk_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **options: FullDisk())
    with Spool(tmp_path) as spool:
        for key, data in (("a", b"123"), ("b", b"456"), ("c", b"7")):
            spool.put(key, data)
        assert dict(spool) == {"a": b"123"}


def test_a_folder_that_is_away_keeps_nothing(tmp_path: Path) -> None:
    with Spool(tmp_path / "away") as spool:
        spool.put("a", b"1")
        assert dict(spool) == {}
