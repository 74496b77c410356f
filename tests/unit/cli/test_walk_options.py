"""Which files a command takes: patterns, lists, other file systems, nothing at all."""

from __future__ import annotations

import argparse
import io
import os
import sys
from typing import TYPE_CHECKING

import pytest

from clip_client.cli.main import main
from clip_client.cli.options.paths import WalkOptions, add_walk_options, read_walk_options
from clip_client.cli.parser import user_path
from tests.fixtures.albums import write

if TYPE_CHECKING:
    from pathlib import Path


def read(*words: str) -> WalkOptions:
    parser = argparse.ArgumentParser()
    add_walk_options(parser)
    return read_walk_options(parser.parse_args(words))


@pytest.mark.parametrize(
    ("content", "options", "paths"),
    [
        (b"/a b.jpg\r\n\n/caf\xe9.jpg\n", [], ["/a b.jpg", os.fsdecode(b"/caf\xe9.jpg")]),
        (b"/Icon\r.jpg\n/b.jpg\r\n", [], ["/Icon\r.jpg", "/b.jpg"]),
        (b"/line\nbreak.jpg\0/b.jpg\0", ["--null"], ["/line\nbreak.jpg", "/b.jpg"]),
    ],
)
def test_a_list_holds_a_path_in_a_line_or_before_a_null(
    content: bytes, options: list[str], paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "list", content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    for source in (str(file), "-"):
        assert list(read("/first.jpg", "--files-from", source, *options).paths) == ["/first.jpg", *paths]


def test_patterns_are_resolved_where_no_shell_has(tmp_path: Path) -> None:
    photos = [write(tmp_path / "trip" / name, b"x") for name in ("1.jpg", "deep/2.jpg")]
    odd = write(tmp_path / "[odd].jpg", b"x")
    assert list(read(str(tmp_path / "trip" / "**" / "*.jpg")).paths) == [str(photo) for photo in photos]
    assert list(read(str(odd)).paths) == [str(odd)]
    assert list(read(str(tmp_path / "*.png")).paths) == [str(tmp_path / "*.png")]


def test_one_file_system_stays_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = write(tmp_path / "a" / "1.jpg", b"x"), write(tmp_path / "mounted" / "deep" / "2.jpg", b"y")
    look = os.stat

    def mounted(path: str | os.PathLike[str]) -> os.stat_result:
        status = look(path)
        device = status.st_dev + 1 if "mounted" in os.fspath(path) else status.st_dev
        return os.stat_result((status.st_mode, status.st_ino, device, *status[3:]), {"st_mtime_ns": status.st_mtime_ns})

    monkeypatch.setattr(os, "stat", mounted)
    assert read(str(tmp_path)).scan().photos == (str(here), str(there))
    found = read(str(tmp_path), "--one-file-system").scan()
    assert found.photos == (str(here),)
    assert [failure.path for failure in found.failed] == [str(tmp_path / "mounted")]
    assert read(str(tmp_path / "mounted"), "--one-file-system").scan().photos == (str(there),)


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.jpg").write_bytes(b"x")
    assert read("~/a.jpg").paths == (str(tmp_path / "a.jpg"),)
    assert read("~/*.jpg").paths == (str(tmp_path / "a.jpg"),)
    assert user_path("~/store") == tmp_path / "store"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~").mkdir()
    assert read("~").paths == ("~",), "a name that exists counts"


def test_nothing_to_compare_is_said_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    store = tmp_path / "store"
    assert main(["dedup", str(tmp_path / "empty"), "--url", "local:/no/such/model", "--store", str(store)]) == 1
    assert capsys.readouterr().err == "clip-client: there is no photo to compare in the given paths\n"
    assert not store.exists()


@pytest.mark.parametrize("command", [("dedup",), ("dedup", "--quiet", "--apply"), ("review", "--no-browser")])
def test_a_search_refuses_a_named_path_that_does_not_exist(
    tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    photo, store = write(tmp_path / "a.jpg", b"x"), tmp_path / "store"
    for misspelt in (tmp_path / "gone", tmp_path / "*.png"):
        assert main([*command, str(photo), str(misspelt), "--url", "local:/no/model", "--store", str(store)]) == 1
        assert capsys.readouterr().err == f"clip-client: there is no file or folder {misspelt}\n"
    assert not store.exists()


def test_a_listed_path_may_be_gone_and_a_link_may_lead_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names, link = write(tmp_path / "list", b"/gone.jpg\n"), tmp_path / "link.jpg"
    link.symlink_to(tmp_path / "gone")
    assert main(["dedup", str(link), "--files-from", str(names), "--url", "local:/no/model"]) == 1
    *unreadable, last = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in unreadable] == ["UNREADABLE /gone.jpg", f"UNREADABLE {link}"]
    assert last == "clip-client: there is no photo to compare in the given paths"
