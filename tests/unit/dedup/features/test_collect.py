"""What a search learns of its files, whichever thread is the quicker and whatever the store knows already."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from clip_client.dedup import find_duplicates
from clip_client.dedup.features import collect, raw_preview
from clip_client.dedup.features.image_features import extract_features
from clip_client.dedup.features.raw_preview import extract_raw_features
from clip_client.dedup.files.scanner import scan
from clip_client.dedup.store.parquet_store import ParquetStore
from clip_client.dedup.store.store import Store
from tests.fixtures.albums import NoPictures, write
from tests.fixtures.raw_files import dng

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store") as opened:
        yield opened


@pytest.mark.parametrize("quicker", ["1.dng", "2.tif"])
def test_of_two_copies_the_first_decides_what_is_seen(
    quicker: str, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes under the names of a RAW file and of a TIFF: as the first it has a preview."""
    data = dng(Image.radial_gradient("L").resize((320, 240)).convert("RGB"))
    assert extract_features(data) != extract_raw_features(data)
    for name in ("1.dng", "2.tif"):
        write(tmp_path / name, data)
    quicker_is_done, read = threading.Event(), collect._read

    def examine(self: collect.FeatureCollector, file: Any) -> Any:
        examined = _examine(self, file)
        if os.path.basename(file.path) == quicker:
            quicker_is_done.set()
        return examined

    def read_in_turn(path: str) -> Any:
        if os.path.basename(path) != quicker:
            assert quicker_is_done.wait(60)
        return read(path)

    _examine = collect.FeatureCollector._examine
    monkeypatch.setattr(collect.FeatureCollector, "_examine", examine)
    monkeypatch.setattr(collect, "_read", read_in_turn)
    files = scan([tmp_path / "1.dng", tmp_path / "2.tif"]).files
    clip: Any = NoPictures()
    gathering = collect.FeatureCollector(clip, store.vectors("m", 4), store, len(files), lambda *progress: None)
    with ThreadPoolExecutor(2) as pool:
        outcomes = gathering._examine_all(pool, files)
    assert [outcome[2] for outcome in outcomes if isinstance(outcome, tuple)] == [extract_raw_features(data), None]


async def test_a_report_does_not_tell_what_the_store_knew(tmp_path: Path, store: Store) -> None:
    files = [str(write(tmp_path / "album" / name, name.encode())) for name in ("1.nef", "2.nef", "3.nef")]
    clip: Any = NoPictures()
    assert (await find_duplicates(clip, files[1:], store=store)).bytes_only == tuple(files[1:])
    assert (await find_duplicates(clip, files, store=store)).bytes_only == tuple(files)


async def test_moved_files_are_read_and_not_looked_at_again(tmp_path: Path, store: Store) -> None:
    clip: Any = NoPictures()
    album = tmp_path / "album"
    for name in ("1.nef", "2.nef", "3.nef"):
        write(album / name, name.encode())
    await find_duplicates(clip, album, store=store)
    moved = album.rename(tmp_path / "moved")
    write(moved / "1 copy.nef", b"1.nef")
    write(moved / "4.nef", b"4.nef")
    report = await find_duplicates(clip, moved, store=store)
    assert (report.work.files_read, report.work.decoded) == (5, 1)
    assert len(report.bytes_only) == 5
    assert [len(group.members) for group in report.groups] == [2]


async def test_a_moved_raw_file_is_looked_at_again_once_rawpy_has_come(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip: Any = NoPictures()
    with monkeypatch.context() as without:
        for module in (raw_preview, collect):
            without.setattr(module, "can_read_raw", lambda: False)
        first = write(tmp_path / "1.nef", b"no preview either")
        await find_duplicates(clip, first, store=store)
    monkeypatch.setattr(collect, "can_read_raw", lambda: True)
    report = await find_duplicates(clip, first.rename(tmp_path / "2.nef"), store=store)
    assert report.work.decoded == 1
    report = await find_duplicates(clip, tmp_path / "2.nef", store=store)
    assert report.work.files_read == 0


async def test_of_a_large_store_only_the_rows_of_the_searched_files_are_read(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip: Any = NoPictures()
    files = [write(tmp_path / "album" / f"{number:04d}.nef", b"%d" % number) for number in range(600)]
    await find_duplicates(clip, files[:300], store=store)
    await find_duplicates(clip, files[300:], store=store)
    rows_read: list[int] = []
    rows_in = ParquetStore._rows_in

    def counted(self: ParquetStore, file: Any, rows: Any, positions: Any) -> Any:
        rows_read.append(len(rows))
        return rows_in(self, file, rows, positions)

    monkeypatch.setattr(ParquetStore, "_rows_in", counted)
    report = await find_duplicates(clip, [*files[10:14], write(tmp_path / "new.nef", b"new")], store=store)
    assert (report.compared, report.work.files_read) == (5, 1)
    assert rows_read == [4]
