"""Signals, proxies, ports and incomplete repositories in ``clip-serve``; no server is started here."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.fixtures.server import free_port
from clip_client.serving import command, tensorrt
from clip_client.serving.command import main
from clip_client.serving.config import ServeConfig
from clip_client.serving.preflight import check_repository
from clip_client.serving.probed_triton import Probe, ProbeOutcome
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.tensorrt import default_cache
from tests.fixtures.commands import Run
from tests.fixtures.models.passports import PASSPORT, WITH_TEXT
from tests.unit.serving.authority import Authority


def serve(
    repository: Path, number: signal.Signals, *options: str, before: Callable[[], object] = lambda: None
) -> list[str]:
    """Run the command with a supervisor that sends this process the signal; return what is called on it."""
    called: list[str] = []

    async def run(on_ready: Callable[[Probe], None]) -> None:
        on_ready(Probe(outcome=ProbeOutcome.OK, model_id="m@1"))
        before()
        os.kill(os.getpid(), number)
        # Python tells the loop of a signal before the loop does anything else.
        await asyncio.sleep(0.05)

    methods = {name: partial(called.append, name) for name in ("stop", "reload")}
    supervisor = SimpleNamespace(run=run, report=lambda: (True, {}), **methods)
    ports = [f"--{name}-port={free_port()}" for name in ("grpc", "metrics")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "Supervisor", lambda *_: supervisor)
        assert main([f"--repository={repository}", *ports, *options]) == 0
    return called


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command extends these variables; each test has its own."""
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.setenv(name, "")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A directory that passes for a model repository."""
    (tmp_path / "clip_image").mkdir()
    (tmp_path / "clip_image" / "config.pbtxt").touch()
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_stop_the_server(number: signal.Signals, repository: Path) -> None:
    assert serve(repository, number) == ["stop"]


def test_a_log_of_json_also_says_when_it_is_ready(
    repository: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    health = free_port()
    ready = rf"^ready: grpc 0\.0\.0\.0:\d+, metrics 0\.0\.0\.0:\d+, health 0\.0\.0\.0:{health}, model m@1$"
    for options, printed in (((), 1), (("--log-json",), 0)):
        serve(repository, signal.SIGTERM, "--host=0.0.0.0", f"--health-port={health}", *options)
        said = capsys.readouterr().out, "\n".join(caplog.messages)
        assert [len(re.findall(ready, text, re.M)) for text in said] == [printed, 1 - printed]


def test_under_nohup_the_terminal_may_close(repository: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert serve(repository, signal.SIGHUP) == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_would_not_start_is_not_reloaded(
    repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = Authority(tmp_path, "right").issue("clip.example.org")
    options = (f"--tls-certificate={certificate}", f"--tls-key={key}")
    assert serve(repository, signal.SIGUSR1, *options) == ["reload"]
    assert serve(repository, signal.SIGUSR1, *options, before=key.unlink) == []
    assert re.search(r"reload rejected.*\(No such file", caplog.text)
    config = repository / "clip_encoder" / "config.pbtxt"
    assert serve(repository, signal.SIGUSR1, before=config.parent.mkdir) == []
    assert re.search("reload rejected.* no model.onnx", caplog.text)
    config.write_text(plan := 'default_model_filename: "model.plan" ')
    monkeypatch.setattr(tensorrt, "usable_gpus", lambda: 0)
    for_gpu = partial(config.write_text, plan + "instance_group { kind: KIND_GPU }")
    assert serve(repository, signal.SIGUSR1, before=for_gpu) == []
    assert "needs an NVIDIA GPU" in caplog.text


def test_a_model_with_random_weights_is_named(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    (version := repository / "clip_encoder" / "1").mkdir(parents=True)
    (version / "model.onnx").touch()
    for pretrained, warned in ((PASSPORT.pretrained, 0), ("random:0", 1)):
        (version / "model.json").write_text(replace(PASSPORT, pretrained=pretrained).to_json(), encoding="utf-8")
        serve(repository, signal.SIGTERM)
        assert caplog.text.count("the weights of ViT-B-32 are random: its similarities mean nothing") == warned


def test_calls_to_its_own_server_use_no_proxy(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's metrics are on 127.0.0.1, whatever --host is."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    serve(repository, signal.SIGTERM, "--host=127.0.0.2")
    assert urllib.request.proxy_bypass("127.0.0.1")
    assert urllib.request.proxy_bypass("127.0.0.2")
    assert not urllib.request.proxy_bypass("elsewhere.example")


def test_addresses_are_written_as_each_part_of_triton_reads_them_and_http_needs_a_port(tmp_path: Path) -> None:
    """gRPC takes brackets, and the library of HTTP a prefix; clip-serve hands the metrics on."""
    config = ServeConfig(repository=tmp_path, host="::", http_port=8000, http_host="::1")
    expected = ("--grpc-address=[::]", "--http-address=ipv6:::1", "--metrics-address=127.0.0.1")
    assert set(expected) <= set(config.arguments)
    assert config.grpc_url == "grpc://[::1]:8001"
    assert any(argument.startswith("--http-restricted-api=model-repository,") for argument in config.arguments)
    assert {"--grpc-address=10.0.0.5", "--allow-http=false"} < set(
        ServeConfig(repository=tmp_path, host="10.0.0.5").arguments
    )


@pytest.mark.parametrize(("host", "families"), [("0.0.0.0", ["0.0.0.0", "::"]), ("::", ["::", "0.0.0.0"])])
def test_a_wildcard_listens_on_both_families_for_everything(
    host: str, families: list[str], repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC does, whatever the wildcard."""
    metrics, health = free_port(), free_port()
    open_to: list[tuple[str, int]] = []

    def look() -> None:
        for address in ("127.0.0.1", "::1"):
            for port in (metrics, health):
                with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=10):
                    open_to.append((address, port))

    options = [f"--host={host}", f"--metrics-port={metrics}", f"--health-port={health}"]
    serve(repository, signal.SIGTERM, *options, before=look)
    assert {*open_to} == {(one, port) for one in ("127.0.0.1", "::1") for port in (metrics, health)}
    assert ServeConfig(repository=repository, host=host).families == families
    assert ServeConfig(repository=repository, host="127.0.0.1").families == ["127.0.0.1"]


