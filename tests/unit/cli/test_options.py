"""Options that commands share, which files a command takes, and saved settings that count no longer."""

import argparse
import io
import json
import os
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from clip_client import ClientConfig
from clip_client.cli.errors import CommandFailed, CommandMisused
from clip_client.cli.main import main
from clip_client.cli.options.connection import add_server_options, client_config
from clip_client.cli.options.paths import WalkOptions, add_walk_options, read_walk_options
from clip_client.dedup import Store
from preprocess_ensemble.command_line import user_path
from tests.fixtures.albums import write
from tests.fixtures.commands import Run
from tests.unit.serving.authority import Authority

PEM = b"-----BEGIN CERTIFICATE-----\n"
TLS = ("--tls-ca", "--tls-certificate", "--tls-key")


def config_of(*options: str) -> ClientConfig:
    parser = argparse.ArgumentParser()
    add_server_options(parser, may_be_local=True)
    return client_config(parser.parse_args(options))


def read(*words: str) -> WalkOptions:
    parser = argparse.ArgumentParser()
    add_walk_options(parser)
    return read_walk_options(parser.parse_args(words))


@pytest.mark.parametrize("command", ["embed", "similar", "dedup", "health", "doctor"])
def test_every_command_of_a_server_has_the_same_options(command: str, run: Run) -> None:
    said = run(main, command, "--help").out
    assert said.index("--url") < said.index("TLS and token:") < said.index("--tls-ca") < said.index("--token-file")
    assert "local:DIR" in said


def test_options_become_the_clients_settings(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "right")
    files = authority.file, *authority.issue("me@example.org")
    options = [f"--token-file={write(tmp_path / 'token', b's3cret')}", "--tls-name=a.org", "--model=siglip"]
    config = config_of("--url=grpcs://clip", *map("{}={}".format, TLS, files), *options)
    held = tuple(file.read_bytes() for file in files)
    assert (config.ca_certificate, config.client_certificate, config.client_key) == held
    assert (config.server_name, config.token, config.model) == ("a.org", "s3cret", "siglip")


@pytest.mark.parametrize("content", [b"junk", b"", b"-----BEGIN CERTIFICATE-----\njunk"], ids=["text", "empty", "PEM"])
@pytest.mark.parametrize("wrong", range(3), ids=TLS)
def test_a_file_without_a_certificate_is_refused_by_name(wrong: int, content: bytes, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "right")
    files = [authority.file, *authority.issue("me@example.org")]
    files[wrong] = write(tmp_path / "client_key.pem", content)
    with pytest.raises(CommandMisused, match=rf"/client_key\.pem (and|is|are) .*PEM certificate.*: see .*{TLS[wrong]}"):
        config_of("--url=grpcs://clip", *map("{}={}".format, TLS, files))


def test_a_key_for_another_certificate_is_refused(tmp_path: Path) -> None:
    mine, other = (Authority(tmp_path, "right").issue(f"{name}@example.org") for name in ("me", "you"))
    with pytest.raises(CommandMisused, match="do not match: see --tls-certificate and --tls-key"):
        config_of("--url=grpcs://clip", f"--tls-certificate={mine.certificate}", f"--tls-key={other.key}")


