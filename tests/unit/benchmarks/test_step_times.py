"""The counters around the steps of a search."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from benchmarks.experiments.dedup.step_times import StepTimes
from clip_client.dedup import Store, find_duplicates
from tests.fixtures.images.scenes import scene
from tests.fixtures.reviews import SmallPictures

if TYPE_CHECKING:
    from pathlib import Path


def test_the_steps_of_a_search_are_found_and_counted(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    picture = scene(0, (600, 450))
    picture.save(photos / "a.jpg")
    picture.resize((300, 225)).save(photos / "half.jpg")
    clip: Any = SmallPictures()
    times = StepTimes()
    with Store(tmp_path / "store") as store, times.counting():
        asyncio.run(find_duplicates(clip, [photos], store=store))
    assert {step for step, seconds in times.seconds.items() if seconds > 0} >= {"decode", "features", "align"}
