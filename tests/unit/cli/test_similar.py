from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st

from clip_client.cli.commands.similar import Nearest
from clip_client.cli.main import main
from clip_client.testing import FakeTriton, Reply

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def fake() -> Iterator[FakeTriton]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(FakeTriton()) as server:
        yield server


@given(
    cosines=st.lists(st.integers(-8, 8), min_size=1, max_size=40),
    chunk=st.integers(1, 7),
    count=st.integers(1, 10),
)
@settings(deadline=None, max_examples=100, derandomize=True)
def test_the_nearest_are_those_of_a_full_sort(cosines: list[int], chunk: int, count: int) -> None:
    vectors = np.array(cosines, dtype=np.float32)[:, None] / 8
    nearest = Nearest(np.ones(1, dtype=np.float32), count)
    paths = [f"/{number:02}" for number in range(len(cosines))]
    for start in range(0, len(cosines), chunk):
        nearest.add(paths[start : start + chunk], vectors[start : start + chunk])
    best = nearest.best
    assert [cosine for cosine, _path in best] == sorted(vectors[:, 0].tolist(), reverse=True)[:count]
    assert all(vectors[int(path[1:]), 0] == cosine for cosine, path in best)
    assert len({path for _cosine, path in best}) == len(best)
    assert nearest.compared == len(cosines)


def test_files_that_are_skipped_or_fail_are_reported(
    fake: FakeTriton, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.jpg", "notes.txt", "more.txt", "film.mov"):
        (tmp_path / name).write_bytes(name.encode())
    command = ["similar", str(tmp_path / "a.jpg"), "--in", str(tmp_path), "--url", fake.url]
    assert main(command) == 0
    assert "3 files skipped, not named like photos: 2 .txt, 1 .mov" in capsys.readouterr().out

    fake.script(Reply(), Reply(row_errors={0: (4, "The file ends early.")}))
    assert main([*command, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["skipped"] == {".txt": 2, ".mov": 1}
    assert report["failed"] == [
        {"path": str(tmp_path / "a.jpg"), "code": "TRUNCATED", "message": "The file ends early."}
    ]
