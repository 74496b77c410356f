"""The features that a search collects, whichever thread is faster and whatever the store holds already."""

import hashlib
import itertools
import os
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Callable
from itertools import groupby, takewhile
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from clip_client._files import FailedFile
from clip_client._storage.parquet_store import ParquetStore
from clip_client.dedup import StoreError, find_duplicates
from clip_client.dedup.features import collect
from clip_client.dedup.features.image_features import FeatureTable, cached_features, extract_features
from clip_client.dedup.files.file_types import is_raw as is_raw_file
from clip_client.dedup.files.reading import read_file
from clip_client.dedup.files.scanner import scan
from clip_client.dedup.photo import ImageFeatures
from clip_client.dedup.store.store import Store
from clip_client.dedup.types import PhotoFile
from tests.fixtures.albums import NoPictures, write
from tests.fixtures.images import phone_files
from tests.fixtures.images.image_files import encoded, picture
from tests.fixtures.images.raw_files import dng


class OneVector(NoPictures):
    """A client whose server gives every image the same vector; ``at_answer`` may give an error in its place."""

    def __init__(self, *, reads_ahead: bool = False, at_answer: Callable[[], Any] = lambda: None) -> None:
        self._reads_ahead, self._at_answer = reads_ahead, at_answer

    async def embed_stream(self, images: AsyncIterator[Any], *, ordered: bool) -> AsyncIterator[Any]:
        answers, vector = itertools.count(), np.array([1, 0, 0, 0], dtype=np.float32)
        ahead = [image async for image in images] if self._reads_ahead else []
        for _image in ahead:
            yield SimpleNamespace(index=next(answers), error=self._at_answer(), vector=vector)
        async for _image in images:
            yield SimpleNamespace(index=next(answers), error=self._at_answer(), vector=vector)


CLIP: Any = OneVector()


@pytest.fixture
def album(tmp_path: Path) -> Path:
    for level in range(3):
        write(tmp_path / "album" / f"{level}.png", encoded(Image.new("L", (8, 8), 40 * level), "PNG"))
    return tmp_path / "album"