def refused(run: Run, *options: str) -> str:
    """Run the command, which must end with exit code 1 before a server starts; return its sentence."""
    ports = [f"--{name}-port={free_port()}" for name in ("grpc", "metrics")]
    printed = run(main, *ports, *options, code=1)
    (sentence,) = printed.err.splitlines()
    assert printed.out == ""
    return sentence


@pytest.mark.parametrize("name", ["grpc", "http", "metrics", "health"])
def test_a_port_in_use_is_named(name: str, repository: Path, run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        sentence = refused(run, f"--{name}-port={port}", f"--repository={repository}")
    assert re.search(rf"Port {port} on 127.0.0.1 cannot be used .*--{name}-port", sentence)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host=203.0.113.5"], "203.0.113.5 is not an address of this machine: choose one with --host"),
        (["--http-host=203.0.113.5", "--http-port=8101"], "address of this machine: choose one with --http-host"),
        (["--host=a..b"], "a..b is not an address of this machine: choose one with --host"),
        (["--grpc-port=8100", "--health-port=8100"], "--grpc-port and --health-port are both 8100: choose two"),
        (["--log-file=/no/such/log"], "/no/such/log cannot be written (No such file or directory): name another with"),
    ],
)
def test_what_cannot_be_opened_is_named(options: list[str], words: str, repository: Path, run: Run) -> None:
    assert words in refused(run, f"--repository={repository}", *options)


def test_a_missing_repository_is_named_with_its_variable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIP_REPOSITORY", "/no/such")
    assert "no model repository /no/such, which CLIP_REPOSITORY names: name one with --repository" in refused(run)
    assert "no model repository /nor/this: name one with --repository" in refused(run, "--repository=/nor/this")


def test_a_user_without_a_home_gets_a_sentence_and_only_if_a_home_is_needed(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without a name
    monkeypatch.chdir(tmp_path)
    assert "no model repository /no/such" in refused(run, "--repository=/no/such")
    assert "This user has no home folder for a model repository: set HOME or CLIP_MODEL" in refused(run)
    with pytest.raises(ReportedError, match="no home folder: name one for engines with --tensorrt-cache"):
        default_cache()


def test_half_an_image_tower_is_named_before_the_start(repository: Path, run: Run) -> None:
    message = partial(refused, run, f"--repository={repository}")
    (repository / "clip_encoder").mkdir()
    export = f"run `clip-export --repository {repository}`"
    assert f"no model.onnx, because git holds no weights: {export}" in message()
    (repository / "clip_encoder" / "config.pbtxt").write_text('default_model_filename: "../mine.onnx"')
    (repository / "clip_preprocess").mkdir()
    assert f"no model.py: {export}" in message()
    (repository / "clip_image" / "config.pbtxt").unlink()
    assert "has no model clip_image" in message()


def test_half_a_text_tower_is_named_before_the_start(repository: Path, run: Run) -> None:
    def touch(name: str, text: str = "") -> None:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)

    message = partial(refused, run, f"--repository={repository}")
    touch("clip_encoder/1/model.onnx")
    touch("clip_encoder/1/model.json", WITH_TEXT.to_json())
    needed = [f"{name}/config.pbtxt" for name in ("clip_tokenize", "clip_text_encoder", "clip_text")]
    needed += [f"clip_tokenize/1/{name}" for name in ("model.py", "tokenizer.json")]
    for name in (*needed, "clip_text_encoder/1/model.onnx"):
        assert f"lacks {repository / name}: run `clip-export" in message()
        touch(name)
    check_repository(repository)
    touch("clip_encoder/1/model.json", PASSPORT.to_json())
    assert "has clip_tokenize, clip_text_encoder, clip_text, but the installed model has no text tower" in message()


def test_a_named_model_is_checked_by_its_name(tmp_path: Path) -> None:
    for name in ("encoder/1/model.json", "encoder/1/model.onnx", "image/config.pbtxt", "preprocess/1/model.py"):
        (tmp_path / f"other_{name}").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"other_{name}").touch()
    check_repository(tmp_path)
    for only, loaded in ((), ["*"]), (("other",), ["other_image"]):
        arguments = ServeConfig(repository=tmp_path, only=only).arguments
        assert [one.partition("=")[2] for one in arguments if one.startswith("--load-model")] == loaded
        assert "--id=clip-serve:other" in arguments
    with pytest.raises(ReportedError, match=r"no model named 'clip': name another with --only \(other\), or export it"):
        check_repository(tmp_path, ["clip"])
    (tmp_path / "other_preprocess" / "1" / "model.py").unlink()
    with pytest.raises(ReportedError, match=r"other_preprocess has no model\.py: run `clip-export .* --name other`"):
        check_repository(tmp_path)
