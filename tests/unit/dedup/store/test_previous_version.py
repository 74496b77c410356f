"""A store and an embed folder of the previous version still work: nothing is embedded again, every move can be undone.

``previous_version.tar.gz`` holds photos, the store of ``clip-client dedup --apply --merge-metadata`` and of ``decide``,
and the folder of ``clip-client embed``. They were made in ``/photos`` with tests/tiny_clip.json and random weights.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tarfile
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clip_client import load_vectors
from clip_client._vectors.vector_file import FileVersion, VectorFolder, vector_row
from clip_client.cli.main import main
from clip_client.dedup import Store, find_duplicates, scan
from clip_client.dedup.store.decisions import DIFFERENT
from clip_client.dedup.store.journal import IN_QUARANTINE, PROOF
from clip_client.dedup.types import SAME_PIXELS
from tests.fixtures.models.model_info import model_info
from tests.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MODEL = model_info(
    id="tiny_clip/random:0@33a9c032",
    preprocess_id="shortest-bicubic-224x224",
    transfer="thumb-jpeg-q90-444",
    dimension=512,
)
PHOTOS = {  # name -> size, seconds of its modification time after 1.6e9
    "broken.jpg": (200, 0),
    "garden.jpg": (1302, 1),
    "harbour (1).jpg": (1284, 2),
    "harbour.jpg": (1284, 3),
    "street-rated.jpg": (1389, 4),
    "street.jpg": (1353, 5),
}


class NothingNew:
    """A client of the same model that must not be asked for any vector."""

    async def model(self) -> Any:
        return MODEL

    async def embed_stream(self, images: AsyncIterator[Any], *, ordered: bool) -> AsyncIterator[Any]:
        async for image in images:
            yield AssertionError(f"{image} was embedded again")


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """Unpack the archive, and make the store's absolute paths point to where it lies now."""
    with tarfile.open(ROOT / "tests" / "data" / "previous_version.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    columns = {
        "journal.sqlite": ("units.survivor", "files.original", "files.quarantined", "sidecars.path"),
        "files.sqlite": ("files.path",),
    }
    for database, names in columns.items():
        with closing(sqlite3.connect(tmp_path / "store" / database)) as connection, connection:
            for table, column in (name.split(".") for name in names):
                connection.execute(
                    f"UPDATE {table} SET {column} = CAST(replace(CAST({column} AS TEXT), '/photos/', ?) AS BLOB)",
                    (f"{tmp_path}/photos/",),
                )
    return tmp_path


def search(previous: Path) -> Any:
    clip: Any = NothingNew()
    with Store(previous / "store") as store:
        return asyncio.run(find_duplicates(clip, scan([previous / "photos"]), store=store))


def test_a_search_embeds_nothing_again_and_decisions_hold(previous: Path) -> None:
    """The features have a new version, so the photos are decoded once more."""
    report = search(previous)
    assert report.work.embedded == 0
    assert report.compared == 3
    assert [os.path.basename(failure.path) for failure in report.failed] == ["broken.jpg"]
    with Store(previous / "store") as store:
        (decision,) = store.decisions.all()
    assert (decision.what, len(decision.contents)) == (DIFFERENT, 2)


def test_undo_restores_every_photo(previous: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = previous / "photos"
    with Store(previous / "store") as store:
        entries = store.journal.entries(IN_QUARANTINE)
        assert [os.path.basename(entry.kept) for entry in entries] == ["harbour (1).jpg", "street.jpg"]
        assert [sidecar.is_ours for sidecar in entries[1].sidecars] == [True]
    assert (photos / "street.jpg.xmp").exists()
    assert main(["undo", "--store", str(previous / "store")]) == 0
    assert "2 photos" in capsys.readouterr().out
    found = {path.name: path.stat() for path in photos.iterdir()}
    assert {name: (status.st_size, status.st_mtime_ns) for name, status in found.items()} == {
        name: (size, (1_600_000_000 + seconds) * 10**9) for name, (size, seconds) in PHOTOS.items()
    }
    report = search(previous)  # and the caches hold what was moved, too
    assert (report.work.embedded, report.compared) == (0, 5)
    assert sorted(group.tier for group in report.groups) == ["exact", "same-pixels"]


def test_what_it_moved_is_proved_again_before_it_is_purged(
    previous: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy with the same bytes and one with the same pixels; then the same pixels are no longer there."""
    where = ["--store", str(previous / "store")]
    with Store(previous / "store") as store:
        assert [(entry.tier, entry.proof) for entry in store.journal.entries(IN_QUARANTINE)] == [("", 0)] * 2
    assert main(["undo", "--suspects", "--list", *where]) == 0
    assert "a photo is left that is proved to show the same" in capsys.readouterr().out
    with Store(previous / "store") as store:
        exact, same_pixels = store.journal.entries(IN_QUARANTINE)
        assert (exact.proof, same_pixels.proof, same_pixels.tier) == (0, PROOF, SAME_PIXELS)
    sent: list[str] = []
    monkeypatch.setattr("send2trash.send2trash", sent.append)
    (previous / "photos" / "street.jpg").unlink()
    assert main(["purge", "--yes", *where]) == 1
    assert [os.path.basename(path) for path in sent] == ["harbour.jpg"]
    assert main(["undo", "--suspects", *where]) == 0
    assert (previous / "photos" / "street-rated.jpg").exists()


def test_an_embed_folder_is_continued(previous: Path) -> None:
    folder = previous / "vectors"
    opened = VectorFolder(folder, MODEL)
    keys = {
        name: FileVersion(path=f"/photos/{name}", size_bytes=size, mtime_ns=(1_600_000_000 + seconds) * 10**9).key
        for name, (size, seconds) in PHOTOS.items()
    }
    assert opened.finished_keys(with_failed=True) == set(keys.values())
    assert opened.finished_keys(with_failed=False) == set(keys.values()) - {keys["broken.jpg"]}

    file = FileVersion(path="/photos/garden.jpg", size_bytes=1, mtime_ns=2)
    opened.add(vector_row(file, np.zeros(MODEL.dimension, dtype=np.float32)))
    opened.flush()
    assert [path.name for path in opened.written] == ["part-00001.parquet"]
    loaded = load_vectors(folder)
    assert sorted(map(str, loaded.sources)) == sorted(f"/photos/{name}" for name in PHOTOS)
    assert [error.source for error in loaded.errors.values()] == ["/photos/broken.jpg"]
    vectors = dict(zip(loaded.sources, loaded.vectors, strict=True))
    assert not vectors["/photos/garden.jpg"].any()
    assert np.array_equal(vectors["/photos/harbour.jpg"], vectors["/photos/harbour (1).jpg"])
    assert np.linalg.norm(vectors["/photos/street.jpg"]) == pytest.approx(1)