@pytest.mark.parametrize("quicker", ["1.dng", "2.tif"])
async def test_of_two_copies_the_first_decides_about_the_features(
    quicker: str, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A RAW file and a TIFF have equal bytes; only the RAW file has a preview."""
    data = dng(Image.radial_gradient("L").resize((320, 240)).convert("RGB"))
    assert extract_features(data)[0] != extract_features(data, is_raw=True)[0]
    for name in ("1.dng", "2.tif"):
        write(tmp_path / name, data)
    quicker_is_done = threading.Event()

    def read_quicker_first(path: str) -> tuple[PhotoFile, bytes] | FailedFile:
        if os.path.basename(path) != quicker:
            assert quicker_is_done.wait(60)
        return read_file(path)

    def extract(data: bytes, *options: Any, is_raw: bool) -> tuple[ImageFeatures, Any]:
        extracted = extract_features(data, *options, is_raw=is_raw)
        if is_raw == is_raw_file(quicker):
            quicker_is_done.set()
        return extracted

    monkeypatch.setattr(collect, "read_file", read_quicker_first)
    monkeypatch.setattr(collect, "extract_features", extract)
    files = scan([tmp_path / "1.dng", tmp_path / "2.tif"]).files
    collected = await collect.collect_features(CLIP, files, store, lambda *progress: None)
    (content,) = collected.copies
    assert collected.features[content] == extract_features(data, is_raw=True)[0]
    assert collected.stats.decoded == 1


async def test_a_photo_that_an_earlier_program_took_for_damaged_is_sent_again(album: Any, store: Store) -> None:
    model = await CLIP.model()
    earlier = store.vectors(model.vector_id, model.dimension)
    for path in album.iterdir():
        key = hashlib.sha256(path.read_bytes()).digest()
        earlier.add({"sha256": key, "vector": None, "code": "TRUNCATED", "message": "It ends early."})
    earlier.flush()
    for embedded in (3, 0):
        report = await find_duplicates(CLIP, album, store=store)
        assert (report.failed, report.work.embedded) == ((), embedded)


async def test_progress_counts_what_is_embedded_and_not_what_is_read_ahead(album: Any, store: Store) -> None:
    write(album / "0 copy.png", (album / "0.png").read_bytes())
    embedder: Any = OneVector(reads_ahead=True)

    async def done_while_embedding() -> list[int]:
        told: list[tuple[str, int, int | None]] = []
        await find_duplicates(embedder, album, store=store, on_progress=lambda *progress: told.append(progress))
        return [done for what, done, _ in told if what == "reading and embedding"]

    # 0: from here the rate counts; 1: the copy; then each answer, and the end.
    assert await done_while_embedding() == [0, 1, 2, 3, 4, 4]
    Image.new("L", (8, 8), 250).save(album / "new.png")
    assert await done_while_embedding() == [4, 5, 5]


async def test_progress_says_what_goes_on_and_each_kind_of_work_ends(album: Path, store: Store) -> None:

    async def kinds(embedder: Any) -> list[str]:
        told: list[tuple[str, int, int | None]] = []
        await find_duplicates(embedder, album, store=store, on_progress=lambda *progress: told.append(progress))
        collecting = takewhile(lambda progress: progress[0] != "comparing", told)
        by_kind = [(what, list(reports)) for what, reports in groupby(collecting, key=itemgetter(0))]
        # A bar that stands still before its end, while other work goes on, looks as if the search hung.
        assert all(done == total for _, reports in by_kind for _, done, total in reports[-1:])
        return [what for what, _ in by_kind]

    assert await kinds(None) == ["finding known photos", "reading"]
    assert await kinds(CLIP) == ["finding known photos", "embedding"]
    assert await kinds(CLIP) == ["finding known photos"]
    Image.new("L", (8, 8), 250).save(album / "new.png")
    assert await kinds(CLIP) == ["finding known photos", "reading and embedding"]


async def test_moved_files_are_read_and_not_decoded_again(tmp_path: Path, store: Store) -> None:
    album = tmp_path / "album"
    files = [str(write(album / name, name.encode())) for name in ("1.nef", "2.nef", "3.nef")]
    for some in (files[1:], files):  # the report does not tell what the store knew
        assert (await find_duplicates(CLIP, some, store=store)).bytes_only == tuple(some)
    moved = album.rename(tmp_path / "moved")
    write(moved / "1 copy.nef", b"1.nef")
    write(moved / "4.nef", b"4.nef")
    report = await find_duplicates(CLIP, moved, store=store)
    assert (report.work.files_read, report.work.decoded) == (5, 1)
    assert len(report.bytes_only) == 5
    assert [len(group.members) for group in report.groups] == [2]


async def test_features_of_another_version_are_made_again_with_one_read(album: Path, store: Store) -> None:
    await find_duplicates(CLIP, album, store=store)
    shutil.rmtree(store.directory / "looks")
    work = (await find_duplicates(CLIP, album, store=store)).work
    assert (work.files_read, work.decoded, work.embedded) == (3, 3, 0)


@pytest.mark.parametrize(
    ("name", "data", "package"),
    [("1.nef", b"no preview either", "rawpy"), ("1.heic", phone_files.heic(), "pillow_heif")],
)
async def test_a_moved_file_is_decoded_again_after_its_package_is_installed(
    name: str, data: bytes, package: str, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    file = write(tmp_path / name, data)

    async def decoded() -> int:
        return (await find_duplicates(CLIP, file, store=store)).work.decoded

    with monkeypatch.context() as without:
        without.setitem(sys.modules, package, None)  # as if it were not installed
        assert [await decoded(), await decoded()] == [1, 0]
    file = file.rename(tmp_path / f"moved {name}")
    assert [await decoded(), await decoded()] == [1, 0]


async def test_of_a_large_store_only_the_rows_of_the_searched_files_are_read(tmp_path: Path) -> None:
    rows_read: list[int] = []

    class CountingParquetStore(ParquetStore):
        def find(self, keys: Any, columns: Any = None) -> Any:
            for positions, table in super().find(keys, columns):
                rows_read.append(len(table))
                yield positions, table

    class CountingStore(Store):
        def table(self, folder: Path, columns: Any, about: Any) -> ParquetStore:
            table = super().table(folder, columns, about)
            return CountingParquetStore(self.directory / folder, table.schema)

    files = [write(tmp_path / "album" / f"{number:04d}.nef", b"%d" % number) for number in range(600)]
    with CountingStore(tmp_path / "store") as store:
        await find_duplicates(CLIP, files[:300], store=store)
        await find_duplicates(CLIP, files[300:], store=store)
        rows_read.clear()
        report = await find_duplicates(CLIP, [*files[10:14], write(tmp_path / "new.nef", b"new")], store=store)
    assert (report.compared, report.work.files_read) == (5, 1)
    assert rows_read == [4, 4, 1]  # what is known, and then the features of all five, from two files


async def test_damaged_features_are_made_again(album: Path, store: Store) -> None:
    await find_duplicates(CLIP, album, store=store)
    (file,) = cached_features(store).folder.iterdir()
    with pq.ParquetFile(file) as parquet:
        columns = parquet.metadata.row_group(0)
        camera = next(one for one in map(columns.column, range(columns.num_columns)) if one.path_in_schema == "camera")
    data = bytearray(file.read_bytes())
    data[camera.data_page_offset : camera.data_page_offset + 20] = bytes(20)
    file.write_bytes(data)
    for decoded in (3, 0):
        work = (await find_duplicates(CLIP, album, store=store)).work
        assert (work.decoded, work.embedded) == (decoded, 0)


def test_features_that_cannot_be_read_any_more_are_one_sentence(store: Store) -> None:
    with pytest.raises(StoreError, match=r"looks.* is damaged; remove this folder, and search again"):
        FeatureTable.read(cached_features(store), ["00" * 32])


async def test_a_file_that_no_server_takes_is_hashed_in_pieces(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("1.jpg", "2.nef"):
        os.truncate(write(tmp_path / "album" / name, name.encode()), 2**26 + 1)
    monkeypatch.setattr(collect, "read_file", None)
    report = await find_duplicates(CLIP, tmp_path / "album", store=store)
    (failed,) = report.failed
    assert (os.path.basename(failed.path), failed.code) == ("1.jpg", "TOO_LARGE")
    assert failed.message == "The file has 67,108,865 bytes; the limit is 67,108,864: save it smaller."
    assert report.bytes_only == (str(tmp_path / "album" / "2.nef"),)


async def test_a_file_that_changes_while_it_is_embedded_has_no_vector(tmp_path: Path, store: Store) -> None:
    path = write(tmp_path / "1.png", encoded(picture(), "PNG"))
    embedder: Any = OneVector(at_answer=lambda: os.utime(path, ns=(1, 1)))
    collected = await collect.collect_features(embedder, scan(path).files, store, lambda *progress: None)
    assert [(one.path, one.message) for one in collected.failed] == [(str(path), "It was changed while it was read.")]
    assert collected.copies == {}


async def test_what_cannot_be_decoded_is_never_sent(album: Path) -> None:
    for number in range(5):
        write(album / f"{number}.jpg", b"\xff\xd8\xff damaged %d" % number)
    sent: list[None] = []
    embedder: Any = OneVector(at_answer=lambda: sent.append(None))
    report = await find_duplicates(embedder, album)
    assert (len(sent), len(report.failed)) == (3, 5)


async def test_a_file_that_goes_away_leaves_its_copies(tmp_path: Path, store: Store) -> None:
    for name in ("1", "2", "2 copy"):
        write(tmp_path / f"{name}.png", encoded(picture(seed=int(name[0])), "PNG"))
    gone = SimpleNamespace(code="UNREADABLE", message="Gone.")
    embedder: Any = OneVector(reads_ahead=True, at_answer=lambda: gone)
    collected = await collect.collect_features(embedder, scan(tmp_path).files, store, lambda *progress: None)
    ((content, (copy,)),) = collected.copies.items()
    assert os.path.basename(copy.path) == "2.png"
    assert sorted(os.path.basename(failure.path) for failure in collected.failed) == ["1.png", "2 copy.png"]
    assert np.isnan(collected.vectors_of([content])).all()


async def test_the_pictures_of_raw_files_are_not_kept(tmp_path: Path, store: Store) -> None:
    made = Image.radial_gradient("L").resize((320, 240)).convert("RGB")
    write(tmp_path / "1.dng", dng(made))
    made.save(tmp_path / "2.png")
    kept: list[str] = []
    files = scan(tmp_path, raw=True).files
    collected = await collect.collect_features(
        CLIP, files, store, lambda *progress: None, keep_picture=lambda sha256, decoded: kept.append(sha256)
    )
    assert [file.path for sha256 in kept for file in collected.copies[sha256]] == [str(tmp_path / "2.png")]
