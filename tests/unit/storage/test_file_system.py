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


@pytest.mark.skipif(sys.platform != "linux", reason="Linux lists its mounts in a file")
@pytest.mark.parametrize(
    ("kind", "mode"), [("nfs4", "delete"), ("fuse.sshfs", "delete"), ("ext4", "wal"), ("new_in_2030", "wal")]
)
def test_a_write_ahead_log_is_used_on_local_and_unknown_file_systems_only(
    kind: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(tmp_path / "store") as store:  # a store that a person later moves there
        assert store.files.contents_below("/") == set()
    device = f"{os.major(tmp_path.stat().st_dev)}:{os.minor(tmp_path.stat().st_dev)}"
    mount = f"3 1 {device} / /mnt/a\\040b rw,relatime shared:1 - {kind} /mnt/a\\040b rw"
    (tmp_path / "mountinfo").write_text(f"2 1 0:99999 / / rw,relatime shared:1 - ext4 / rw\n{mount}")
    monkeypatch.setattr(file_system, "_MOUNTS", tmp_path / "mountinfo")
    assert network_file_system(tmp_path) == (kind if mode == "delete" else "")
    with Store(tmp_path / "store") as store:
        assert store.files.contents_below("/") == set()
    with closing(sqlite3.connect(tmp_path / "store" / "cache.sqlite")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)
    assert main(["rules", "list", "--store", str(tmp_path / "store")]) == 0
    assert (f"({kind}): use it on one computer at a time\n" in capsys.readouterr().err) == (mode == "delete")
    monkeypatch.setattr(file_system, "_MOUNTS", tmp_path / "none")
    assert network_file_system(tmp_path) == ""
