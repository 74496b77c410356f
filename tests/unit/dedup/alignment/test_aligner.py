"""Aligning photos by their files and a store."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from clip_client.dedup.alignment.aligner import Aligner
from clip_client.dedup.store.store import Store
from tests.fixtures.images.scenes import scene

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_that_is_away_for_one_search_is_not_doubted_in_the_next(tmp_path: Path) -> None:
    kept, copy, away = (tmp_path / name for name in ("kept.png", "copy.jpg", "away"))
    scene(0, (1200, 900)).save(kept)
    scene(0, (1200, 900)).save(copy, quality=90)
    contents = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (kept, copy)]
    paths = dict(zip(contents, map(str, (kept, copy)), strict=True))
    with Store(tmp_path / "store") as store, Aligner(paths, store) as aligner:
        aligner.extract(contents, lambda done, total: None)
        copy.rename(away)
        (absent,) = aligner.align(contents[0], contents[1:])
        away.rename(copy)
        (present,) = aligner.align(contents[0], contents[1:])
    assert absent is not None
    assert absent.doubts == ("one of the two files could not be read again",)
    assert present is not None
    assert present.doubts == ()
