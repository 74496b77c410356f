"""The store of photos that do not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.experiments.dedup import large_store

if TYPE_CHECKING:
    from pathlib import Path


def test_a_search_takes_everything_from_the_store(tmp_path: Path) -> None:
    large_store.fill(tmp_path, 400)
    found = large_store.search(tmp_path, 400, 400)
    assert (found["files"], found["searched"]) == (400, 400)
    assert found["groups"]
