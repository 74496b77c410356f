from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from anyio.from_thread import start_blocking_portal

from clip_client.cli.main import main
from clip_client.testing import FakeTriton, Reply

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def fake() -> Iterator[FakeTriton]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(FakeTriton()) as server:
        yield server


def test_files_that_are_skipped_or_fail_are_reported(
    fake: FakeTriton, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.jpg", "notes.txt", "more.txt", "film.mov"):
        (tmp_path / name).write_bytes(name.encode())
    command = ["similar", str(tmp_path / "a.jpg"), "--in", str(tmp_path), "--url", fake.url]
    assert main(command) == 0
    assert "3 files skipped, not named like photos: 2 .txt, 1 .mov" in capsys.readouterr().err

    fake.script(Reply(), Reply(row_errors={0: (4, "The file ends early.")}))
    assert main([*command, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["skipped"] == {".txt": 2, ".mov": 1}
    assert report["failed"] == [
        {"path": str(tmp_path / "a.jpg"), "code": "TRUNCATED", "message": "The file ends early."}
    ]
