"""``clip-client`` against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import os
import pty
import re
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
from clip_client._vectors.file_version import FileVersion
from clip_client._vectors.vector_file import vector_row
from clip_client._vectors.vector_folder import VectorFolder
from clip_client.cli.main import main
from clip_client.dedup import Store, scan
from clip_client.dedup.features.image_features import cached_features
from tests.fixtures.models import model_info

if TYPE_CHECKING:
    from pathlib import Path

    from preprocess_ensemble.testing.server import Server

_MANY: Final = 1000


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
    printed = capsys.readouterr()
    copy, kept = (album / name for name in ("caf\\xe9.jpg", "coffee.jpg"))
    assert printed.out == f"exact\t{kept.stat().st_size}\t{copy}\t{kept}\n"
    assert "4 photos compared, 1 copy of" in printed.err
    assert str(page) in printed.err


def test_dedup_in_a_terminal_prints_groups_in_plain_words(server: Server, album: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "clip_client.cli.main", "dedup", str(album), "--url", server.grpc_url]
    environment = {**os.environ, "COLUMNS": "200", "TERM": "dumb"}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment):
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # Linux raises when the other side is closed
            while part := os.read(ours, 65536):
                said += part
        os.close(ours)
    lines = said.decode().splitlines()
    assert re.fullmatch(r"1\. .* in 1 copy: identical, byte for byte; kept: .*", lines[0])
    assert [line.split()[0] for line in lines[1:3]] == ["keep", "copy"]
    assert "--apply would move 1 photo" in lines[-1]


@pytest.mark.parametrize(("option", "first"), [("--json", "{"), ("--csv", "group,kept,tier,path,")])
def test_dedup_writes_nothing_else_to_standard_output(
    server: Server, album: Path, option: str, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dedup", str(album), "--url", server.grpc_url, option, "-", "--quiet"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(first)
    assert printed.err == ""
    if option == "--json":
        assert len(json.loads(printed.out)["groups"]) == 1
    else:
        assert len(list(csv.reader(printed.out.splitlines()))) == 3


def test_dedup_without_a_photo_fails_and_lists_why(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.jpg").write_text("This is no image.")
    assert main(["dedup", str(tmp_path), "--url", server.grpc_url]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "NOT_AN_IMAGE" in output.err
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
    assert last == "clip-client: interrupted"
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
    assert last == "clip-client: interrupted"
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
        assert "holds vectors of other|p|original, which must not be compared with those of tiny" in said
    assert len(files_in(tmp_path)) == 1


def test_similar_finds_the_same_in_photos_and_in_their_vectors(
    server: Server, photos: Path, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors = tmp_path / "vectors"
    assert main(["embed", str(photos), "--url", server.grpc_url, "--output", str(vectors)]) == 0
    capsys.readouterr()
    photo = str(photos / "coffee.jpg")
    found = []
    for folder in (photos, vectors):
        command = ["similar", photo, "--in", str(folder), "--url", server.grpc_url]
        assert main([*command, "--top", "5", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    in_photos, in_vectors = found
    assert in_photos["compared"] == in_vectors["compared"] == 20
    assert len(in_photos["similar"]) == 5
    assert photo not in [entry["path"] for entry in in_photos["similar"]]
    assert [entry["path"] for entry in in_photos["similar"]] == [entry["path"] for entry in in_vectors["similar"]]
    similarities = [entry["similarity"] for entry in in_photos["similar"]]
    assert similarities == sorted(similarities, reverse=True)
    np.testing.assert_allclose(similarities, [entry["similarity"] for entry in in_vectors["similar"]], atol=2e-6)

    assert main(["similar", photo, "--in", str(album), "--url", server.grpc_url]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("1.0000\t")
    assert said.out.count("\n") == 4
    assert "NOT_AN_IMAGE" in said.err
    assert "4 photos compared, 1 file not compared" in said.err
    assert "weights of this model are random" in said.err


def test_vectors_of_random_weights_are_not_acted_on_and_nothing_is_searched(
    server: Server, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["dedup", str(album), "--act-on", "similar", "--store", str(tmp_path), "--url", server.grpc_url]
    assert main(command) == 2
    captured = capsys.readouterr()
    assert "the weights of tiny_clip/random:0@" in captured.err
    assert captured.out == ""
    with Store(tmp_path) as store:
        assert cached_features(store).read().num_rows == 0


def test_similar_says_what_is_wrong_with_the_photo(
    server: Server, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for photo in (album / "text.jpg", album / "absent.jpg"):
        assert main(["similar", str(photo), "--in", str(album), "--url", server.grpc_url]) == 1
        assert f"{photo} cannot be compared: " in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    command = ["similar", str(album / "coffee.jpg"), "--url", server.grpc_url, "--in"]
    assert main([*command, str(tmp_path / "empty")]) == 1
    assert "no photo to compare with" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "absent")]) == 1
    assert "there is no folder" in capsys.readouterr().err


def test_doctor_tells_about_the_server(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", server.grpc_url, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = {finding["name"]: finding["value"] for finding in report["findings"]}
    assert report["ok"] is True
    assert found["Triton"] == "2.51.0 (triton)"
    assert found["provider"] == "onnxruntime, on CPU"
    assert found["precision"] == 'auto, by its configuration; its log says what the model "runs on"'
    assert found["decoder threads"] == "one for each core of the server"
    assert found["model"].startswith("tiny_clip/random:0@")
    assert re.fullmatch(r"-?\d+ -?\d+", found["fingerprint"])
    assert main(["doctor", "--url", server.grpc_url]) == 0
    assert "its weights are random" in capsys.readouterr().out


def test_doctor_at_the_wrong_port_names_the_step(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", server.http_url.removeprefix("http://")]) == 1
    assert "! health" in capsys.readouterr().out


def test_a_quiet_probe_of_a_whole_server_says_nothing(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--quiet", "--timeout", "30", "--url", server.grpc_url]) == 0
    assert capsys.readouterr() == ("", "")


def test_health_of_a_whole_server(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--url", server.grpc_url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    assert "canary" in lines[-1]


def test_health_and_embed_print_json(
    server: Server, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["health", "--json", "--url", server.grpc_url]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert {step["error"] for step in report["steps"]} == {None}
    assert main(["health", "--json", "--url", server.http_url.removeprefix("http://")]) == 1
    assert json.loads(capsys.readouterr().out)["steps"][0]["error"] == "Unavailable"
    output = tmp_path / "vectors.npz"
    assert main(["embed", str(album), "--output", str(output), "--json", "--url", server.grpc_url]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts == {"output": str(output), "written": 4, "failed": 1, "done_before": 0, "skipped": {}}


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


def test_embed_without_a_good_photo_fails(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jpg").write_text("no photo")
    assert main(["embed", str(tmp_path), "--url", server.grpc_url, "--output", str(tmp_path / "out.npz")]) == 1
    assert "none of the photos could be embedded" in capsys.readouterr().err
