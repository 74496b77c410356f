"""The parts of a store: shelves, the index of files, decisions, and what is done with damaged ones."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from clip_client.dedup import Store, StoreError
from clip_client.dedup.features.image_features import cached_features, extract_features
from clip_client.dedup.features.pixel_hash import pixel_hash
from clip_client.dedup.files.companions import companions, what_would_be_lost
from clip_client.dedup.photo import ImageFeatures
from clip_client.dedup.store.decisions import DIFFERENT, KEEP_ALL
from clip_client.dedup.store.sqlite import Database
from clip_client.dedup.store.store import default_directory
from clip_client.dedup.types import CaptureTime, PhotoFile
from tests.fixtures.vectors import read

ROW: dict[str, Any] = {"sha256": bytes(32), "vector": np.array([0.6, 0.8], dtype=np.float32), "code": "", "message": ""}


def rows(store: Store, vector_id: str = "model") -> list[bytes]:
    keys: list[bytes] = read(store.vectors(vector_id, 2)).column("sha256").to_pylist()
    return keys


def test_rows_come_back_bit_for_bit(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        vectors = store.vectors("model", 2)
        vectors.add(ROW)
        vectors.add({**ROW, "sha256": b"\1" * 32, "vector": None, "code": "EMPTY", "message": "It is empty."})
        vectors.flush()
        table = read(store.vectors("model", 2))
    assert table.column("sha256").to_pylist() == [bytes(32), b"\1" * 32]
    assert np.array_equal(np.array(table.column("vector")[0].as_py(), np.float32), ROW["vector"])
    assert np.isnan(table.column("vector")[1].as_py()).all()
    assert table.column("code").to_pylist() == ["", "EMPTY"]


def test_a_look_comes_back_whole(tmp_path: Path) -> None:
    capture_time = CaptureTime(taken_ms=1, has_sub_second=True, sequence=None, camera="A", fields=3)
    features = ImageFeatures(
        width=4, height=3, format="JPEG", perceptual_hash=2**64 - 1, embedded="film", capture_time=capture_time
    )
    with Store(tmp_path) as store:
        looks = cached_features(store)
        looks.add({"sha256": bytes(32), **features.to_row()})
        looks.flush()
        (row,) = read(cached_features(store)).to_pylist()
    assert ImageFeatures.from_row(row) == features


def test_vectors_of_two_models_never_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path) as store:
        for vector_id in ("one", "other"):
            vectors = store.vectors(vector_id, 2)
            vectors.add(ROW)
            vectors.flush()
        assert len(rows(store, "one")) == 1
        one, other = sorted((tmp_path / "vectors").iterdir())
        next(one.glob("*.parquet")).rename(other / "strayed.parquet")
        with pytest.raises(StoreError, match="does not belong there"):
            [rows(store, vector_id) for vector_id in ("one", "other")]


def test_many_small_files_become_one(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        vectors = store.vectors("model", 2)
        for number in range(65):
            vectors.add({**ROW, "sha256": bytes([number]) * 32})
            vectors.flush()
        folder = next((tmp_path / "vectors").iterdir())
        assert len(list(folder.iterdir())) == 65
        vectors.compact()
        assert len(list(folder.iterdir())) == 1
        assert len(set(rows(store))) == 65


def test_a_damaged_file_costs_its_own_rows_only(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        vectors = store.vectors("model", 2)
        vectors.add(ROW)
        vectors.flush()
        folder = next((tmp_path / "vectors").iterdir())
        (folder / "0 damaged.parquet").write_bytes(b"PAR1 cut off")
        (folder / "0 part.part").write_bytes(b"left by a killed process")
        assert rows(store) == [bytes(32)]


def test_files_are_known_by_path_size_and_time(tmp_path: Path) -> None:
    sha256 = "ab" * 32
    files = [PhotoFile(f"/photos/{number}.jpg", 10, number) for number in range(2000)]
    with Store(tmp_path) as store:
        store.files.remember((file, sha256) for file in files)
        assert store.files.known(files) == {file.path: sha256 for file in files}
        assert store.files.known([files[0]._replace(mtime_ns=7), files[1]._replace(size_bytes=11)]) == {}


def test_decisions_are_kept_and_forgotten_by_content(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.decisions.add(DIFFERENT, ["a", "b"])
        store.decisions.add(KEEP_ALL, ["c", "d", "e"])
        with pytest.raises(ValueError, match="two photos with different bytes"):
            store.decisions.add(DIFFERENT, ["a", "a"])
    with Store(tmp_path) as store:
        assert [(decision.what, decision.contents) for decision in store.decisions.all()] == [
            ("different", frozenset("ab")),
            ("keep-all", frozenset("cde")),
        ]
        assert store.decisions.forget(["d"]) == 1
        assert [decision.contents for decision in store.decisions.all()] == [frozenset("ab")]


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "journal.sqlite"
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with Store(tmp_path) as store, pytest.raises(StoreError, match="newer version"):
        _ = store.journal


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "files.sqlite").write_bytes(b"no database at all" * 100)
    with Store(tmp_path) as store, pytest.raises(StoreError, match=r"files\.sqlite cannot be used"):
        _ = store.files


def test_a_store_that_cannot_be_written_is_not_to_be_moved_away(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite-wal").mkdir()  # as with a read-only folder, nothing is wrong with what is remembered
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

    def all(self) -> list[tuple[int]]:
        return self._connection.execute("SELECT number FROM numbers").fetchall()


def test_a_transaction_is_whole_or_not_at_all(tmp_path: Path) -> None:
    numbers = Numbers(tmp_path / "x.sqlite")
    with pytest.raises(sqlite3.IntegrityError):
        numbers.add(1, None)
    assert numbers.all() == []
    numbers.add(2)
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


def test_processes_write_to_one_store_at_once(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from clip_client.dedup import Store\n"
        "from clip_client.dedup.types import PhotoFile\n"
        "me = int(sys.argv[2])\n"
        "with Store(sys.argv[1]) as store:\n"
        "    vectors = store.vectors('model', 1)\n"
        "    for number in range(30):\n"
        "        key = bytes([me, number]) * 16\n"
        "        store.files.remember([(PhotoFile(f'/{me}/{number}', 1, 1), key.hex())])\n"
        "        vectors.add({'sha256': key, 'vector': [1.0], 'code': '', 'message': ''})\n"
        "        vectors.flush()\n"
        "        vectors.compact()\n"
        "        assert [*vectors.find([key])]\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    processes = [subprocess.Popen([*command, str(number)]) for number in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    with Store(tmp_path) as store:
        assert len(store.vectors("model", 1).keys()) == 90
        files = [PhotoFile(f"/{me}/{number}", 1, 1) for me in range(3) for number in range(30)]
        assert len(store.files.known(files)) == 90


def test_the_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_directory().name == "clip-client"
    monkeypatch.setenv("CLIP_STORE", str(tmp_path / "mine"))
    assert default_directory() == tmp_path / "mine"


def test_looks_tell_sizes_hashes_and_pixels(photos: Path) -> None:
    data = (photos / "coffee.jpg").read_bytes()
    features = extract_features(data)
    assert (features.width, features.height, features.is_flat, features.code) == (600, 400, False, "")
    # Bytes behind the end of a JPEG change the file and not one pixel.
    assert pixel_hash(data + b"\0") == pixel_hash(data) != pixel_hash((photos / "rocket.jpg").read_bytes())
    assert extract_features(b"no picture").code == "NOT_AN_IMAGE"
    assert pixel_hash(b"no picture") == ""


def test_companions_are_found_by_name(tmp_path: Path) -> None:
    for name in ("a.jpg", "A.CR2", "a.jpg.xmp", "a.txt", "b.heic", "b.mov", "b.jpg", "b.jpg.xmp"):
        (tmp_path / name).touch()
    found = companions(str(tmp_path / name) for name in ("a.jpg", "b.heic", "b.jpg"))
    named = {Path(photo).name: [Path(one.path).name for one in own] for photo, own in found.items()}
    assert named == {"a.jpg": ["A.CR2", "a.jpg.xmp"], "b.jpg": ["b.jpg.xmp"]}
    raw = found[str(tmp_path / "a.jpg")]
    assert what_would_be_lost(raw, ()) == "RAW file"
    assert what_would_be_lost(raw, raw) == ""


def test_nothing_belongs_to_two_photos_whose_names_differ_by_case(tmp_path: Path) -> None:
    for name in ("a.jpg", "A.JPG", "a.jpg.xmp"):
        (tmp_path / name).touch()
    if len(list(tmp_path.iterdir())) < 3:
        pytest.skip("this file system knows no case")
    assert companions(str(tmp_path / name) for name in ("a.jpg", "A.JPG")) == {}


def test_stored_vectors_are_plain_parquet(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        vectors = store.vectors("model|id", 2)
        vectors.add(ROW)
        vectors.flush()
    file = next(tmp_path.rglob("*.parquet"))
    schema = pq.read_schema(file)
    assert schema.metadata[b"vector_id"] == b"model|id"


@pytest.mark.parametrize("name", [b"caf\xe9", b"s3:photos", b"file:photos", b"a=b%20?c#d\n"])
def test_a_store_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes) -> None:
    """Also one that is not UTF-8, or that a library would take for an address, named from the folder around it."""
    monkeypatch.chdir(tmp_path)
    with Store(os.fsdecode(name)) as store:
        vectors = store.vectors("model", 2)
        vectors.add({"sha256": b"1" * 32, "vector": [1.0, 0.0], "code": "", "message": ""})
        vectors.flush()
        assert rows(store) == [b"1" * 32]
        assert store.decisions.all() == []
