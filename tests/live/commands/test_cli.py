"""``clip-client`` against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks.fixtures.server import free_port
from clip_client.cli.main import main
from clip_client.dedup import Store
from clip_client.dedup.features.image_features import cached_features
from tests.fixtures.report_schema import check

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.fixtures.server import Server


def test_dedup_writes_json_and_a_page(
    server: Server, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups, page = tmp_path / "groups.json", tmp_path / "report.html"
    arguments = ["--url", server.grpc_url, "--json", str(groups), "--report", str(page)]
    assert main(["dedup", str(album), *arguments]) == 0
    written = json.loads(groups.read_text("ascii"))
    check(written)
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
    assert printed.out == f"exact\t{kept.stat().st_size}\t{copy}\t{kept}\tby default\n"
    assert "4 photos compared, 1 group" in printed.err
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


def test_similar_finds_the_same_in_photos_and_in_their_vectors(
    server: Server, photos: Path, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors, store = tmp_path / "vectors", ["--store", str(tmp_path / "store")]
    assert main(["embed", str(photos), "--url", server.grpc_url, "--output", str(vectors)]) == 0
    capsys.readouterr()
    photo = str(photos / "coffee.jpg")
    found = []
    for folder in (photos, vectors):
        command = ["similar", photo, "--in", str(folder), "--url", server.grpc_url, *store]
        assert main([*command, "--top", "5", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    in_photos, in_vectors = found
    assert in_photos["compared"] == in_vectors["compared"] == 20
    assert len(in_photos["photos"]) == 5
    paths = [[one["path"] for one in report["photos"]] for report in found]
    assert photo not in paths[0]
    assert paths[0] == paths[1]
    scores = [[one["score"] for one in report["photos"]] for report in found]
    assert scores[0] == sorted(scores[0], reverse=True)
    np.testing.assert_allclose(scores[0], scores[1], atol=2e-6)

    assert main(["similar", photo, "--in", str(album), "--url", server.grpc_url, *store]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("1.0000\t")
    assert "NOT_AN_IMAGE" in said.err
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
        assert not [*cached_features(store).scan(["sha256"])]


def test_similar_says_what_is_wrong_with_the_photo(
    server: Server, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--url", server.grpc_url, "--store", str(tmp_path / "store"), "--in"]
    for photo in (album / "text.jpg", album / "absent.jpg"):
        assert main(["similar", str(photo), *options, str(album)]) == 1
        assert f"{photo} cannot be searched for: " in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    command = ["similar", str(album / "coffee.jpg"), *options]
    assert main([*command, str(tmp_path / "empty")]) == 1
    assert "There is no photo that fits" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "absent")]) == 1
    assert "there is no file or folder" in capsys.readouterr().err


def test_doctor_tells_about_the_server(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", server.grpc_url, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = {finding["name"]: finding["value"] for finding in report["findings"]}
    assert report["ok"] is True
    assert found["Triton"] == "2.51.0 (clip-serve:clip)"
    assert "a classification of a text output ends the server; very large" in found["known holes"]
    assert found["provider"] == "onnxruntime, on CPU"
    assert found["precision"] == 'auto, by its configuration; its log says what the model "runs on"'
    assert found["decoder threads"] == "one for each core of the server"
    assert found["model"].startswith("tiny_clip/random:0@")
    assert re.fullmatch(r"-?\d+ -?\d+", found["fingerprint"])
    assert main(["doctor", "--url", server.grpc_url]) == 0
    assert "its weights are random" in capsys.readouterr().out
    assert main(["doctor", "--url", server.http_url.removeprefix("http://")]) == 1
    assert "! health" in capsys.readouterr().out


def test_without_a_server_doctor_checks_the_model_on_this_machine(
    tiny_repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("clip_client._endpoint.DEFAULT_URL", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("CLIP_MODEL", str(tiny_repository))
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json"]) == 0
    found = {finding["name"]: finding["value"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert found["address"] == f"local:{tiny_repository} (the default)"
    assert found["model"].startswith("tiny_clip/random:0@")
    assert found["model repository"] == f"{tiny_repository}, with a model"
    monkeypatch.setenv("CLIP_MODEL", str(tmp_path))
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert f"There is no model in {tmp_path}" in said
    assert "tritonserver running there" not in said


def test_health_of_a_whole_server_and_of_a_wrong_port(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(asyncio.sleep(0))  # a command works where a loop was used before
    wrong = ["--url", server.http_url.removeprefix("http://")]
    assert main(["health", "--quiet", "--timeout", "30", "--url", server.grpc_url]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["health", "--url", server.grpc_url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    assert "canary" in lines[-1]
    assert main(["health", *wrong]) == 1
    assert capsys.readouterr().out.startswith("failed  connect")
    assert main(["health", "--json", "--url", server.grpc_url]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert {step["error"] for step in report["steps"]} == {None}
    assert main(["health", "--json", *wrong]) == 1
    assert json.loads(capsys.readouterr().out)["steps"][0]["error"] == "Unavailable"


def test_embed_prints_json(server: Server, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "vectors.npz"
    assert main(["embed", str(album), "--output", str(output), "--json", "--url", server.grpc_url]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts == {"output": str(output), "written": 4, "failed": 1, "done_before": 0, "skipped": {}}
