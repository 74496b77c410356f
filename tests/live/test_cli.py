"""``clip-client`` against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest

from clip_client import SyncClipClient
from clip_client.cli.main import main
from clip_client.dedup import scan

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.server import Server


@pytest.fixture
def album(photos: Path, tmp_path: Path) -> Path:
    """Three photos, a copy under a name that is not UTF-8, and a file that is no photo."""
    folder = tmp_path / "album"
    folder.mkdir()
    for name in ("coffee.jpg", "rocket.webp", "cell.jpg"):
        source = photos / name if (photos / name).exists() else next(photos.glob(f"{name.partition('.')[0]}.*"))
        shutil.copyfile(source, folder / source.name)
    shutil.copyfile(photos / "coffee.jpg", folder / os.fsdecode(b"caf\xe9.jpg"))
    (folder / "text.jpg").write_text("This is no image.")
    return folder


def test_dedup_writes_json_and_a_page(
    server: Server, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups, page = tmp_path / "groups.json", tmp_path / "report.html"
    arguments = ["--url", server.grpc_url, "--json", str(groups), "--report", str(page)]
    assert main(["dedup", str(album), *arguments]) == 0
    written = json.loads(groups.read_text("ascii"))
    assert written["model"].startswith("tiny_clip/random:0@")
    (group,) = written["groups"]
    assert {os.fsencode(os.path.basename(member["path"])) for member in group["members"]} == {
        b"coffee.jpg",
        b"caf\xe9.jpg",
    }
    assert (group["tier"], group["min_similarity"]) == ("exact", 1.0)
    assert [(os.path.basename(file["path"]), file["code"]) for file in written["failed"]] == [
        ("text.jpg", "NOT_AN_IMAGE")
    ]
    html = page.read_text("utf-8")
    assert html.count("<img") == 2
    assert "weights of this model are random" in html
    printed = capsys.readouterr().out
    assert "4 photos compared, 1 group, 1 copy" in printed
    assert str(page) in printed


def test_dedup_without_a_photo_fails_and_lists_why(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.jpg").write_text("This is no image.")
    assert main(["dedup", str(tmp_path), "--url", server.grpc_url]) == 1
    output = capsys.readouterr()
    assert "NOT_AN_IMAGE" in output.out
    assert "no photo to compare" in output.err


def test_a_threshold_of_zero_groups_everything(
    server: Server, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = tmp_path / "groups.json"
    arguments = ["--url", server.grpc_url, "--threshold", "0", "--json", str(groups)]
    assert main(["dedup", str(photos), *arguments]) == 0
    assert len(json.loads(groups.read_text())["groups"][0]["members"]) == 20


@pytest.mark.parametrize("suffix", ["parquet", "npz"])
def test_embed_writes_what_the_library_gives(
    server: Server, album: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / f"vectors.{suffix}"
    assert main(["embed", str(album), "--url", server.grpc_url, "--output", str(output)]) == 0
    said = capsys.readouterr()
    assert "4 vectors written" in said.out
    assert "NOT_AN_IMAGE" in said.err

    paths = scan([album]).photos
    with SyncClipClient(server.grpc_url) as clip:
        expected, vector_id = clip.embed(list(paths)), clip.vector_id
    if suffix == "npz":
        with np.load(output) as held:
            vectors, names = held["vectors"], held["path_bytes"].tolist()
            codes, written_id = held["error_codes"].tolist(), str(held["vector_id"])
    else:
        table = pq.read_table(output)
        empty = [np.nan] * expected.vectors.shape[1]
        vectors = np.array([row or empty for row in table.column("vector").to_pylist()], dtype=np.float32)
        names = table.column("path_bytes").to_pylist()
        codes = [code or "" for code in table.column("error_code").to_pylist()]
        written_id = table.schema.metadata[b"vector_id"].decode()
    assert names == [os.fsencode(path) for path in paths]
    np.testing.assert_allclose(vectors, expected.vectors, atol=1e-6)
    assert codes == [expected.errors[row].code if row in expected.errors else "" for row in range(len(paths))]
    assert written_id == vector_id


def test_health_of_a_whole_server(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--url", server.grpc_url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    assert "canary" in lines[-1]


def test_health_at_the_wrong_port_names_the_step(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = server.http_url.removeprefix("http://")
    assert main(["health", "--url", wrong]) == 1
    assert capsys.readouterr().out.startswith("failed  connect")


def test_interruption_in_the_middle_leaves_no_file_and_no_traceback(photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "vectors.npz"
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts a connection and never says a word
        command = [sys.executable, "-m", "clip_client.cli.main", "embed", str(photos), "--output", str(output)]
        environment = {**os.environ, "CLIP_URL": f"127.0.0.1:{silent.getsockname()[1]}"}
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "clip-client: interrupted\n"
    assert list(tmp_path.iterdir()) == []


def test_commands_work_where_a_loop_was_used_before(server: Server) -> None:
    asyncio.run(asyncio.sleep(0))
    assert main(["health", "--url", server.grpc_url]) == 0
