"""Options of ``clip-client`` that name a server and secure the way there."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pytest

from clip_client.cli.errors import CommandMisused
from clip_client.cli.main import main
from clip_client.cli.options.connection import add_model_options, add_server_options, client_config

if TYPE_CHECKING:
    from pathlib import Path


def server_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_server_options(parser)
    return parser


def arguments_of(*options: str) -> argparse.Namespace:
    return server_parser().parse_args(options)


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    file = tmp_path / "file.pem"
    file.write_bytes(b"-----BEGIN CERTIFICATE-----\n")
    return file


def test_every_command_of_a_server_has_the_same_options(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    options = {action.dest for action in parser._actions} - {"transfer"}
    assert options == {action.dest for action in server_parser()._actions}
    for command in ("embed", "similar", "dedup", "health", "profile", "doctor"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert "--token-file" in capsys.readouterr().out


def test_files_become_the_clients_settings(pem: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n", encoding="ascii")
    options = [f"--{name}={pem}" for name in ("tls-ca", "tls-certificate", "tls-key")]
    secret = f"--token-file={tmp_path / 'token'}"
    config = client_config(arguments_of("--url=grpcs://clip", *options, "--tls-name=clip.example.org", secret))
    content = pem.read_bytes()
    assert (config.ca_certificate, config.client_certificate, config.client_key) == (content, content, content)
    assert (config.server_name, config.token) == ("clip.example.org", "s3cret")


def test_the_name_of_a_model_is_one_of_the_settings() -> None:
    assert (client_config(arguments_of()).model, client_config(arguments_of("--model=siglip")).model) == (
        "clip",
        "siglip",
    )
    with pytest.raises(CommandMisused, match="'a_b' is no name of a model"):
        client_config(arguments_of("--model=a_b"))


def test_the_token_of_the_environment_gives_way_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_config(arguments_of()).token is None
    monkeypatch.setenv("CLIP_TOKEN", "of the environment")
    assert client_config(arguments_of()).token == "of the environment"
    (tmp_path / "token").write_text("of the file", encoding="ascii")
    assert client_config(arguments_of(f"--token-file={tmp_path / 'token'}")).token == "of the file"


def test_the_environment_names_the_server_where_no_option_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_config(arguments_of(), otherwise="auto:").urls == ("auto:",)
    monkeypatch.setenv("CLIP_URL", "one:1")
    assert client_config(arguments_of(), otherwise="auto:").urls == ("one:1",)
    assert client_config(arguments_of("--url=two:2"), otherwise="auto:").urls == ("two:2",)
