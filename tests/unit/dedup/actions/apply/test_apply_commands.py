"""The commands that need no server: undo, purge, decide."""

from __future__ import annotations

import io
import json
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from clip_client.cli.main import main
from clip_client.cli.options.dedup import ActionOptions
from clip_client.dedup import Store
from clip_client.dedup.actions.apply import apply
from clip_client.dedup.types import SAME_PIXELS, SIMILAR
from tests.fixtures.albums import album, carried_out, member, planned, report, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> list[str]:
    """Three photos in the quarantine."""
    with Store(tmp_path / "store") as opened:
        apply(planned(album(tmp_path / "root"), [tmp_path / "root"]), opened.journal)
    return ["--store", str(tmp_path / "store")]


def test_undo_lists_and_brings_back_what_is_named(
    store: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["undo", "--list", *store]) == 0
    of_run, _, *lines = capsys.readouterr().out.splitlines()
    run = of_run.split()[0]
    assert of_run == f"{run}  3 photos, 23 B; restore with: clip-client undo --run {run}"
    assert len(lines) == 3
    assert not any("out of reach" in line for line in lines)
    assert main(["undo", str(tmp_path / "root" / "copy.jpg"), *store]) == 0
    assert (tmp_path / "root" / "copy.jpg").exists()
    assert main(["undo", "--run", "no such run", *store]) == 1
    assert main(["undo", "--run", run, *store]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "restored" in line] == [
        "1 photo restored",
        "2 photos restored",
    ]


def test_what_came_back_is_counted_and_what_could_not_is_named(
    store: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken, never = write(tmp_path / "root" / "copy.jpg", b"new"), tmp_path / "root" / "other.jpg"
    assert main(["undo", str(never), *store]) == 1
    assert main(["undo", *store]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["0 photos restored", "2 photos restored"]
    assert captured.err.splitlines() == [
        f"not done: {never}: Nothing in the quarantine came from this path; see clip-client undo --list.",
        f"not done: {taken}: Another file has taken its name.",
    ]


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--keep", "prettiest"], 2, "the rules are reference"),
        (["--apply", "--reference", "kpet"], 1, "there is no folder kpet: see --reference"),
        (["--apply", "--act-on", "all"], 2, "unknown tier 'all'; the tiers are exact"),
        (["--apply", "--act-on", "chosen", "--act-on", "exact"], 2, "leave the tiers out"),
        (["--hard-link", "--act-on", "exact", "--act-on", "same-pixels"], 2, "--act-on exact"),
        (["--json", "1.jpg"], 2, "has the name of a photo"),
        (["--csv", "1.NEF"], 2, "has the name of a photo"),
        (["--json", "both.html", "--report", "./both.html"], 2, "must not write to the same file"),
        (["--json", "-", "--csv", "-"], 2, "must not write to the same file"),
    ],
)
def test_dedup_refuses_what_would_do_harm_or_nothing_before_any_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    code: int,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "1.jpg", b"photo")
    assert main(["dedup", ".", *options, "--store", "store"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line
    assert [path.name for path in tmp_path.iterdir()] == ["1.jpg"]


def test_undo_and_purge_of_nothing_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["purge", "--store", str(tmp_path)]) == 0
    assert "0 photos of 0 B in the quarantine" in capsys.readouterr().out
    assert main(["purge", "--run", "unknown", "--store", str(tmp_path)]) == 1
    assert "'unknown'; clip-client undo --list shows the runs" in capsys.readouterr().err
    for option in (["--list"], []):
        assert main(["undo", *option, "--store", str(tmp_path)]) == 0
        assert capsys.readouterr().out == "there is nothing in the quarantine to restore\n"
        assert main(["undo", *option, "--run", "unknown", "--store", str(tmp_path)]) == 1
        assert "nothing in the quarantine was moved by a run 'unknown'" in capsys.readouterr().err


def test_undo_and_purge_print_json(
    store: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["undo", "--list", "--json", *store]) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    assert len(entries) == 3
    assert {"run", "path", "kept", "size_bytes", "out_of_reach"} == entries[0].keys()
    never = str(tmp_path / "never.jpg")
    assert main(["undo", "--json", str(tmp_path / "root" / "copy.jpg"), never, *store]) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["done"], [failure["path"] for failure in result["failed"]]) == (1, [never])
    monkeypatch.setattr("send2trash.send2trash", lambda path: None)
    assert main(["purge", "--yes", "--json", *store]) == 0
    assert json.loads(capsys.readouterr().out)["done"] == 2


def test_undo_lists_what_is_out_of_reach(store: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "root").rename(tmp_path / "elsewhere")
    assert main(["undo", "--list", *store]) == 0
    _, _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all("  out of reach: " in line and "connect its disk" in line for line in lines)


def test_purge_sums_up_by_folder_and_needs_somebody_to_agree(
    store: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["purge", *store]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "3 photos of 23 B in the quarantine",
        f"  {tmp_path / 'root' / 'a'}: 2 photos of 17 B",
        f"  {tmp_path / 'root'}: 1 photo of 6 B",
    ]
    assert "--yes" in captured.err


def test_decide_needs_two_photos_that_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, copy = write(tmp_path / "1.jpg", b"x"), write(tmp_path / "2.jpg", b"x")
    store = ["--store", str(tmp_path / "store")]
    assert main(["decide", "different", str(one), str(copy), *store]) == 2
    assert "two photos with different bytes" in capsys.readouterr().err
    assert main(["decide", "keep-all", str(one), str(tmp_path / "gone.jpg"), *store]) == 1
    assert "gone.jpg" in capsys.readouterr().err
    assert main(["decide", "keep-all", str(one), str(write(tmp_path / "3.jpg", b"y")), *store]) == 0
    assert main(["decide", "forget", str(copy), *store]) == 0
    assert "1 decision forgotten" in capsys.readouterr().out


