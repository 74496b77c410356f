"""The work of ``clip-serve --model`` before the server starts; a script takes the place of ``clip-export``."""

import importlib.util
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fixtures.server import free_port
from clip_client.serving import first_export
from clip_client.serving.command import main
from clip_client.serving.config import ServeConfig
from clip_client.serving.first_export import Stopped, export_if_missing
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.config import version_directory
from tests.fixtures.commands import Run
from tests.fixtures.models.passports import PASSPORT

EXPORT = first_export._EXPORT
Script = Callable[[str], None]


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Replace the export by a script; without a script it fails."""

    def take(text: str) -> None:
        monkeypatch.setattr(first_export, "_EXPORT", (sys.executable, "-c", f"import json, sys, time\n{text}"))

    monkeypatch.setattr(first_export, "_EXPORT", ("/no/such/command",))
    return take


def _install(repository: Path, *, model: str, pretrained: str) -> None:
    directory = version_directory(repository)
    directory.mkdir(parents=True)
    passport = replace(PASSPORT, model=model, pretrained=pretrained)
    (directory / "model.json").write_text(passport.to_json(), encoding="ascii")
    (directory / "model.onnx").touch()


def export(repository: Path, model: str = "ViT-B-32", pretrained: str | None = None, **more: Any) -> None:
    export_if_missing(ServeConfig(repository=repository, model=model, pretrained=pretrained, **more))


def test_an_empty_repository_gets_the_model(tmp_path: Path, script: Script) -> None:
    seen = tmp_path / "arguments"
    script(
        "from preprocess_ensemble.export.command import _parser; seen = vars(_parser().parse_args())\n"
        f"json.dump([str(seen[name]) for name in ('repository', 'model', 'pretrained')], open({str(seen)!r}, 'w'))"
    )
    assert importlib.util.find_spec(EXPORT[-1]) is not None
    for tag in (None, "openai"):
        export(tmp_path / "models", "ViT-B-32", tag)
        assert json.loads(seen.read_text()) == [str(tmp_path / "models"), "ViT-B-32", str(tag)]


@pytest.mark.parametrize(
    ("installed", "asked"),
    [
        (("ViT-B-32", "openai"), ("ViT-B-32", None)),
        (("ViT-B-32", "openai"), ("ViT-B-32", "openai")),
        (("tiny", "random:0"), ("/models/tiny.json", "random")),
        (("ViT-B-32", "file:épreuve.pt"), ("ViT-B-32", "/data/épreuve.pt")),
    ],
)
def test_the_installed_model_is_served_without_an_export(
    tmp_path: Path, installed: tuple[str, str], asked: tuple[str, str | None]
) -> None:
    _install(tmp_path, model=installed[0], pretrained=installed[1])
    export(tmp_path, *asked)  # without a script, it would fail


@pytest.mark.parametrize("asked", [("ViT-L-14", None), ("ViT-B-32", "laion400m_e32"), ("ViT-L-14", "openai")])
def test_another_model_is_never_replaced(tmp_path: Path, asked: tuple[str, str | None]) -> None:
    _install(tmp_path, model="ViT-B-32", pretrained="openai")
    with pytest.raises(ReportedError, match=f"has ViT-B-32 with the weights openai, not {asked[0]}"):
        export(tmp_path, *asked)


def test_the_environment_names_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    _install(tmp_path, model="ViT-B-32", pretrained="laion2b_s34b_b79k")
    monkeypatch.setenv("CLIP_MODEL", "ViT-L-14")
    monkeypatch.setenv("CLIP_PRETRAINED", "openai")
    ports = [f"--{name}-port={free_port()}" for name in ("grpc", "metrics")]
    assert "not ViT-L-14 with the weights openai" in run(main, f"--repository={tmp_path}", *ports, code=1).err
    monkeypatch.setenv("CLIP_MODEL", str(tmp_path))
    assert "CLIP_REPOSITORY" in run(main, code=2).err


@pytest.mark.parametrize("log_json", [False, True])
def test_progress_and_failure_are_reported(
    log_json: bool, tmp_path: Path, script: Script, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    script("print('50 %', file=sys.stderr); sys.exit(2)")
    with pytest.raises(ReportedError, match="ViT-B-32 could not be exported"):
        export(tmp_path, log_json=log_json)
    assert (capfd.readouterr().err, caplog.messages) == (("", ["50 %"]) if log_json else ("50 %\n", []))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_export(tmp_path: Path, number: signal.Signals, script: Script) -> None:
    """Also as process 1 of a container, where a signal without a handler has no effect."""
    pid = tmp_path / "pid"
    os.mkfifo(pid)

    def stop() -> None:
        pid.read_text()  # returns when the export runs
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    thread = threading.Thread(target=stop)
    thread.start()
    script(f"open({str(pid)!r}, 'w').close(); time.sleep(60)")
    with pytest.raises(Stopped):
        export(tmp_path / "models")
    thread.join()
    assert signal.getsignal(number) is before
