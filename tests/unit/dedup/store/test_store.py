"""The parts of a store: caches, the index of files, decisions, settings, and what is done with damaged ones."""

import io
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clip_client._storage.sqlite import Database
from clip_client.dedup import Store, StoreError
from clip_client.dedup.features.image_features import cached_features
from clip_client.dedup.photo import ImageFeatures
from clip_client.dedup.store.cache import Spool
from clip_client.dedup.store.decisions import DIFFERENT
from clip_client.dedup.store.store import default_directory
from clip_client.dedup.types import Metadata, PhotoFile
from tests.fixtures.vectors import read

ROW: dict[str, Any] = {"sha256": bytes(32), "vector": np.array([0.6, 0.8], dtype=np.float32), "code": "", "message": ""}


def test_a_look_comes_back_whole(store: Store) -> None:
    metadata = Metadata(taken_ms=1, has_sub_second=True, sequence=None, camera="A", fields=3)
    features = ImageFeatures(
        width=4, height=3, format="JPEG", perceptual_hash=2**64 - 1, embedded="film", metadata=metadata
    )
    looks = cached_features(store)
    looks.add({"sha256": bytes(32), **features.to_row()})
    looks.flush()
    (row,) = read(cached_features(store)).to_pylist()
    del row["sha256"]
    assert ImageFeatures.from_row(row) == features


def test_a_file_of_other_vectors_is_refused(store: Store) -> None:
    one, other = (store.vectors(vector_id, 2) for vector_id in ("one", "other"))
    for vectors in (one, other):
        vectors.add(ROW)
        vectors.flush()
    (stray,) = other.folder.iterdir()
    stray.rename(one.folder / "strayed.parquet")
    with pytest.raises(StoreError, match=r"strayed\.parquet does not belong in this folder"):
        one.keys()
    (one.folder / "strayed.parquet").unlink()
    assert one.keys() == {bytes(32)}


def test_files_are_known_by_path_size_and_time(store: Store) -> None:
    sha256 = "ab" * 32
    files = [PhotoFile(f"/photos/{number}.jpg", 10, number) for number in range(2000)]
    store.files._connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)  # of old versions of SQLite
    store.files.remember((file, sha256) for file in files)
    assert store.files.known(files) == {file.path: sha256 for file in files}
    assert store.files.known([files[0]._replace(mtime_ns=7), files[1]._replace(size_bytes=11)]) == {}
    paths = store.files.paths_of([*(f"{number:064x}" for number in range(2000)), sha256])
    assert paths.pop(sha256) == sorted(file.path for file in files)
    assert not any(paths.values())


def test_what_nobody_can_decide_or_name_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="a decision must be 'different' or 'keep-all'"):
        store.decisions.add("alike", "ab")
    for name in ("", "x" * 65, "a/b", "a\nb"):
        with pytest.raises(ValueError, match="cannot name rules: use 1 to 64"):
            store.settings.save_keep_rules(name, ["newest"])
    assert (store.decisions.all(), store.settings.keep_rules()) == ([], {})


def test_a_decision_is_forgotten_with_its_contents(store: Store) -> None:
    """The next decision may get its number."""
    store.decisions.add(DIFFERENT, "ab")
    assert store.decisions.forget("b") == 1
    store.decisions.add(DIFFERENT, "cd")
    assert [one.contents for one in store.decisions.all()] == [{"c", "d"}]


def test_databases_of_another_version_and_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cache.sqlite").write_bytes(b"no database at all" * 100)
    with Store(tmp_path) as store:
        for name, version, age in (
            ("journal", 99, "a newer"),
            ("journal", 2, "an older"),
            ("choices", 1, "an older"),
            ("history", 99, "a newer"),
        ):
            with closing(sqlite3.connect(tmp_path / f"{name}.sqlite")) as connection:
                connection.execute(f"PRAGMA user_version = {version}")
            with pytest.raises(StoreError, match=rf"{name}.sqlite was made by {age} version .*; use that version"):
                _ = store.journal
            (tmp_path / f"{name}.sqlite").unlink()
        (tmp_path / "settings.sqlite").write_bytes(b"no database at all" * 100)
        with pytest.raises(StoreError, match=r"settings\.sqlite cannot be used .*; restore it from a backup"):
            _ = store.settings
        with pytest.raises(StoreError, match=r"cache\.sqlite cannot be used .*; move it away to start again, or"):
            _ = store.files


def test_a_store_that_cannot_be_written_is_not_to_be_moved_away(tmp_path: Path) -> None:
    (tmp_path / "history.sqlite-wal").mkdir()  # as with a read-only folder, nothing is wrong with what is remembered
    (tmp_path / "looks").touch()
    with Store(tmp_path) as store:
        with pytest.raises(StoreError, match=r"looks.look-\d+: "):
            cached_features(store)
        with pytest.raises(StoreError) as raised:
            _ = store.journal
        assert "move it away" not in str(raised.value)


class Numbers(Database):
    SCHEMA = "CREATE TABLE IF NOT EXISTS numbers (number INTEGER NOT NULL)"

    def add(self, *numbers: int | None) -> None:
        self._write("INSERT INTO numbers VALUES (?)", ((number,) for number in numbers))

    def add_on_a_full_disk(self, *numbers: int) -> None:
        self._connection.execute("PRAGMA max_page_count = 3")
        self.add(*numbers)

    def all(self) -> list[tuple[int]]:
        return self._connection.execute("SELECT number FROM numbers").fetchall()


