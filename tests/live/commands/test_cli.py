"""``clip-client`` against a real server, or with a real model in its own process."""

import asyncio
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fixtures.server import Server, free_port
from clip_client.cli.main import main
from tests.fixtures.commands import Run
from tests.fixtures.report_schema import validator


def test_dedup_writes_json_and_a_page(server: Server, album: Path, tmp_path: Path, run: Run) -> None:
    groups, page = tmp_path / "groups.json", tmp_path / "report.html"
    printed = run(main, "dedup", album, "--url", server.grpc_url, "--json", groups, "--report", page)
    written = json.loads(groups.read_text("ascii"))
    validator().validate(written)
    assert written["model"].startswith("tiny_clip/random:0@")
    (group,) = written["groups"]
    names = {os.fsencode(os.path.basename(member["path"])) for member in group["members"]}
    assert (names, group["tier"], group["min_similarity"]) == ({b"coffee.jpg", b"caf\xe9.jpg"}, "exact", 1.0)
    (failed,) = written["failed"]
    assert (os.path.basename(failed["path"]), failed["code"]) == ("text.jpg", "NOT_AN_IMAGE")
    html = page.read_text("utf-8")
    assert html.count("<img") == 2
    assert "weights of this model are random" in html
    copy, kept = (album / name for name in ("caf\\xe9.jpg", "coffee.jpg"))
    assert printed.out == f"exact\t{kept.stat().st_size}\t{copy}\t{kept}\tby default\n"
    assert "4 photos compared, 1 group" in printed.err
    assert str(page) in printed.err


def test_similar_finds_the_same_in_photos_and_in_what_embed_wrote(
    server: Server, photos: Path, tmp_path: Path, run: Run
) -> None:
    vectors, options = tmp_path / "vectors", ["--store", tmp_path / "store", "--top", 5, "--json", "-"]
    run(main, "embed", photos, "--url", server.grpc_url, "--output", vectors)
    photo, found = str(photos / "coffee.jpg"), []
    for place in (photos, vectors):
        said = run(main, "similar", photo, "--in", place, "--url", server.grpc_url, *options)
        found.append(json.loads(said.out))
    assert [report["compared"] for report in found] == [20, 20]
    paths, others = ([one["path"] for one in report["photos"]] for report in found)
    assert (len(paths), photo in paths, paths == others) == (5, False, True)
    scores = [[one["score"] for one in report["photos"]] for report in found]
    assert scores[0] == sorted(scores[0], reverse=True)
    np.testing.assert_allclose(scores[0], scores[1], atol=2e-6)


def test_doctor_tells_about_the_server(server: Server, run: Run) -> None:
    report = json.loads(run(main, "doctor", "--url", server.grpc_url, "--json", "-").out)
    found = {finding["name"]: finding["value"] for finding in report["findings"]}
    assert report["ok"] is True
    assert found["Triton"] == "2.51.0 (clip-serve:clip)"
    assert "a classification of a text output ends the server; very large" in found["known holes"]
    assert found["provider"] == "onnxruntime, on CPU"
    assert found["precision"].startswith("auto, by default; --precision of clip-serve")
    assert found["decoder threads"] == "one for each core of the server"
    assert found["model"].startswith("tiny_clip/random:0@")
    assert re.fullmatch(r"-?\d+ -?\d+", found["fingerprint"])
    assert "its weights are random" in run(main, "doctor", "--url", server.grpc_url).out
    assert "! health" in run(main, "doctor", "--url", server.http_url.removeprefix("http://"), code=1).out


def test_without_a_server_doctor_checks_the_model_on_this_machine(
    tiny_repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr("clip_client._endpoint.DEFAULT_URL", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("CLIP_REPOSITORY", str(tiny_repository))
    monkeypatch.chdir(tmp_path)
    findings = json.loads(run(main, "doctor", "--json", "-").out)["findings"]
    found = {finding["name"]: finding["value"] for finding in findings}
    assert found["address"] == f"local:{tiny_repository} (the default)"
    assert found["model"].startswith("tiny_clip/random:0@")
    assert found["model repository"] == f"{tiny_repository}, with a model"
    monkeypatch.setenv("CLIP_REPOSITORY", str(tmp_path))
    said = run(main, "doctor", "--json", "-", code=1).out
    assert f"There is no model in {tmp_path}" in said
    assert "tritonserver running there" not in said


def test_health_of_a_whole_server_and_of_a_wrong_port(server: Server, run: Run) -> None:
    asyncio.run(asyncio.sleep(0))  # a command works where a loop was used before
    assert run(main, "health", "--quiet", "--timeout", 30, "--url", server.grpc_url) == ("", "")
    lines = run(main, "health", "--url", server.grpc_url).out.splitlines()
    assert (all(line.startswith("ok ") for line in lines), "canary" in lines[-1]) == (True, True)
    for url, step, error in ((server.grpc_url, -1, None), (server.http_url.removeprefix("http://"), 0, "Unavailable")):
        report = json.loads(run(main, "health", "--json", "-", "--url", url, code=error is not None).out)
        assert (report["ok"], report["steps"][step]["error"]) == (error is None, error)
