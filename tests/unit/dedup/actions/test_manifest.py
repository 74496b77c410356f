"""``undo --from`` restores photos without the store that moved them, from a folder that may lie at another path."""

import errno
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import pytest

import clip_client.dedup.actions.quarantine as quarantine_module
from clip_client.cli.main import main
from clip_client.dedup import Store
from clip_client.dedup.actions.apply import apply, undo, undo_from
from clip_client.dedup.actions.purge import purge
from clip_client.dedup.actions.quarantine import MANIFEST
from clip_client.dedup.store.computer import this_computer
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal, State
from clip_client.dedup.types import QUARANTINE_NAME
from tests.fixtures.albums import album, carry_out, files, opened, planned, planned_copies, take_back, write
from tests.fixtures.commands import Said
from tests.fixtures.crashes import Kills, contents

UNNAMED = "No manifest names it; move it back by hand: its path in the folder of the run is its old path."


def test_photos_come_back_where_another_computer_mounts_their_folder(root: Path, journal: Journal, said: Said) -> None:
    found = album(root)
    before = files(root)
    apply(planned(found, [root]), journal)
    (root / "a" / "2.jpg.xmp").parent.chmod(0o750)
    elsewhere = root.rename(root.with_name("mounted elsewhere"))
    run = journal.entries(IN_QUARANTINE)[0].run
    of_run, _, *listed = said("undo", "--from", elsewhere, "--list")
    assert of_run.startswith(f"{run}  3 photos, 23 B; restore with: clip-client undo --run {run} --from '{elsewhere}'")
    assert [line.split("  ")[1] for line in listed] == [
        str(elsewhere / name) for name in ("a/2.jpg", "a/3.jpg", "copy.jpg")
    ]
    of_others = "nothing in the quarantine belongs to this run or came from this path"
    for listed_only in ((), ("--list",)):
        assert said("undo", "--from", elsewhere, "--run", "unknown", *listed_only) == [of_others]
    assert said("undo", "--from", elsewhere, "--run", run, elsewhere / "copy.jpg") == ["1 photo restored"]
    assert said("undo", "--from", elsewhere, elsewhere / "a", elsewhere / "b", code=1) == [
        "2 photos restored",
        f"not done: {elsewhere / 'b'}: Nothing in the quarantine came from this path; --list shows what is there.",
    ]
    (line,) = said("undo", "--from", elsewhere)
    assert line == f"{elsewhere / QUARANTINE_NAME} is not there: all is restored, or another folder has the quarantine"
    assert files(elsewhere) == before
    assert not (elsewhere / QUARANTINE_NAME).exists()
    elsewhere.rename(root)
    assert said("undo", "--store", journal.directory) == ["0 photos restored; 3 photos were back already"]


def test_the_store_that_moved_photos_learns_that_they_are_back_in_a_renamed_folder(
    root: Path, journal: Journal, said: Said
) -> None:
    store = ("--store", journal.directory)
    apply(planned(album(root), [root]), journal)
    plan, (_, elsewhere) = planned_copies(root.with_name("other"))
    apply(plan, journal)
    renamed = root.rename(root.with_name("renamed"))

    def left() -> list[Path]:
        return [Path(entry.files[0].original) for entry in journal.entries(IN_QUARANTINE)]

    with journal.exclusive():
        (line,) = said("undo", "--from", renamed, *store, code=1)
    assert "another clip-client is moving files with this store" in line
    assert said("undo", "--from", renamed, renamed / "copy.jpg", *store) == ["1 photo restored"]
    assert left() == [root / "a" / "2.jpg", root / "a" / "3.jpg", elsewhere]
    for name in ("2.jpg", "3.jpg"):
        (by_hand,) = renamed.glob(f"{QUARANTINE_NAME}/*/a/{name}")
        by_hand.rename(renamed / "a" / name)
    write(renamed / "a" / "3.jpg", b"of a stranger")
    said("undo", "--from", renamed, *store)
    assert left() == [root / "a" / "3.jpg", elsewhere]


