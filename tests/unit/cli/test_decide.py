"""``decide`` and ``rules``: what they record, list and forget, and what a search makes of it."""

import argparse
import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clip_client.cli.main import main
from clip_client.cli.options.connection import add_model_options
from clip_client.cli.options.dedup import add_search_options, read_search_options
from clip_client.cli.options.paths import add_store_option
from clip_client.dedup import Store
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES
from tests.fixtures.albums import searched, write
from tests.fixtures.commands import Run


@pytest.fixture
def said(tmp_path: Path, run: Run) -> Callable[..., str]:
    """Run a command that ends with this code, and return what it prints."""
    return lambda *words, code=0: "".join(run(main, *words, "--store", tmp_path / "store", code=code))


@pytest.fixture
def parsed(said: Callable[..., str]) -> Callable[..., Any]:
    return lambda *words: json.loads(said(*words, "--json", "-"))


def copies(root: Path, *names: str) -> list[str]:
    return [str(write(root / name, b"a RAW file")) for name in names]


def found(root: Path) -> list[list[str]]:
    with Store(root / "store") as store:
        groups = searched(root / "photos", store=store).groups
    return [sorted(os.path.basename(member.path) for member in group.members) for group in groups]


def test_files_with_the_same_bytes_can_all_be_wanted(tmp_path: Path, said: Callable[..., str]) -> None:
    paths = copies(tmp_path / "photos", "1.dng", "2.dng")
    assert found(tmp_path) == [["1.dng", "2.dng"]]
    assert "recorded: 2 photos, keep-all" in said("decide", "keep-all", *paths)
    assert found(tmp_path) == []
    os.rename(paths[0], tmp_path / "photos" / "renamed.dng")
    assert found(tmp_path) == []
    # One file more than the person saw who decided.
    copies(tmp_path / "photos", "3.dng")
    assert found(tmp_path) == [["2.dng", "3.dng", "renamed.dng"]]
    said("decide", "forget", paths[1])
    os.unlink(tmp_path / "photos" / "3.dng")
    assert found(tmp_path) == [["2.dng", "renamed.dng"]]


def test_copies_of_different_photos_are_still_copies(tmp_path: Path, said: Callable[..., str]) -> None:
    said("decide", "different", *copies(tmp_path / "photos", "1.dng", "2.dng"), str(write(tmp_path / "3.dng", b"3")))
    assert found(tmp_path) == [["1.dng", "2.dng"]]


def test_a_decision_needs_two_photos_that_can_be_read(tmp_path: Path, said: Callable[..., str]) -> None:
    path, copy = copies(tmp_path, "1.dng", "2.dng")
    link, gone = str(tmp_path / "link.dng"), str(tmp_path / "gone.dng")
    os.symlink(path, link)
    assert "a decision needs at least two photos" in said("decide", "keep-all", path, link, code=2)
    assert "two photos with different bytes" in said("decide", "different", path, copy, code=2)
    assert "gone.dng" in said("decide", "keep-all", path, gone, code=1)


def test_the_list_says_what_was_decided_and_where_the_photos_were_seen(
    tmp_path: Path, said: Callable[..., str], parsed: Callable[..., Any]
) -> None:
    assert said("decide", "list") == "nothing was decided\n"
    paths = copies(tmp_path / "photos", "1.dng", "2.dng")
    other = str(write(tmp_path / "other.dng", b"another one"))
    found(tmp_path)
    for what in ("keep", "different"):
        said("decide", what, paths[0], other)
    decided = parsed("decide", "list")
    (decision,), (choice,) = decided["decisions"], decided["choices"]
    seen = {photo["files"]: photo["seen_at"] for photo in decision["photos"] if photo["seen_at"]}
    assert (decision["what"], seen) == ("different", {1: paths})
    assert [(photo["path"], photo["moves"]) for photo in choice["photos"]] == [(paths[0], False), (other, True)]

    first, *lines = said("decide", "list").splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d  different", first)
    assert f"   {', '.join(paths)}" in lines
    assert any(line.endswith("not seen by a search") for line in lines)
    assert f"   {other}  moves" in lines
    assert parsed("decide", "forget", other) == {"forgotten": 2}


def test_a_choice_says_how_to_carry_it_out(tmp_path: Path, said: Callable[..., str]) -> None:
    how = "chosen: 2 photos to move; clip-client dedup PATH --apply --act-on chosen moves them\n"
    assert said("decide", "keep", *copies(tmp_path, "1.dng", "2.dng", "3.dng")) == how


@pytest.mark.parametrize(("what", "third"), [("different", b"another"), ("keep-all", b"another"), ("keep-all", None)])
def test_a_choice_against_an_earlier_decision_is_refused_until_that_is_forgotten(
    tmp_path: Path, said: Callable[..., str], parsed: Callable[..., Any], what: str, third: bytes | None
) -> None:
    first, copy = copies(tmp_path, "1.dng", "2.dng")
    other = copy if third is None else str(write(tmp_path / "other.dng", third))
    unlike = str(write(tmp_path / "unlike.dng", b"nothing was decided about it and one of them"))
    said("decide", what, first, other)
    refused = said("decide", "keep", unlike, first, other, code=1)
    assert f"you decided {what} about {first} and {other}, so no search finds them in one group" in refused
    assert parsed("decide", "list")["choices"] == []
    said("decide", "keep", first, unlike)
    command = shlex.split(refused.strip().partition("clip-client decide forget ")[2])
    assert main(["decide", "forget", *command]) == 0
    said("decide", "keep", first, other)


def test_rules_are_saved_under_a_name_and_name_their_folder_from_anywhere(
    tmp_path: Path, said: Callable[..., str], parsed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "best, of all").mkdir()
    mine = [f"folder={tmp_path / 'best, of all'}", "newest"]
    more = ["format=heic", *mine]
    assert said("rules", "list") == "no rules are saved\n"
    assert said("rules", "save", "mine", "folder=best, of all", "newest") == "saved; use them with: --keep '@mine'\n"
    assert parsed("rules", "save", "more", "format=heic", "@mine") == {"rules": {"more": more}}
    assert parsed("rules", "list") == {"rules": {"mine": mine, "more": more}}
    assert parsed("rules", "delete", "mine") == {"deleted": "mine"}
    said("rules", "delete", "mine", code=1)
    assert said("rules", "list") == f"@more: {', '.join(more)}\n"


def test_a_search_takes_the_saved_rules(tmp_path: Path, said: Callable[..., str]) -> None:
    said("rules", "save", "mine", "newest", "pixels")
    parser = argparse.ArgumentParser()
    for add in (add_search_options, add_store_option, add_model_options):
        add(parser)
    for rules, expected in (([], DEFAULT_RULES), (["@mine"], ("newest", "pixels")), (["pixels"], ("pixels",))):
        words = [".", "--store", str(tmp_path / "store"), *(f"--keep={rule}" for rule in rules)]
        assert read_search_options(parser.parse_args(words)).compare_by["keep"] == expected
