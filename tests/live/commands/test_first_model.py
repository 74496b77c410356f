"""A machine without a model gets one with its first command, unless the user has named a repository."""

import io
import sys
from pathlib import Path

import pytest

from benchmarks.fixtures.server import free_port
from clip_client import ClientConfig, ModelNotReady
from clip_client.cli.errors import CommandFailed
from clip_client.cli.options import connection
from clip_client.cli.options.connection import connected, export_default_model
from preprocess_ensemble.model_repository.location import default_repository, user_repository

FAILS = (sys.executable, "-c", "raise SystemExit(1)")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def export(tiny_repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick replacement of clip-export that takes its last option."""
    program = f"import shutil, sys; shutil.copytree({str(tiny_repository)!r}, sys.argv[-1], dirs_exist_ok=True)"
    monkeypatch.setattr(connection, "_EXPORT", (sys.executable, "-c", program))


@pytest.mark.parametrize("url", ["local:", "auto:127.0.0.1:{port}"])
async def test_the_first_command_gets_the_model(
    url: str,
    export: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    photos: Path,
) -> None:
    config = ClientConfig(urls=(url.format(port=free_port()),))
    async with connected(config) as clip:
        (await clip.embed([photos / "rocket.jpg"])).raise_for_errors()
    said = capfd.readouterr().err
    assert "a download of 605 MB" in said
    uses = [record.getMessage() for record in caplog.records if "embedded in this process" in record.getMessage()]
    # Only the model that is there is named, not the one that is missing.
    assert [str(user_repository()) in use for use in uses] == [True] * url.startswith("auto:")
    assert str(user_repository()) in said
    assert default_repository() == user_repository()
    monkeypatch.setattr(connection, "_EXPORT", FAILS)
    async with connected(config) as clip:
        assert clip.is_local
    assert "605 MB" not in capfd.readouterr().err


async def test_a_model_that_cannot_be_had_ends_the_command_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_EXPORT", FAILS)
    with pytest.raises(ModelNotReady, match=r"clip-export --repository .*models"):
        async with connected(ClientConfig(urls=("local:",))):
            pass
    with pytest.raises(CommandFailed, match=r"no model is on this machine, .*clip-export"):
        async with connected(ClientConfig(urls=(f"auto:127.0.0.1:{free_port()}",))):
            pass


@pytest.mark.parametrize(("answer", "gets_it"), [("\n", True), ("y\n", True), ("n\n", False), ("", False)])
def test_a_terminal_is_asked_first(answer: str, gets_it: bool, export: None, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", terminal)
    assert export_default_model() is gets_it
    assert terminal.getvalue().endswith("Get it now? [Y/n] ")
    assert user_repository().exists() is gets_it


@pytest.mark.parametrize(
    ("url", "model", "variable"),
    [("local:{machine}", "clip", None), ("local:", "clip", "{machine}"), ("local:", "siglip", None)],
    ids=["a URL", "the environment", "another model"],
)
async def test_what_the_user_named_is_not_filled(
    url: str, model: str, variable: str | None, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "export_default_model", lambda: pytest.fail("a repository was filled"))
    if variable is not None:
        monkeypatch.setenv("CLIP_REPOSITORY", variable.format(machine=machine))
    with pytest.raises(ModelNotReady, match="There is no model"):
        async with connected(ClientConfig(urls=(url.format(machine=machine),), model=model)):
            pass
