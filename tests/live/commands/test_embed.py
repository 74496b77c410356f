"""``clip-client embed`` against a real server."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from clip_client import SyncClipClient, load_vectors
from clip_client._vectors.vector_file import FileVersion, VectorFolder, vector_row
from clip_client.cli.main import main
from clip_client.dedup import scan
from tests.fixtures.models.model_info import model_info

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.fixtures.server import Server

_MANY: Final = 1000
INTERRUPTED: Final = "clip-client: interrupted; the work that is done is kept, and the same command continues it"


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
        vectors = np.array(table.column("vector").to_pylist(), dtype=np.float32)
        assert table.column("path").to_pylist() == [
            os.fsencode(path).decode("utf-8", "backslashreplace") for path in paths
        ]
        found = zip(table.column("size_bytes").to_pylist(), table.column("mtime_ns").to_pylist(), strict=True)
        assert [*found] == [(os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths]
        names = table.column("path_bytes").to_pylist()
        codes = [code or "" for code in table.column("error_code").to_pylist()]
        written_id = table.schema.metadata[b"vector_id"].decode()
    assert names == [os.fsencode(path) for path in paths]
    np.testing.assert_allclose(vectors, expected.vectors, atol=1e-6)
    assert codes == [expected.errors[row].code if row in expected.errors else "" for row in range(len(paths))]
    assert written_id == vector_id


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So many small photos that a run of the server over them can be stopped in the middle."""
    folder = tmp_path_factory.mktemp("many")
    noise = np.random.default_rng(0).integers(0, 256, (_MANY, 8, 8, 3), dtype=np.uint8)
    for number, pixels in enumerate(noise):
        Image.fromarray(pixels).resize((320, 240)).save(folder / f"{number:04}.jpg", quality=70)
    return folder


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def rows_in(folder: Path) -> Counter[bytes]:
    """How many rows each path has."""
    return Counter(path for shard in files_in(folder) for path in pq.read_table(shard)["path_bytes"].to_pylist())


@pytest.mark.parametrize("suffix", ["parquet", "npz"])
def test_a_single_file_that_sigterm_stops_keeps_what_was_answered(
    server: Server, many: Path, tmp_path: Path, suffix: str
) -> None:
    output = tmp_path / f"vectors.{suffix}"
    output.write_bytes(b"what was there before")
    command = [sys.executable, "-m", "clip_client", "embed", str(many), "--output", str(output)]
    damaged = many / "0040a.jpg"
    damaged.write_text("Its failure is printed when 41 rows are there.")
    try:
        process = subprocess.Popen([*command, "--url", server.grpc_url], stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        assert "NOT_AN_IMAGE" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        damaged.unlink()
    assert process.returncode == 143
    summary, last = said.splitlines()
    assert last == INTERRUPTED
    partial = tmp_path / f"vectors.partial.{suffix}"
    kept = load_vectors(partial)
    assert 41 < len(kept) < _MANY
    assert kept.sources == tuple(map(str, sorted([*many.iterdir(), damaged])[: len(kept)]))
    assert summary.startswith(f"{len(kept) - 1:,} vectors written to {partial}, 1 failed")
    assert summary.endswith(f"{_MANY + 1 - len(kept)} photos missing; {output} was not written")
    assert output.read_bytes() == b"what was there before"
    assert {path.name for path in tmp_path.iterdir()} == {output.name, partial.name}


def start_embedding(photos: Path, output: Path, server: Server) -> subprocess.Popen[str]:
    """Start a run of its own process, and return once its first two shards are there."""
    options = ["--url", server.grpc_url, "--output", str(output), "--shard-rows", "50"]
    command = [sys.executable, "-m", "clip_client.cli.main", "embed", str(photos), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while len(files_in(output)) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    return process


def test_a_killed_run_goes_on_where_it_was(
    server: Server, many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "vectors"
    process = start_embedding(many, output, server)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    before = {shard: shard.read_bytes() for shard in files_in(output)}
    assert 100 <= rows_in(output).total() < _MANY

    assert main(["embed", str(many), "--url", server.grpc_url, "--output", str(output)]) == 0
    assert f"{sum(pq.read_metadata(shard).num_rows for shard in before):,} done before" in capsys.readouterr().out
    assert rows_in(output) == Counter(os.fsencode(path) for path in scan([many]).photos)
    assert all(shard.read_bytes() == content for shard, content in before.items())
    assert {path.name for path in output.iterdir()} == {".lock", *(shard.name for shard in files_in(output))}


def test_an_interrupted_run_keeps_all_that_was_answered(server: Server, many: Path, tmp_path: Path) -> None:
    output = tmp_path / "vectors"
    process = start_embedding(many, output, server)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    summary, last = said.splitlines()
    assert last == INTERRUPTED
    assert summary.startswith(f"{rows_in(output).total()} vectors written to {output}")
    assert summary.endswith("run the same command to continue")
    assert max(rows_in(output).values()) == 1


def test_a_folder_is_added_to(server: Server, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "vectors"
    command = ["embed", str(album), "--url", server.grpc_url, "--output", str(output)]
    os.mkfifo(album / "pipe.jpg")
    assert main(command) == 0
    said = capsys.readouterr()
    assert "4 vectors written" in said.out
    assert "2 failed" in said.out
    assert said.err.count("NOT_AN_IMAGE") == said.err.count("UNREADABLE") == 1
    about = pq.read_schema(output / "part-00000.parquet").metadata
    assert about[b"model"].startswith(b"tiny_clip/random:0@")

    assert main(command) == 0
    assert "0 vectors written" in capsys.readouterr().out
    assert len(files_in(output)) == 1

    changed = next(album.glob("rocket.*"))
    shutil.copyfile(next(album.glob("cell.*")), changed)
    assert main(command) == 0
    assert "1 vector written" in capsys.readouterr().out
    assert rows_in(output)[os.fsencode(changed)] == 2

    assert main([*command, "--retry-failed"]) == 0
    assert "0 vectors written" in capsys.readouterr().out
    assert rows_in(output)[os.fsencode(album / "text.jpg")] == 2


def test_a_folder_of_another_model_is_refused(
    server: Server, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = VectorFolder(tmp_path, model_info(id="other"))
    other.add(vector_row(FileVersion(path="/a.jpg"), np.zeros(2, dtype=np.float32)))
    other.flush()
    for command in (["embed", str(album), "--output"], ["similar", str(album / "coffee.jpg"), "--in"]):
        assert main([*command, str(tmp_path), "--url", server.grpc_url]) == 1
        said = capsys.readouterr().err
        assert "vectors of other|p|original, which must not be compared with those of tiny" in said
    assert len(files_in(tmp_path)) == 1


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
    assert said == f"{INTERRUPTED}\n"
    assert list(tmp_path.iterdir()) == []


def test_embed_without_a_good_photo_fails(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jpg").write_text("no photo")
    assert main(["embed", str(tmp_path), "--url", server.grpc_url, "--output", str(tmp_path / "out.npz")]) == 1
    assert "none of the photos could be embedded" in capsys.readouterr().err