def test_a_transaction_is_whole_or_not_at_all(tmp_path: Path) -> None:
    numbers = Numbers(tmp_path / "x.sqlite")
    with pytest.raises(sqlite3.IntegrityError):
        numbers.add(1, None)
    assert numbers.all() == []
    numbers.add(2)
    assert numbers.all() == [(2,)]
    with pytest.raises(StoreError, match=r"x\.sqlite cannot be written .*; free some space"):
        numbers.add_on_a_full_disk(*range(10_000))
    assert numbers.all() == [(2,)]
    numbers.close()


def test_a_new_database_is_waited_for_where_another_process_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite does not wait here by itself."""
    other = sqlite3.connect(tmp_path / "x.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    turns: list[float] = []

    def turn(seconds: float) -> None:
        turns.append(seconds)
        other.execute("COMMIT")

    monkeypatch.setattr("time.sleep", turn)
    Numbers(tmp_path / "x.sqlite").close()
    assert len(turns) == 1
    other.close()


WRITER = """
import sys
from clip_client.dedup import Store
from clip_client.dedup.types import PhotoFile
me = int(sys.argv[2])
with Store(sys.argv[1]) as store:
    vectors = store.vectors("model", 1)
    for number in range(10):
        key = bytes([me, number]) * 16
        store.files.remember([(PhotoFile(f"/{me}/{number}", 1, 1), key.hex())])
        vectors.add({"sha256": key, "vector": [1.0], "code": "", "message": ""})
        vectors.flush()
        vectors.compact()
        assert [*vectors.find([key])]
"""


def test_processes_write_to_one_store_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    processes = [subprocess.Popen([*command, str(number)]) for number in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    with Store(tmp_path) as store:
        assert len(store.vectors("model", 1).keys()) == 30
        files = [PhotoFile(f"/{me}/{number}", 1, 1) for me in range(3) for number in range(10)]
        assert len(store.files.known(files)) == 30


def test_the_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_directory().name == "clip-client"
    monkeypatch.setenv("CLIP_STORE", str(tmp_path / "mine"))
    assert default_directory() == tmp_path / "mine"


@pytest.mark.parametrize("name", [b"caf\xe9", b"s3:photos", b"file:photos", b"a=b%20?c#d\n"])
def test_a_store_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes) -> None:
    """Also one that is not UTF-8, or that a library would take for an address, named from the folder around it."""
    monkeypatch.chdir(tmp_path)
    with Store(os.fsdecode(name)) as store:
        vectors = store.vectors("model", 2)
        vectors.add(ROW)
        vectors.flush()
        assert store.vectors("model", 2).keys() == {bytes(32)}
        assert store.decisions.all() == []


class FullDisk(io.BytesIO):
    """A file with room for 4 bytes."""

    def write(self, data: object) -> int:
        assert isinstance(data, bytes)
        return super().write(data[: 4 - self.tell()])


def test_a_spool_gives_back_what_fits_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(folder: Path, **limit: int) -> dict[str, bytes]:
        with Spool(folder, **limit) as spool:
            for key, data in (("a", b"123"), ("b", b"456"), ("c", b"7")):
                spool.put(key, data)
            return dict(spool)

    assert kept(tmp_path / "away") == {}
    assert kept(tmp_path) == {"a": b"123", "b": b"456", "c": b"7"}
    assert not [*tmp_path.iterdir()]
    assert kept(tmp_path, most_bytes=4) == {"a": b"123", "c": b"7"}
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **options: FullDisk())
    assert kept(tmp_path) == {"a": b"123"}


def earlier_file(path: Path, version: int, table: str, *rows: tuple[object, ...]) -> None:
    """Make a file of one table, as earlier versions kept each cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE {table}")
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO {table.partition(' ')[0]} VALUES ({marks})", rows)
        connection.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize("is_outdated", [False, True])
def test_the_caches_of_an_earlier_version_are_taken_over_and_removed(tmp_path: Path, is_outdated: bool) -> None:
    """Earlier rules accepted a camera's metadata as a proof, and earlier files had no time of change."""
    copy, photo, key = (bytes([number] * 32) for number in range(3))
    file = PhotoFile("/photos/1.jpg", 10, 7, 8)
    row = os.fsencode(file.path), file.size_bytes, file.mtime_ns, photo, file.ctime_ns
    files = "files (path BLOB, size_bytes INTEGER, mtime_ns INTEGER, sha256 BLOB, ctime_ns INTEGER)"
    earlier_file(tmp_path / "files.sqlite", 1 if is_outdated else 2, files, row)
    earlier_file(
        tmp_path / "copies.sqlite", 2 if is_outdated else 3, "copies (sha256 BLOB, picture BLOB)", (copy, photo)
    )
    (tmp_path / "copies.sqlite-journal").touch()
    for version in ("sift-1", "sift-1-align-2-proof-1"):
        table = "blobs (key BLOB, data BLOB)"
        earlier_file(tmp_path / "keypoints" / f"{version}.sqlite", 1, table, (key, version.encode()))
    with Store(tmp_path) as store:
        assert store.files.known([file]) == ({} if is_outdated else {file.path: photo.hex()})
        assert store.copies.pictures_of([copy.hex()]) == {copy.hex(): (copy if is_outdated else photo).hex()}
        assert store.cache.other_versions() == ["sift-1-align-2-proof-1"]
        (outcomes,) = store.cache.blob_tables("sift-1-align-2-proof-1")
        assert outcomes.get(key.hex()) == b"sift-1-align-2-proof-1"
        store.cache.blob_tables("sift-2")
        assert (store.cache.other_versions("sift-2"), outcomes.get(key.hex())) == ([], None)
    assert [path.name for path in tmp_path.iterdir()] == ["cache.sqlite"]
