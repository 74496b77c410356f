"""The type of the file system decides how SQLite keeps its journal."""

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

import clip_client._storage.file_system as file_system
from clip_client._storage.file_system import network_file_system
from clip_client.cli.main import main
from clip_client.dedup import Store


def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Let Linux say that the device of ``tmp_path`` has a file system of this type."""
    device = tmp_path.stat().st_dev
    lines = [
        f"{number} 1 {of} / {top} rw,relatime shared:1 - {what} {top} rw"
        for number, (of, top, what) in enumerate(
            [("0:99999", "/", "ext4"), (f"{os.major(device)}:{os.minor(device)}", "/mnt/a\\040b", kind)], start=2
        )
    ]
    tmp_path.joinpath("mountinfo").write_text("\n".join(lines))
    monkeypatch.setattr(file_system, "_MOUNTS", tmp_path / "mountinfo")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux lists its mounts in a file")
@pytest.mark.parametrize(("kind", "mode"), [("nfs4", "delete"), ("fuse.sshfs", "delete"), ("ext4", "wal")])
def test_a_write_ahead_log_is_used_on_local_file_systems_only(
    kind: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(tmp_path / "store") as store:  # a store that a person later moves there
        assert store.files.contents_below("/") == set()
    mounted(tmp_path, monkeypatch, kind)
    assert network_file_system(tmp_path) == (kind if mode == "delete" else "")
    with Store(tmp_path / "store") as store:
        assert store.files.contents_below("/") == set()
    with closing(sqlite3.connect(tmp_path / "store" / "cache.sqlite")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)
    assert main(["rules", "list", "--store", str(tmp_path / "store")]) == 0
    assert (f"({kind}): use it on one computer at a time\n" in capsys.readouterr().err) == (mode == "delete")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux lists its mounts in a file")
def test_an_unknown_file_system_counts_as_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(tmp_path, monkeypatch, "new_in_2030")
    assert network_file_system(tmp_path) == ""
    monkeypatch.setattr(file_system, "_MOUNTS", tmp_path / "none")
    assert network_file_system(tmp_path) == ""
