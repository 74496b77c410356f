"""The commands that need no server: what undo, purge and decide say, and what a dry run and ``--apply`` do."""

import errno
import io
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from clip_client.cli.main import main
from clip_client.dedup import DuplicateReport, Store
from clip_client.dedup.actions.apply import apply
from clip_client.dedup.judge.verdicts import with_verdicts
from clip_client.dedup.pages.terminal import print_groups
from clip_client.dedup.types import SAME_PIXELS, SIMILAR
from tests.fixtures.albums import album, carried_out, copies, member, planned, planned_copies, refusing, report, write
from tests.fixtures.commands import Said


@pytest.fixture
def store(root: Path, tmp_path: Path) -> list[str]:
    """Three photos in the quarantine."""
    with Store(tmp_path / "store") as opened:
        apply(planned(album(root), [root]), opened.journal)
    return ["--store", str(tmp_path / "store")]


def test_undo_lists_and_brings_back_what_is_named(store: list[str], root: Path, said: Said) -> None:
    of_run, _, *lines = said("undo", "--list", *store)
    run = of_run.split()[0]
    assert of_run == f"{run}  3 photos, 23 B; restore with: clip-client undo --run {run} {shlex.join(store)}"
    assert [("out of reach" in line, line.startswith(run)) for line in lines] == [(False, True)] * 3
    copy, taken, never = (root / name for name in ("copy.jpg", "a/3.jpg", "other.jpg"))
    report = root / "dry.json"
    assert said("undo", "--dry-run", copy, "--json", report, *store)[2:] == [
        line for line in lines if str(copy) in line
    ]
    assert [entry["path"] for entry in json.loads(report.read_text())["entries"]] == [str(copy)]
    assert not copy.exists()
    assert "a PATH is empty" in said("undo", copy, "", *store, code=2)[0]  # as an unset variable of a shell leaves it
    assert said("undo", copy, *store) == ["1 photo restored"]
    assert copy.exists()
    raw = root / "a" / "2.cr2"  # what belongs to a photo can be named, too
    assert len(said("undo", "--list", raw, *store)) == 3  # the run, a line without text, and the photo
    write(taken, b"new")
    of_others = "nothing in the quarantine belongs to this run or came from this path"
    assert said("undo", "--list", never, *store) == [of_others]
    assert said("undo", never, *store, code=1) == [
        "0 photos restored",
        f"not done: {never}: Nothing in the quarantine came from this path; --list shows what is there.",
    ]
    assert said("undo", "--run", run, *store, code=1) == [
        "1 photo restored",
        f"not done: {taken}: Another file has taken its name.",
    ]
    assert said("undo", raw, *store, code=1)[0] == "0 photos restored"
    taken.unlink()
    assert said("undo", *store) == ["1 photo restored"]