def test_whether_a_key_is_long_enough_is_for_the_server_to_say(tmp_path: Path) -> None:
    key, name, now = rsa.generate_private_key(65537, 1024), x509.Name([]), datetime.now(UTC)
    built = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    certificate = write(tmp_path / "me.pem", built.sign(key, SHA256()).public_bytes(Encoding.PEM))
    own = write(tmp_path / "me.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    config = config_of("--url=grpcs://clip", f"--tls-certificate={certificate}", f"--tls-key={own}")
    assert config.client_certificate == certificate.read_bytes()


def test_a_certificate_may_come_through_a_pipe() -> None:
    reader, writer = os.pipe()
    os.write(writer, PEM)
    os.close(writer)
    try:
        assert config_of("--url=grpcs://clip", f"--tls-ca=/dev/fd/{reader}").ca_certificate == PEM
    finally:
        os.close(reader)


def test_an_option_comes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of()
    assert (config.urls, config.token, config.model) == (("auto:",), None, "clip")
    monkeypatch.setenv("CLIP_URL", "localhost:1")
    monkeypatch.setenv("CLIP_TOKEN", "of the environment")
    config = config_of()
    assert (config.urls, config.token) == (("localhost:1",), "of the environment")
    config = config_of("--url=localhost:2", f"--token-file={write(tmp_path / 'token', b'of the file')}")
    assert (config.urls, config.token) == (("localhost:2",), "of the file")


@pytest.mark.parametrize(
    ("content", "options", "paths"),
    [
        (b"/a b.jpg\r\n\n/caf\xe9.jpg\n", [], ["/a b.jpg", os.fsdecode(b"/caf\xe9.jpg")]),
        (b"/Icon\r.jpg\n/b.jpg\r\n", [], ["/Icon\r.jpg", "/b.jpg"]),
        (b"/line\nbreak.jpg\0/b.jpg\0", ["--null"], ["/line\nbreak.jpg", "/b.jpg"]),
        ("\ufeff/caf\xe9.jpg\r\n/b.jpg\r\n".encode(), [], ["/caf\xe9.jpg", "/b.jpg"]),
        ("\ufeff/caf\xe9.jpg\r\n/\u010a.jpg\r\n".encode("utf-16-le"), [], ["/caf\xe9.jpg", "/\u010a.jpg"]),
        ("\ufeff/caf\xe9.jpg\n/b.jpg".encode("utf-16-be"), [], ["/caf\xe9.jpg", "/b.jpg"]),
        ("\ufeff/line\nbreak.jpg\0/b.jpg\0".encode("utf-16-le"), ["--null"], ["/line\nbreak.jpg", "/b.jpg"]),
    ],
)
def test_a_list_holds_a_path_in_a_line_or_before_a_null(
    content: bytes, options: list[str], paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "list", content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    for source in (str(file), "-"):
        assert list(read(str(tmp_path), "--files-from", source, *options).paths) == [str(tmp_path), *paths]


def test_a_list_that_is_half_utf_16_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "list", "\ufeff/a.jpg".encode("utf-16-le") + b"\n")
    with pytest.raises(CommandFailed, match="begins like UTF-16 but is not UTF-16; save it as UTF-8"):
        read("--files-from", str(file))


def test_patterns_and_a_tilde_are_resolved_where_no_shell_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = tuple(str(write(tmp_path / "trip" / name, b"x")) for name in ("1.jpg", "deep/2.jpg"))
    odd = str(write(tmp_path / "[odd].jpg", b"x"))
    assert read(str(tmp_path / "trip" / "**" / "*.jpg")).paths == photos
    assert read(odd).paths == (odd,)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read("~/trip/1.jpg", "~/trip/*.jpg").paths == (photos[0], photos[0])
    assert user_path("~/store") == tmp_path / "store"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~").mkdir()
    assert read("~").paths == ("~",), "a name that exists counts"


def test_one_file_system_stays_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = write(tmp_path / "a" / "1.jpg", b"x"), write(tmp_path / "mounted" / "deep" / "2.jpg", b"y")
    look = os.stat

    def mounted(path: str | os.PathLike[str]) -> os.stat_result:
        status = look(path)
        device = status.st_dev + 1 if "mounted" in os.fspath(path) else status.st_dev
        times = {name: getattr(status, name) for name in ("st_mtime_ns", "st_ctime_ns")}
        return os.stat_result((status.st_mode, status.st_ino, device, *status[3:]), times)

    monkeypatch.setattr(os, "stat", mounted)
    assert read(str(tmp_path)).scan().photos == (str(here), str(there))
    found = read(str(tmp_path), "--one-file-system").scan()
    assert found.photos == (str(here),)
    assert [failure.path for failure in found.failed] == [str(tmp_path / "mounted")]
    assert read(str(tmp_path / "mounted"), "--one-file-system").scan().photos == (str(there),)


def test_a_listed_path_may_be_gone_and_a_link_may_lead_nowhere(tmp_path: Path, run: Run) -> None:
    names, link, store = write(tmp_path / "list", b"/gone.jpg\n"), tmp_path / "link.jpg", tmp_path / "store"
    link.symlink_to(tmp_path / "gone")
    command = ["dedup", link, "--files-from", names, "--url", "local:/no/model", "--store", store]
    *unreadable, last = run(main, *command, code=1).err.splitlines()
    assert [line.split(":")[0] for line in unreadable] == ["UNREADABLE /gone.jpg", f"UNREADABLE {link}"]
    assert last == "clip-client: there is no photo to compare in the given paths"
    assert not store.exists(), "nothing was started"


def test_a_tuned_threshold_is_named_once_to_a_person_who_reads_it(search: list[str], tmp_path: Path, run: Run) -> None:
    with Store(tmp_path / "store") as store:
        store.settings.save_keep_rules("mine", ["newest"])
    with closing(sqlite3.connect(tmp_path / "store" / "history.sqlite")) as connection, connection:
        connection.execute("INSERT INTO tuned VALUES ('m/openai@1|p|original', 0.95)")
    said = "the tuned threshold of m/openai@1 is no longer used; --threshold 0.95 sets it"
    for options, is_said in ((["--quiet"], False), ([], True), ([], False)):
        assert (said in run(main, *search, *options).err) is is_said


def test_proofs_by_an_earlier_rule_are_made_again_and_it_is_said_once(
    search: list[str], tmp_path: Path, run: Run
) -> None:
    with Store(tmp_path / "store") as store:
        store.cache.blob_tables("sift-6-align-2-full-size-8")[0].put([("ab", b"{}")])
    for is_said in (True, False):
        assert ("copies are proved again" in run(main, *search).err) is is_said


def test_saved_rules_go_on_without_one_that_is_gone(search: list[str], tmp_path: Path, run: Run) -> None:
    with Store(tmp_path / "store") as store:
        store.settings.save_keep_rules("mine", ["bytes", "path=*/2.dng"])
        store.settings.save_keep_rules("small", ["smallest"])
    for name, gone, kept in (("mine", "bytes", "2.dng"), ("small", "smallest", "1.dng")):
        printed = run(main, *search, "--keep", f"@{name}", "--json", "-")
        assert f"@{name} is used without {gone}, which no longer exists" in printed.err
        (group,) = json.loads(printed.out)["groups"]
        assert group["keep"].endswith(kept)
