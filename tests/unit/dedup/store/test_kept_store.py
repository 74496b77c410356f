"""A store and a quarantine of commit b5eb4341 open, undo and purge: the options that moved the photos may be gone."""

import hashlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from clip_client._storage.lock import exclusive_lock
from clip_client.cli.main import main
from clip_client.dedup import Store, StoreError
from clip_client.dedup.store.choices import DONE, UNDONE, WAITING, Choice
from clip_client.dedup.store.decisions import DIFFERENT
from clip_client.dedup.store.journal import IN_QUARANTINE, PROOF, JournalEntry, State
from tests.fixtures.commands import Said
from tests.fixtures.crashes import Kills, full_disk
from tests.fixtures.kept_stores import kept_store

AT_FIRST = (
    *("all/grey.jpg", "all/one.jpg", "chosen/grey.jpg", "chosen/one.jpg", "different/grey.jpg", "different/one.jpg"),
    *("edited/grey.jpg", "edited/one.jpg", "exact/one copy.jpg", "exact/one.jpg", "keep/grey.jpg", "keep/one.jpg"),
    *("linked/one.jpg", "linked/two.jpg", "pixels/picture copy.png", "pixels/picture.png"),
    *("rated/plain.jpg", "rated/small rated.jpg", "rules/grey.jpg", "rules/one.jpg"),
)
"""All photos; the last change of each is one second after that of the photo before."""


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return kept_store(tmp_path)


def runs(kept: Path) -> dict[str, str]:
    """Return the folder of photos -> the run that moved its copy."""
    with Store(kept / "store") as store:
        entries = store.journal.entries(IN_QUARANTINE)
    return {os.path.basename(os.path.dirname(entry.kept)): entry.run for entry in entries}


def test_choices_wait_and_rules_are_saved(kept: Path) -> None:
    with Store(kept / "store") as store:
        choices = [(one.photos[0].path, one.what, one.rules, one.state) for one in store.choices.all()]
        rules = store.settings.keep_rules()
    photos = kept / "photos"
    assert choices == [
        (f"{photos}/chosen/one.jpg", "keep", "", DONE),
        (f"{photos}/keep/one.jpg", "keep", "", WAITING),
        (f"{photos}/rules/one.jpg", "keep", "original, act-on=edited", WAITING),
        (f"{photos}/different/one.jpg", "different", "", WAITING),
        (f"{photos}/all/one.jpg", "keep-all", "", WAITING),
    ]
    assert rules == {
        "largest": ("bytes", "smallest", "newest"),
        "mine": (f"folder={photos}/keep", "original", "pixels"),
    }


def test_undo_restores_every_photo(kept: Path, said: Said) -> None:
    assert said("undo", "--store", kept / "store") == ["6 photos restored"]
    photos = kept / "photos"
    found = {str(one.relative_to(photos)): int(one.stat().st_mtime) for one in photos.rglob("*") if one.is_file()}
    assert found == {name: 1_700_000_000 + place for place, name in enumerate(AT_FIRST)}
    assert not (photos / "linked" / "one.jpg").samefile(photos / "linked" / "two.jpg")