def test_photos_in_a_copy_of_their_folder_do_not_count_as_back(root: Path, journal: Journal, said: Said) -> None:
    plan, (_, copy) = planned_copies(root)
    apply(plan, journal)
    backup = shutil.copytree(root, root.with_name("backup"))
    for folder, photo in ((backup, Path(backup, copy.name)), (root, copy)):
        assert said("undo", "--from", folder, "--store", journal.directory) == ["1 photo restored"]
        assert (photo.exists(), len(journal.entries(IN_QUARANTINE))) == (True, folder != root)


def test_what_cannot_come_back_stays_whole_and_is_named(root: Path, journal: Journal, said: Said) -> None:
    """A sidecar would come back beside another photo, or a photo without what belongs to it."""
    for number in range(1, 5):
        write(root / f"{number}.xmp", b"stars")
    plan, (_, blocked, copy, replaced) = planned_copies(root, 4)
    before = files(root)
    apply(plan, journal)
    (run,) = (root / QUARANTINE_NAME).iterdir()
    stray = write(run / "deep" / "stray.jpg", b"stray")
    taken, _ = (write(path, b"of a stranger") for path in (root / "2.xmp", replaced))
    assert said("undo", "--from", root, code=1) == [
        "1 photo restored",
        f"not done: {replaced}: Another file has taken its name.",
        f"not done: {blocked}: Another file has taken its name: {taken}.",
        f"not done: {stray}: {UNNAMED}",
    ]
    assert (copy.exists(), blocked.exists(), (root / "4.xmp").exists()) == (True, False, False)
    assert taken.read_bytes() == replaced.read_bytes() == b"of a stranger"
    for path in (taken, stray, replaced):
        path.unlink()
    assert said("undo", "--from", root) == ["2 photos restored"]
    assert files(root) == before


LEADS_OUT = b'{"at_ns": 1, "kept": "k", "files": [["../../1.jpg", "", 1, 1, 1]], "sidecars": [], "folders": []}\n'


@pytest.mark.parametrize("line", [LEADS_OUT, b'{"at_ns', b"7"])
def test_a_line_that_was_cut_off_or_leads_out_of_the_folder_restores_nothing(
    root: Path, journal: Journal, line: bytes
) -> None:
    plan, _ = planned_copies(root)
    before = files(root)
    apply(plan, journal)
    (manifest,) = root.glob(f"*/*/{MANIFEST}")
    manifest.write_bytes(line + manifest.read_bytes())
    assert [outcome.done for outcome in undo_from(str(root))] == [True]
    assert files(root) == before