def test_undo_of_a_folder_restores_what_was_below_it(
    store: list[str], root: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    """Whether or not the folder is still there. Paths are compared: a link to it and a part of its name are others."""
    shutil.rmtree(root / "b")
    (root / "link").symlink_to(root / "a")
    for other in (root / "link", root / "a" / "2", root / "b"):
        assert said("undo", other, *store, code=1)[0] == "0 photos restored"
    monkeypatch.chdir(root / "a")
    assert len(said("undo", "--list", ".", *store)) == 4  # the run, a line without text, and the photos
    assert said("undo", "../a/../a/", "3.jpg", *store) == ["2 photos restored"]
    assert said("undo", "/", *store) == ["1 photo restored"]


def test_undo_and_purge_of_nothing_say_so(tmp_path: Path, said: Said) -> None:
    where = ["--store", tmp_path]
    assert said("purge", *where) == ["this store knows of no photo in a quarantine"]
    for command in (["purge"], ["undo"], ["undo", "--list"], ["undo", "--dry-run"]):
        (line,) = said(*command, "--run", "unknown", *where, code=1)
        assert "no run 'unknown' of this store has photos in the quarantine" in line
        assert "clip-client undo --from FOLDER restores photos of other stores" in line
        if command != ["purge"]:
            (line,) = said(*command, *where)
            assert "this store knows of no photo in a quarantine" in line
            assert "clip-client undo --from FOLDER" in line


def test_undo_and_purge_print_json_and_say_what_is_out_of_reach(
    store: list[str], root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(*words: str, code: int = 0) -> Any:
        assert main([*words, "--json", "-", *store]) == code
        return json.loads(capsys.readouterr().out)

    root.rename(root.with_name("elsewhere"))
    assert main(["undo", "--list", *store]) == 0
    assert capsys.readouterr().out.count("  out of reach: ") == 3
    entries = found("undo", "--list")["entries"]
    assert [one.keys() for one in entries] == [{"run", "path", "kept", "size_bytes", "out_of_reach"}] * 3
    assert all("connect its disk" in one["out_of_reach"] for one in entries)
    root.with_name("elsewhere").rename(root)
    never = str(root / "never.jpg")
    result = found("undo", str(root / "copy.jpg"), never, code=1)
    assert (result["done"], [failure["path"] for failure in result["failed"]]) == (1, [never])
    monkeypatch.setattr("send2trash.send2trash", lambda path: None)
    assert found("purge", "--yes")["done"] == 2


def test_a_renamed_folder_is_one_sentence_that_says_how_to_go_on(
    store: list[str], root: Path, tmp_path: Path, said: Said
) -> None:
    """The single photo of another folder is named."""
    plan, (_, alone) = planned_copies(tmp_path / "other")
    with Store(tmp_path / "store") as opened:
        apply(plan, opened.journal)
    for folder in (root, tmp_path / "other"):
        folder.rename(folder.with_name(f"{folder.name}, renamed"))
    for example, *command in (("copy.jpg", "undo"), ("a/2.jpg", "purge", "--yes")):
        named, together = sorted(said(*command, *store, code=1)[-2:])
        assert named.startswith(f"not done: {alone}: {tmp_path / 'other'} is missing or empty; connect its disk")
        assert together == (
            f"not done: 3 photos, such as {root / example}: {root} is missing or empty; connect its disk and try "
            "again, or if the folder was renamed: clip-client undo --from FOLDER, its new name."
        )


def test_a_full_or_read_only_disk_is_one_sentence_that_says_what_to_do(
    root: Path, tmp_path: Path, said: Said, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, taken, store = album(root), tmp_path / "store", ["--store", str(tmp_path / "store")]
    with Store(taken) as opened, monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", refusing(os.mkdir, OSError(errno.ENOSPC, "No space left on device")))
        carried_out(found, [root], opened, apply=True, code=1)
    assert capsys.readouterr().err == (
        f"not done: 3 photos, such as {root / 'a' / '2.jpg'}: The system refuses: No space left on device; free some "
        "space and try again.\n"
    )
    with Store(taken) as opened:
        apply(planned(found, [root]), opened.journal)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refusing(os.link, OSError(errno.EROFS, "Read-only file system")))
        _, line = said("undo", *store, code=1)
        assert line == (
            f"not done: 3 photos, such as {root / 'copy.jpg'}: The system refuses: Read-only file system; make its "
            "disk writable and try again."
        )
    # Two names are no longer than a number with an example.
    (root / "copy.jpg").parent.mkdir(exist_ok=True)
    for name in ("copy.jpg", "a/3.jpg"):
        write(root / name, b"of a stranger")
    assert said("undo", *store, code=1)[1:] == [
        f"not done: {root / name}: Another file has taken its name." for name in ("copy.jpg", "a/3.jpg")
    ]


def test_purge_sums_up_by_folder_and_needs_somebody_to_agree(store: list[str], root: Path, said: Said) -> None:
    *summary, refused = said("purge", *store, code=1)
    assert summary == [
        "the quarantine holds 3 photos of 23 B",
        f"  {root / 'a'}: 2 photos of 17 B",
        f"  {root}: 1 photo of 6 B",
    ]
    assert "--yes" in refused


def test_purge_sends_no_more_than_it_has_summed_up(
    store: list[str], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another window moves more photos while the question waits."""
    sent: list[str] = []

    def agree_late(question: str) -> str:
        assert "The trash restores them only into hidden .clip-quarantine folders" in question
        with Store(tmp_path / "store") as other:
            apply(planned_copies(root / "later")[0], other.journal)
        return "y"

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", agree_late)
    monkeypatch.setattr("send2trash.send2trash", sent.append)
    assert main(["purge", *store]) == 0
    assert ["later" in path for path in sent] == [False] * 5  # files of three photos


def test_a_damaged_journal_is_one_sentence(store: list[str], tmp_path: Path, said: Said) -> None:
    journal = tmp_path / "store" / "history.sqlite"
    sound = journal.read_bytes()
    journal.write_bytes(sound[:4096] + b"\xff" * (len(sound) - 4096))  # the header and the schema are whole
    (line,) = said("undo", *store, code=1)
    assert "cannot be read (database disk image is malformed)" in line


def test_undo_and_purge_advise_no_other_store_than_the_one_with_their_moves(tmp_path: Path, said: Said) -> None:
    (file := tmp_path / "history.sqlite").mkdir()
    start = f"{file} cannot be used (unable to open database file); make its folder writable, with space for it"
    for command, end in (("undo", ""), ("purge", ""), ("decide list", ", or choose another folder with --store")):
        (line,) = said(*command.split(), "--store", tmp_path, code=1)
        assert line.endswith(start + end)


# What dedup says at its end.


def lines_of(found: DuplicateReport, root: Path, **options: Any) -> list[str]:
    """Carry out a report with these options; return what is said."""
    with Store(root.with_name("my store")) as opened:
        return carried_out(found, [root], opened, **options)


def test_a_dry_run_counts_what_stays_for_its_tier_and_names_the_rest(root: Path) -> None:
    kept, copy, similar, wanted, other = (write(root / f"{number}.jpg", b"x") for number in range(1, 6))
    film, _ = (write(one.with_suffix(".mov"), b"f") for one in (copy, kept))
    found = report(
        (member(kept), member(copy), member(similar, tier=SIMILAR), member(wanted, is_reference=True)),
        (member(write(root / "6.jpg", b"y")), member(other, tier=SAME_PIXELS)),
    )
    assert lines_of(found, root, dry_run=True, tiers=("exact",)) == [
        f"stays: {wanted}: It is in a reference folder.",
        "1 same-pixels copy waits for you; --act-on same-pixels moves it, too",
        "1 similar copy waits for you; look at it with clip-client review",
        f"would move: {copy}, with {film}; kept: {kept}",
        "--apply would move 1 photo of 1 B",
    ]
    assert lines_of(found, root) == [
        "1 other photo stays in place; --dry-run says why",
        "1 similar copy waits for you; look at it with clip-client review",
        "--apply would move 2 photos of 2 B",
    ]


def test_reasons_that_the_terminal_has_shown_are_not_promised_again(root: Path) -> None:
    kept, *wanted = (write(root / f"{number}.jpg", b"x") for number in range(10))
    found = report((member(kept), *(member(one, is_reference=True) for one in wanted)))
    judged = with_verdicts(found, [str(root)])
    for verbose, said in ((True, []), (False, ["4 other photos stay in place; --dry-run says why"])):
        explained = print_groups(judged, Console(file=io.StringIO()), verbose=verbose)
        assert lines_of(found, root, more={"explained": explained}) == [*said, "--apply would move nothing"]


def test_apply_counts_what_stays_by_reason(root: Path) -> None:
    kept, copy, *wanted = (write(root / f"{number}.jpg", b"x") for number in range(1, 6))
    stay = [member(one, is_reference=True) for one in wanted]
    first, hint, moved, _ = lines_of(report((member(kept), member(copy), *stay)), root, apply=True)
    assert (first, hint) == ("3 photos stay: It is in a reference folder.", "to list these photos: -v")
    assert moved.startswith("1 photo moved")
    listed = [f"stays: {one}: It is in a reference folder." for one in wanted]
    only_stay = report((member(kept), *stay))
    assert lines_of(only_stay, root, more={"verbose": True}, apply=True) == [*listed, "0 photos moved"]


def test_the_way_back_can_be_pasted_into_a_shell(root: Path, tmp_path: Path, said: Said) -> None:
    found, (kept, _) = copies(root)
    moved, purged = lines_of(found, root, apply=True)
    store = ["--store", str(tmp_path / "my store")]
    kept.rename(root / "away.jpg")
    for line in (said("undo", "--list", *store)[0], said("purge", "--yes", *store, code=1)[-1]):
        assert line.endswith(f"{shlex.join(store)}") or f"{shlex.join(store)}, or all such photos with: " in line
    (root / "away.jpg").rename(kept)
    start, _, back = moved.partition("clip-client ")
    assert start == f"1 photo moved to {root / '.clip-quarantine'}; restore with: "
    start, _, purge = purged.partition("clip-client ")
    assert "no space is freed yet" in start
    assert main(shlex.split(back)) == 0
    assert (root / "2.jpg").exists()
    assert main([*shlex.split(purge), "--yes"]) == 0


def test_quarantines_in_several_folders_are_not_listed(root: Path, tmp_path: Path) -> None:
    found = report(tuple(member(write(root / folder / "1.jpg", b"x")) for folder in "abc"))
    with Store(tmp_path / "store") as opened:
        first, *_ = carried_out(found, [root / name for name in "abc"], opened, apply=True)
    assert first.startswith("2 photos moved to .clip-quarantine folders; restore")