def test_a_store_that_cannot_be_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "file", b"in the way")
    assert main(["undo", "--store", str(tmp_path / "file" / "store")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("clip-client: the store")
    assert error.count("\n") == 1


def test_a_dry_run_counts_what_stays_for_its_tier_and_names_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, copy, similar, wanted = (write(tmp_path / f"{number}.jpg", b"x") for number in (1, 2, 3, 4))
    groups = report(
        (member(kept), member(copy), member(similar, tier=SIMILAR), member(wanted, is_reference=True)),
    )
    arguments = ActionOptions(apply=False, dry_run=True, hard_link=False, merge_metadata=False)
    with Store(tmp_path / "store") as opened:
        assert carried_out(groups, [str(tmp_path)], opened, arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"stays: {wanted}: It is in a reference folder.",
        "1 similar copy waits for you; --act-on similar moves it instead",
        f"would move: {copy}; kept: {kept}",
        "--apply would move 1 photo of 1 B",
    ]
    with Store(tmp_path / "store") as opened:
        assert carried_out(groups, [str(tmp_path)], opened, replace(arguments, tiers=(SIMILAR,))) == 0
    assert "1 exact copy waits for you; --act-on exact moves it, too" in capsys.readouterr().out


def test_the_way_back_can_be_pasted_into_a_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    groups = report((member(write(tmp_path / "1.jpg", b"x")), member(write(tmp_path / "2.jpg", b"x"))))
    named = tmp_path / "my store"
    arguments = ActionOptions(apply=True, dry_run=False, hard_link=False, merge_metadata=False, store=named)
    with Store(named) as opened:
        assert carried_out(groups, [str(tmp_path)], opened, arguments) == 0
    moved, purged = capsys.readouterr().out.splitlines()
    said, _, back = moved.partition("clip-client ")
    assert said == f"1 photo moved to {tmp_path / '.clip-quarantine'}; restore them with: "
    said, _, purge = purged.partition("clip-client ")
    assert "no space is freed yet" in said
    assert main(shlex.split(back)) == 0
    assert (tmp_path / "2.jpg").exists()
    assert main([*shlex.split(purge), "--yes"]) == 0


def test_quarantines_in_several_folders_are_not_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [write(tmp_path / folder / "1.jpg", b"x") for folder in "abc"]
    with Store(tmp_path / "store") as opened:
        arguments = ActionOptions(apply=True)
        assert (
            carried_out(report(tuple(map(member, paths))), [str(path.parent) for path in paths], opened, arguments) == 0
        )
    assert "2 photos moved to .clip-quarantine folders; restore" in capsys.readouterr().out


def test_what_belongs_to_a_photo_can_be_named_and_listed(
    store: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = str(tmp_path / "root" / "a" / "2.cr2")
    assert main(["undo", "--list", raw, *store]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3  # the run, a line without text, and the photo
    assert main(["undo", raw, *store]) == 0
    assert capsys.readouterr().err == ""
    assert main(["undo", raw, *store]) == 1


def test_purge_sends_no_more_than_it_has_summed_up(
    store: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody moves more, in another window, while the question waits."""
    sent: list[str] = []

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def agree_late(question: str) -> str:
        first, second = (write(tmp_path / "later" / name, b"y") for name in ("1.jpg", "2.jpg"))
        with Store(tmp_path / "store") as opened:
            apply(planned(report((member(first), member(second))), [tmp_path / "later"]), opened.journal)
        return "y"

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", agree_late)
    monkeypatch.setattr("send2trash.send2trash", sent.append)
    assert main(["purge", *store]) == 0
    assert len(sent) == 5  # files of three photos
    assert not any("later" in path for path in sent)


def test_a_damaged_database_is_one_sentence(
    store: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "store" / "journal.sqlite"
    sound = journal.read_bytes()
    journal.write_bytes(sound[:4096] + b"\xff" * (len(sound) - 4096))  # the header and the schema are whole
    assert main(["undo", *store]) == 1
    assert "cannot be read (database disk image is malformed)" in capsys.readouterr().err


def test_a_dry_run_with_hard_links_names_copies_of_the_same_bytes_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, copy, other = (write(tmp_path / f"{name}.jpg", name[:1].encode()) for name in ("a", "a2", "b"))
    groups = report((member(kept), member(copy), member(other, tier=SAME_PIXELS)))
    chosen = ActionOptions(apply=False, dry_run=True, hard_link=True, merge_metadata=False)
    with Store(tmp_path / "store") as opened:
        assert carried_out(groups, [str(tmp_path)], opened, chosen) == 0
    said = capsys.readouterr().out
    assert f"would move: {copy}; kept" in said
    assert f"stays: {other}: Only copies of the same bytes can become hard links." in said


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_search_counts_what_cannot_move_and_a_dry_run_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dry_run: bool
) -> None:
    kept, copy = (write(tmp_path / f"{number}.jpg", b"x") for number in (1, 2))
    groups = report((member(kept), member(copy)))
    copy.unlink()
    with Store(tmp_path / "store") as opened:
        assert carried_out(groups, [str(tmp_path)], opened, ActionOptions(dry_run=dry_run)) == 0
    said = capsys.readouterr().out
    assert (f"stays: {copy}: It cannot be read" in said) == dry_run
    assert ("1 other photo of the groups stays; --dry-run says why\n" in said) != dry_run


@pytest.mark.parametrize("option", [["--retry-failed"], ["--shard-rows", "5"]])
def test_embed_refuses_for_a_file_what_is_for_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    assert main(["embed", str(tmp_path), "--output", str(tmp_path / "a.parquet"), *option]) == 2
    assert "are for a folder" in capsys.readouterr().err
