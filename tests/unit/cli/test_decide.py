"""``decide`` and ``rules``: what they record, list and forget, and what a search makes of it."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest

from clip_client.cli.main import main
from clip_client.cli.options.connection import add_model_options
from clip_client.cli.options.paths import add_store_option
from clip_client.cli.options.search import add_search_options, read_search_options
from clip_client.dedup import Store
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES
from tests.fixtures.albums import searched, write


@pytest.fixture
def store(tmp_path: Path) -> list[str]:
    return ["--store", str(tmp_path / "store")]


def copies(root: Path, *names: str) -> list[str]:
    return [str(write(root / name, b"a RAW file")) for name in names]


def found(root: Path) -> list[list[str]]:
    """Return the names of each group of a search below ``root``."""
    with Store(root / "store") as store:
        groups = searched(root / "photos", store=store).groups
    return [sorted(os.path.basename(member.path) for member in group.members) for group in groups]


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_files_with_the_same_bytes_can_all_be_wanted(
    tmp_path: Path, store: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = copies(tmp_path / "photos", "1.dng", "2.dng")
    assert found(tmp_path) == [["1.dng", "2.dng"]]
    assert main(["decide", "keep-all", *paths, *store]) == 0
    assert "recorded: 2 photos, keep-all" in capsys.readouterr().out
    assert found(tmp_path) == []
    os.rename(paths[0], tmp_path / "photos" / "renamed.dng")
    assert found(tmp_path) == []
    # One file more than the person saw who decided.
    copies(tmp_path / "photos", "3.dng")
    assert found(tmp_path) == [["2.dng", "3.dng", "renamed.dng"]]
    assert main(["decide", "forget", paths[1], *store]) == 0
    os.unlink(tmp_path / "photos" / "3.dng")
    assert found(tmp_path) == [["2.dng", "renamed.dng"]]


def test_copies_of_different_photos_are_still_copies(tmp_path: Path, store: list[str]) -> None:
    paths = copies(tmp_path / "photos", "1.dng", "2.dng")
    other = str(write(tmp_path / "photos" / "other.dng", b"another one"))
    assert main(["decide", "different", *paths, other, *store]) == 0
    assert found(tmp_path) == [["1.dng", "2.dng"]]


def test_a_file_and_a_link_to_it_are_one_file(
    tmp_path: Path, store: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = copies(tmp_path, "1.dng")
    (tmp_path / "link.dng").symlink_to(path)
    assert main(["decide", "keep-all", path, str(tmp_path / "link.dng"), *store]) == 2
    assert "a decision needs two photos" in capsys.readouterr().err


def test_the_list_says_what_was_decided_and_where_the_photos_were_seen(
    tmp_path: Path, store: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decide", "list", *store]) == 0
    assert capsys.readouterr().out == "nothing was decided\n"
    paths = copies(tmp_path / "photos", "1.dng", "2.dng")
    other = str(write(tmp_path / "other.dng", b"another one"))
    found(tmp_path)
    for what in ("different", "keep"):
        assert main(["decide", what, paths[0], other, *store]) == 0
    capsys.readouterr()

    assert main(["decide", "list", "--json", *store]) == 0
    decided = said(capsys)
    (decision,), (choice,) = decided["decisions"], decided["choices"]
    seen = {photo["files"]: photo["seen_at"] for photo in decision["photos"] if photo["seen_at"]}
    assert (decision["what"], seen) == ("different", {1: paths})
    assert [(photo["path"], photo["moves"]) for photo in choice["photos"]] == [(paths[0], False), (other, True)]

    assert main(["decide", "list", *store]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.endswith("  different")
    assert f"   {', '.join(paths)}" in lines
    assert any(line.endswith("not seen by a search") for line in lines)
    assert f"   {other}  moves" in lines

    assert main(["decide", "forget", other, "--json", *store]) == 0
    assert said(capsys) == {"forgotten": 2}


def test_a_choice_says_how_to_carry_it_out(
    tmp_path: Path, store: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decide", "keep", *copies(tmp_path, "1.dng", "2.dng", "3.dng"), *store]) == 0
    said = "chosen: 2 photos to move; clip-client dedup PATH --apply --act-on chosen moves them\n"
    assert capsys.readouterr().out == said


def test_rules_are_saved_under_a_name_and_name_their_folder_from_anywhere(
    tmp_path: Path, store: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "best, of all").mkdir()
    mine = [f"folder={tmp_path / 'best, of all'}", "newest"]
    assert main(["rules", "list", *store]) == 0
    assert main(["rules", "save", "mine", "folder=best, of all", "newest", *store]) == 0
    assert capsys.readouterr().out == "no rules are saved\nsaved; use them with: --keep '@mine'\n"
    assert main(["rules", "save", "more", "format=heic", "@mine", "--json", *store]) == 0
    assert said(capsys) == {"rules": {"more": ["format=heic", *mine]}}
    assert main(["rules", "list", "--json", *store]) == 0
    assert said(capsys) == {"rules": {"mine": mine, "more": ["format=heic", *mine]}}
    assert main(["rules", "delete", "mine", "--json", *store]) == 0
    assert said(capsys) == {"deleted": "mine"}
    assert main(["rules", "delete", "mine", *store]) == 1
    capsys.readouterr()
    assert main(["rules", "list", *store]) == 0
    assert capsys.readouterr().out == f"@more: format=heic, {', '.join(mine)}\n"


def test_a_search_takes_the_saved_rules(tmp_path: Path, store: list[str]) -> None:
    assert main(["rules", "save", "mine", "newest", "smallest", *store]) == 0
    parser = argparse.ArgumentParser()
    for add in (add_search_options, add_store_option, add_model_options):
        add(parser)
    given = {"": DEFAULT_RULES, "@mine": ("newest", "smallest"), "pixels": ("pixels",)}
    for rule, expected in given.items():
        keep = ["--keep", rule] if rule else []
        assert read_search_options(parser.parse_args([".", *keep, *store])).compare_by["keep"] == expected