def test_undo_from_needs_a_quarantine_and_no_store(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setenv("CLIP_STORE", str(tmp_path / "none"))
    root.mkdir()
    (line,) = said("undo", "--from", root, code=1)
    assert f"{root / QUARANTINE_NAME} cannot be read: No such file or directory; name the folder" in line
    assert "--suspects needs the store" in said("undo", "--from", root, "--suspects", code=2)[0]
    (root / QUARANTINE_NAME / "run").mkdir(parents=True)  # as a killed process leaves it
    assert "takes the folder that has" in said("undo", "--from", root / QUARANTINE_NAME / "run", code=2)[0]
    assert said("undo", "--from", root / QUARANTINE_NAME) == ["there is nothing in the quarantine to restore"]
    assert list(tmp_path.iterdir()) == [root]


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """A photo that another store has moved."""
    plan, (_, copy) = planned_copies(root)
    with Store(tmp_path / "lost") as store:
        apply(plan, store.journal)
    return copy


def test_a_folder_near_the_quarantine_leads_to_it(
    copy: Path, root: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the folder of another user beside it nor a damaged store keeps the photo away."""
    (closed := root.parent / "closed").mkdir()
    look = os.stat

    def refused(path: Any, **named: Any) -> os.stat_result:
        if str(path).startswith(f"{closed}{os.sep}"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return look(path, **named)

    monkeypatch.setattr(os, "stat", refused)  # root may look everywhere
    for folder in (root / "deep" / "er", root.parent, root / "gone"):  # below it, one above it, and in it
        for options in ([], ["--list"]):
            (line,) = said("undo", "--from", folder, *options, code=1)
            assert line.endswith(f"no quarantine in {folder}; did you mean: clip-client undo --from {root}")
    with Store(root.parent / "other") as other:
        apply(planned_copies(root.parent / "also here")[0], other.journal)
    (line,) = said("undo", "--from", root.parent, code=1)
    also = root.parent / "also here"
    assert line.endswith(f"did you mean: clip-client undo --from '{also}', or: clip-client undo --from {root}")
    store = write(root.parent / "new" / "history.sqlite", b"no database").parent
    assert said("undo", "--from", root / QUARANTINE_NAME, "--store", store) == ["1 photo restored"]
    assert copy.exists()


def test_undo_without_a_store_names_the_quarantine_of_another_store(copy: Path, root: Path, said: Said) -> None:
    """As after the loss of the store, or on another computer."""
    store = ["--store", str(root.parent / "new")]
    other = (
        "Nothing in the quarantine of this store came from this path; there is a quarantine of another store: "
        f"clip-client undo --from {root}"
    )
    for path in (copy, root, root.parent):
        assert said("undo", path, *store, code=1) == ["0 photos restored", f"not done: {path}: {other}"]
        assert said("undo", "--list", path, *store) == [other]
    apply_in = root / "of this store"
    with Store(root.parent / "new") as new:
        apply(planned_copies(apply_in)[0], new.journal)
    never = apply_in / "never.jpg"  # this store knows the nearest quarantine, but not the one above it
    assert said("undo", never, *store, code=1)[1] == f"not done: {never}: {other}"
    assert said("undo", copy, "--from", root) == ["1 photo restored"]
    known = "Nothing in the quarantine came from this path; --list shows what is there."
    assert said("undo", never, *store, code=1)[1] == f"not done: {never}: {known}"


def undo_command(root: Path) -> None:
    main(["undo", "--from", str(root), "--store", str(root.parent)])


@pytest.mark.timeout(300)  # a fork for each step
@pytest.mark.parametrize("killed", ["apply", "undo"])
def test_a_kill_between_any_two_steps_loses_nothing(kills: Kills, killed: str) -> None:
    """Kill ``apply`` or ``undo --from`` at every step; then ``undo --from`` restores all that is away."""
    for folder in kills.every(1):
        root, store = folder / "root", folder / "history.sqlite"
        found = album(root)
        before, photos = files(root), contents(root)
        if killed == "apply":
            kills.kill(carry_out, planned(found, [root]), store)
            (root / QUARANTINE_NAME).mkdir(exist_ok=True)
        else:
            carry_out(planned(found, [root]), store)
            kills.kill(undo_command, root)
            assert contents(root) >= photos
            undo_command(root)
            with opened(store) as journal:
                assert not journal.entries(IN_QUARANTINE), f"killed before step {kills.step}"
        assert contents(root) >= photos
        if (root / QUARANTINE_NAME).exists():
            assert all(outcome.done for outcome in undo_from(str(root)))
        assert files(root) == before, f"killed before step {kills.step}"
        assert not (root / QUARANTINE_NAME).exists()
        take_back(store)
        assert files(root) == before
    assert kills.step > 15


@pytest.mark.parametrize("state", [State.MOVED, State.PLANNED, State.PURGING])
def test_one_store_on_two_computers_forgets_no_photo_of_the_other(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Both have the same photos at the same paths, as programs that synchronise folders make them."""
    plan, (_, copy) = planned_copies(root)
    with opened(tmp_path / "history.sqlite") as journal:
        apply(plan, journal)
        (entry,) = journal.entries(IN_QUARANTINE)
        journal.set_state(entry, state)
        quarantine = (root / QUARANTINE_NAME).rename(tmp_path / "of the other computer")
        write(copy, b"x")
        with monkeypatch.context() as patch:
            patch.setattr(quarantine_module, "is_this_computer", lambda computer: computer != this_computer())
            for outcomes in (undo(journal), purge(journal, trash=os.unlink)):
                assert all(f"Moved by the computer {platform.node()} to" in one.message for one in outcomes)
            assert [one.state for one in journal.entries(IN_QUARANTINE)] == [state]
            copy.unlink()
            quarantine.rename(root / QUARANTINE_NAME)  # as with a disk that both use
            assert [outcome.done for outcome in undo(journal)] == [True]
    assert copy.read_bytes() == b"x"