def test_purge_of_a_run_with_hard_links_and_what_is_proved_again(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At last each entry has to be proved again, as after a change of the proof, and one kept photo has changed.

    An earlier version moved edited copies unasked, which nothing proves.
    """
    sent: list[str] = []

    def send(path: str) -> None:
        sent.append(path)
        os.unlink(path)

    monkeypatch.setattr("send2trash.send2trash", send)
    linked, run = kept / "photos" / "linked", runs(kept)["linked"]
    assert linked.joinpath("one.jpg").samefile(linked / "two.jpg")
    assert main(["purge", "--yes", "--run", run, "--store", str(kept / "store")]) == 0
    assert list(map(os.path.basename, sent)) == ["two.jpg"]
    assert {path.name for path in linked.iterdir()} == {"one.jpg", "two.jpg"}
    change(kept / "store" / "history.sqlite", "UPDATE units SET proof = 0")
    (kept / "photos" / "pixels" / "picture copy.png").write_bytes(b"changed")
    assert main(["purge", "--yes", "--store", str(kept / "store")]) == 1
    assert {path.split("/photos/")[1].partition("/")[0] for path in sent} == {"chosen", "exact", "linked", "rated"}
    assert sorted(runs(kept)) == ["edited", "pixels"]


def test_suspects_are_listed_and_restored(kept: Path, said: Said) -> None:
    """Each entry has to be proved again, and one kept photo has changed."""
    suspects = ["undo", "--suspects", "--store", kept / "store"]
    change(kept / "store" / "journal.sqlite", "UPDATE units SET proof = 0")
    listed = "".join(said(*suspects, "--list"))
    assert "edited/grey.jpg" in listed
    assert "pixels/picture.png" not in listed
    with Store(kept / "store") as store:
        assert PROOF in {entry.proof for entry in store.journal.entries(IN_QUARANTINE)}
    (kept / "photos" / "pixels" / "picture copy.png").write_bytes(b"changed")
    said(*suspects)
    assert (kept / "photos" / "pixels" / "picture.png").exists()
    assert (kept / "photos" / "edited" / "grey.jpg").exists()
    assert "a remaining photo is proved to show the same picture" in "".join(said(*suspects, "--list"))


# The files of an earlier version are taken over.

EARLIER = {f"{name}.sqlite" for name in ("journal", "choices", "decisions", "settings")}
RENAMED = {
    *("journal-format-3-1.sqlite", "choices-format-2-1.sqlite"),
    *("decisions-format-1-1.sqlite", "settings-format-1-1.sqlite"),
}


def databases(store: Path) -> set[str]:
    return {path.name for path in store.glob("*.sqlite*")}


def content(store: Path) -> tuple[list[JournalEntry], list[Choice]]:
    with Store(store) as opened:
        return opened.journal.entries((State.MOVED,)), list(opened.choices.all())


@pytest.mark.timeout(300)  # about 60 forks, each with a store that is unpacked first
def test_a_kill_while_files_are_taken_over_loses_nothing(kills: Kills) -> None:
    """Nor does it take anything over twice; the files of the earlier version are renamed and not deleted."""
    for folder in kills.every(1):
        folder.mkdir()
        store = kept_store(folder) / "store"
        kills.kill(content, store)
        entries, choices = content(store)
        assert [(one.id, len(one.files)) for one in entries] == [(number, 1) for number in range(1, 7)]
        assert [one.id for one in choices] == list(range(1, 6)), f"killed before step {kills.step}"
        assert databases(store) == RENAMED | {"history.sqlite", "files.sqlite", "copies.sqlite"}
    assert kills.step > 20


def test_what_an_earlier_version_adds_later_is_taken_over_too(kept: Path) -> None:
    store = kept / "store"
    before, _ = content(store)
    again = kept_store(kept / "again") / "store"
    for name in EARLIER:
        (again / name).rename(store / name)
    after, choices = content(store)
    assert after[:6] == before
    assert [one.id for one in after[6:]] == [one.id + 6 for one in before]
    assert [len(one.files) for one in after[6:]] == [len(one.files) for one in before]
    assert [one.sidecars for one in after[6:]] != [()] * 6
    assert [one.id for one in choices] == [*range(1, 6), *range(7, 12)]
    assert len({one.step for one in choices}) == 10
    assert len(RENAMED & databases(store)) == 4
    assert len(databases(store)) == 11


@pytest.mark.parametrize(
    ("state", "of_the_move", "becomes"),
    [
        ("done", State.MOVED, DONE),
        ("done", State.RESTORED, UNDONE),
        ("begun", State.MOVED, DONE),
        ("begun", State.PURGED, DONE),
        ("begun", State.RESTORING, UNDONE),
        ("begun", State.ABANDONED, WAITING),
        ("undone", State.MOVED, UNDONE),
    ],
)
def test_a_choice_that_a_killed_process_left_behind_follows_its_move(
    kept: Path, state: str, of_the_move: str, becomes: str
) -> None:
    store, run = kept / "store", "20261128-134341-bc23f5b7"
    change(store / "choices.sqlite", "UPDATE choices SET state = ? WHERE run = ?", state, run)
    change(store / "journal.sqlite", "UPDATE units SET state = ? WHERE run = ?", of_the_move, run)
    with Store(store) as opened:
        choice, *others = opened.choices.all()
        assert (choice.state, choice.run) == (becomes, "" if becomes == WAITING else run)
        assert {one.state for one in others} == {WAITING}
        (entry,) = opened.journal.entries((of_the_move,), run=run)
        assert entry.choice == (choice.id if state != "undone" else None)


@pytest.mark.parametrize(
    ("state", "is_recorded", "becomes"),
    [("done", True, DONE), ("done", False, UNDONE), ("begun", True, DONE), ("begun", False, WAITING)],
)
def test_a_choice_that_a_killed_process_left_behind_follows_its_decision(
    kept: Path, state: str, is_recorded: bool, becomes: str
) -> None:
    store = kept / "store"
    change(store / "choices.sqlite", "UPDATE choices SET state = ?, run = 'a run' WHERE what = 'different'", state)
    if is_recorded:
        folder = kept / "photos" / "different"
        change(store / "decisions.sqlite", "INSERT INTO decisions VALUES (7, 'different', 1)")
        for path in folder.glob("*.jpg"):
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            change(store / "decisions.sqlite", "INSERT INTO contents VALUES (7, ?)", sha256)
    with Store(store) as opened:
        (choice,) = (one for one in opened.choices.all() if one.what == DIFFERENT)
        assert (choice.state, choice.run) == (becomes, "" if becomes == WAITING else "a run")
        assert [one.choice for one in opened.decisions.all()] == [choice.id] * is_recorded
        opened.decisions.remove([7])
        assert opened.choices.runs(DIFFERENT) == {}


def change(file: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement, values)


def test_processes_that_take_the_same_files_over_at_once_do_so_once(kept: Path) -> None:
    code = "import sys; from clip_client.dedup import Store; assert Store(sys.argv[1]).choices"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(kept / "store")]) for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    entries, choices = content(kept / "store")
    assert (len(entries), len(choices)) == (6, 5)


def test_what_another_process_has_not_yet_written_to_its_file_is_taken_over(kept: Path) -> None:
    """An earlier version still has the file open, and the rows in its write-ahead log."""
    store = kept / "store"
    with closing(sqlite3.connect(store / "choices.sqlite", isolation_level=None)) as earlier:
        earlier.execute("INSERT INTO choices (step, what, at_ns, rules, photos) VALUES (9, 'skip', 1, '', '[]')")
        assert (store / "choices.sqlite-wal").stat().st_size > 0
        assert [one.what for one in content(store)[1]][-1] == "skip"
    with closing(sqlite3.connect(store / "choices-format-2-1.sqlite")) as renamed:
        assert renamed.execute("SELECT count(*) FROM choices").fetchone() == (6,)


@pytest.mark.parametrize(
    ("prevented", "said"),
    [
        (lambda store: full_disk(150_000), r"history\.sqlite cannot be written .*free some space"),
        # An earlier version moves photos.
        (lambda store: exclusive_lock(store / "journal.lock"), "another clip-client is moving files"),
    ],
)
def test_files_are_taken_over_as_soon_as_that_is_possible(
    kept: Path, monkeypatch: pytest.MonkeyPatch, prevented: Callable[[Path], AbstractContextManager[object]], said: str
) -> None:
    monkeypatch.setattr("clip_client.dedup.store.history._WAIT_S", 0)
    store = kept / "store"
    with Store(store) as opened:
        with prevented(store), pytest.raises(StoreError, match=said):
            _ = opened.journal
        assert EARLIER < databases(store)
    assert len(runs(kept)) == 6
