"""What runs the model if nothing is demanded: timed once, by one process, and named by the log and the client."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

from benchmarks.fixtures.server import QUIET, serving
from clip_client import ClientConfig, SyncClipClient
from clip_client.cli.main import main
from preprocess_ensemble.backends.onnxruntime.session import open_planned_session
from preprocess_ensemble.backends.onnxruntime.session_plan import plan_session
from preprocess_ensemble.model_repository.passport import Passport
from preprocess_ensemble.runtimes.choices import Choices
from preprocess_ensemble.runtimes.onnx_session import open_model
from preprocess_ensemble.runtimes.openvino_model import openvino_candidates
from preprocess_ensemble.runtimes.precision import PRECISION_VARIABLE
from preprocess_ensemble.runtimes.selection import Selection, select
from preprocess_ensemble.runtimes.timing import Timer

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def timed_here(repository: Path) -> Selection:
    """Time the runtimes in this process, and remember the choice whatever other work there is."""
    file = repository / "clip_encoder" / "1" / "model.onnx"
    passport = Passport.from_json(file.with_name("model.json").read_bytes())
    plan = plan_session({}, kind="CPU", device_id=0)
    return select(
        open_model(open_planned_session(file, plan), passport),
        passport,
        "auto",
        openvino_candidates(file, threads=plan.options.intra_op_num_threads),
        timer=Timer(waited=lambda: 0.0),
    )


def test_instances_of_a_server_the_client_and_doctor_take_over_what_one_process_has_timed(
    tiny_repository: Path,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(PRECISION_VARIABLE, "")
    chosen = timed_here(tiny_repository)
    assert "timed on" in chosen.reason
    (file,) = Choices().folder.glob("*.json")

    repository, log = tmp_path / "models", tmp_path / "log"
    shutil.copytree(tiny_repository, repository, symlinks=True)
    config = repository / "clip_encoder" / "config.pbtxt"
    text, changed = re.subn(r"(instance_group \{\s+count:) 1", r"\1 2", config.read_text())
    assert changed == 1
    config.write_text(text)
    photo = next(photos.glob("*.jpg"))
    with serving(repository, *QUIET, "--log-file", str(log)) as server, SyncClipClient(server.grpc_url) as clip:
        remote = clip.embed(photo).vectors
    for instance in range(2):
        assert f"clip_encoder_0_{instance}: runs on {chosen}" in log.read_text()

    url = f"local:{repository}"
    with SyncClipClient(config=ClientConfig(urls=(url,), local_precision="auto")) as clip:
        assert clip.model().runtime == str(chosen.model)
        assert float((clip.embed(photo).vectors * remote).sum()) >= 0.9999
    assert list(Choices().folder.glob("*.json")) == [file]

    assert main(["doctor", "--url", url, "--json"]) == 0
    found = {check["name"]: check["value"] for check in json.loads(capsys.readouterr().out)["findings"]}
    assert found["runs on"] == str(chosen.model)
    (speeds,) = re.findall(r"timed on [^;)]+", chosen.reason)
    assert speeds in found["precision auto"]
