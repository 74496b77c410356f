"""Times of files that lie: set back after a change, later than a computer can count, or of a clock that was not set."""

import os
from pathlib import Path

import pyarrow as pa
import pytest

from clip_client._files import FailedFile
from clip_client._storage.parquet_store import table_of
from clip_client._storage.vector_file import FileVersion, vector_row
from clip_client.dedup import Store
from clip_client.dedup.actions.apply import apply
from clip_client.dedup.files.reading import hash_file, sha256_of
from clip_client.dedup.types import PhotoFile
from tests.fixtures.albums import files, planned, searched, write
from tests.fixtures.commands import Said
from tests.fixtures.images.image_files import jpeg

AFTER_2262_S = 10_413_792_000
"""The year 2300; its nanoseconds need more than 64 bits."""


def names(store: Store, root: Path) -> list[list[str]]:
    return [[member.photo.name for member in group.members] for group in searched(root, store=store).groups]


def edit_in_place(path: Path) -> None:
    """Change bytes and keep size and time, as ``touch -r`` and some editors of metadata do."""
    status = path.stat()
    path.write_bytes(b"edited"[: status.st_size])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_file_that_was_edited_in_place_is_no_copy_any_more(root: Path, store: Store) -> None:
    first, second = (write(root / name, b"photos") for name in ("1.nef", "2.nef"))
    assert names(store, root) == [["1.nef", "2.nef"]]
    assert searched(root, store=store).work.files_read == 0
    edit_in_place(second)
    assert names(store, root) == []
    assert searched(first, store=store).work.files_read == 0


def test_a_film_is_hashed_once_and_again_when_it_changes(tmp_path: Path, store: Store) -> None:
    film = write(tmp_path / "1.mov", b"film")
    first = store.files.sha256_of(str(film), sha256_of)
    assert store.files.sha256_of(str(film), lambda path: "read again") == first
    edit_in_place(film)
    assert store.files.sha256_of(str(film), sha256_of) != first
    assert store.files.sha256_of(str(tmp_path / "gone.mov"), sha256_of) == ""


def test_a_failed_move_makes_the_next_search_read_the_files_again(root: Path, store: Store) -> None:
    """Some file systems have no time of change of their own."""
    kept, edited = (write(root / name, b"photos") for name in ("1.nef", "2.nef"))
    sha256 = hash_file(str(kept))
    assert not isinstance(sha256, FailedFile)
    searched(root, store=store)
    edit_in_place(edited)
    store.files.remember([(PhotoFile.of(str(edited), edited.stat()), sha256[1])])
    (outcome,) = apply(planned(searched(root, store=store), [root]), store.journal, files=store.files)
    assert (outcome.done, outcome.message) == (False, "It has changed since it was compared.")
    assert names(store, root) == []


def test_a_file_of_the_far_future_moves_and_comes_back_with_its_time(root: Path, tmp_path: Path, said: Said) -> None:
    """The far future is not a reason to keep the photo, and Parquet can hold the time."""
    dated, future = write(root / "a longer name.jpg", jpeg()), write(root / "b.jpg", jpeg())
    os.utime(future, (1e9, AFTER_2262_S))
    if future.stat().st_mtime != AFTER_2262_S:
        pytest.skip("this file system holds no time after 2262")
    before, store = files(root), ["--store", tmp_path / "store"]
    for _ in range(2):  # the second search finds it in the store
        lines = said("dedup", root, "--without-model", "--dry-run", *store)
        assert f"would move: {future}; kept: {dated}" in " ".join(" ".join(lines).split())
    said("dedup", root, "--without-model", "--apply", *store)
    assert not future.exists()
    said("undo", *store)
    assert files(root) == before
    row = vector_row(FileVersion.of(str(future)), failure=FailedFile(path=str(future), code="EMPTY", message=""))
    assert table_of([row], pa.schema({"mtime_ns": pa.int64()})).num_rows == 1
