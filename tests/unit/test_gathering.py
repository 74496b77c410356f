"""What a search learns of its files, whichever thread is the quicker and whatever the store knows already."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from clip_client.dedup import find_duplicates, library
from clip_client.dedup.looks import look_at
from clip_client.dedup.raw import look_at_raw
from clip_client.dedup.scan import scan
from clip_client.dedup.store import Store
from tests.unit.albums import NoPictures, write
from tests.unit.raw_files import dng

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
    assert look_at(data) != look_at_raw(data)
    for name in ("1.dng", "2.tif"):
        write(tmp_path / name, data)
    quicker_is_done, read = threading.Event(), library._read

    def examine(self: library._Gathering, file: Any) -> Any:
        examined = _examine(self, file)
        if os.path.basename(file.path) == quicker:
            quicker_is_done.set()
        return examined

    def read_in_turn(path: str) -> Any:
        if os.path.basename(path) != quicker:
            assert quicker_is_done.wait(60)
        return read(path)

    _examine = library._Gathering._examine
    monkeypatch.setattr(library._Gathering, "_examine", examine)
    monkeypatch.setattr(library, "_read", read_in_turn)
    files = scan([tmp_path / "1.dng", tmp_path / "2.tif"]).files
    clip: Any = NoPictures()
    gathering = library._Gathering(clip, store.vectors("m", 4), store, len(files), lambda *progress: None)
    with ThreadPoolExecutor(2) as pool:
        outcomes = gathering._examine_all(pool, files)
    assert [outcome[2] for outcome in outcomes if isinstance(outcome, tuple)] == [look_at_raw(data), None]


async def test_a_report_does_not_tell_what_the_store_knew(tmp_path: Path, store: Store) -> None:
    files = [str(write(tmp_path / "album" / name, name.encode())) for name in ("1.nef", "2.nef", "3.nef")]
    clip: Any = NoPictures()
    assert (await find_duplicates(clip, files[1:], store=store)).bytes_only == tuple(files[1:])
    assert (await find_duplicates(clip, files, store=store)).bytes_only == tuple(files)
