"""Options of ``clip-client`` that name a server and secure the way there."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pytest

from clip_client.cli.main import main
from clip_client.cli.options.connection import add_model_options, add_server_options, client_config

if TYPE_CHECKING:
    from pathlib import Path

    from clip_client import ClientConfig

PEM = b"-----BEGIN CERTIFICATE-----\n"


def config_of(*options: str, otherwise: str | None = None) -> ClientConfig:
    parser = argparse.ArgumentParser()
    add_server_options(parser)
    return client_config(parser.parse_args(options), otherwise=otherwise)


def test_every_command_of_a_server_has_the_same_options(capsys: pytest.CaptureFixture[str]) -> None:
    models, servers = argparse.ArgumentParser(), argparse.ArgumentParser()
    add_model_options(models)
    add_server_options(servers)
    options, of_servers = ({action.dest for action in parser._actions} for parser in (models, servers))
    assert options - {"transfer"} == of_servers
    for command in ("embed", "similar", "dedup", "health", "profile", "doctor"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        said = capsys.readouterr().out
        assert said.index("--url") < said.index("TLS and token:") < said.index("--tls-ca") < said.index("--token-file")


def test_options_become_the_clients_settings(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n", encoding="ascii")
    (tmp_path / "file.pem").write_bytes(PEM)
    options = [f"--{name}={tmp_path / 'file.pem'}" for name in ("tls-ca", "tls-certificate", "tls-key")]
    options += [f"--token-file={tmp_path / 'token'}", "--tls-name=clip.example.org", "--model=siglip"]
    config = config_of("--url=grpcs://clip", *options)
    assert (config.ca_certificate, config.client_certificate, config.client_key) == (PEM, PEM, PEM)
    assert (config.server_name, config.token, config.model) == ("clip.example.org", "s3cret", "siglip")


def test_an_option_comes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(otherwise="auto:")
    assert (config.urls, config.token, config.model) == (("auto:",), None, "clip")
    monkeypatch.setenv("CLIP_URL", "localhost:1")
    monkeypatch.setenv("CLIP_TOKEN", "of the environment")
    config = config_of(otherwise="auto:")
    assert (config.urls, config.token) == (("localhost:1",), "of the environment")
    (tmp_path / "token").write_text("of the file", encoding="ascii")
    config = config_of("--url=localhost:2", f"--token-file={tmp_path / 'token'}", otherwise="auto:")
    assert (config.urls, config.token) == (("localhost:2",), "of the file")
