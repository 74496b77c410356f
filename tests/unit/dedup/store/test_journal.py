"""The journal returns what it has written, in this process and in the next one."""

import os
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import clip_client.dedup.store.journal as journal_module
from clip_client.dedup.store.choices import DONE, ChosenPhoto
from clip_client.dedup.store.computer import this_computer
from clip_client.dedup.store.journal import Journal, JournalEntry, MovedFile, Sidecar, State
from tests.fixtures.albums import opened

NOT_UTF8 = os.fsdecode(b"/photos/caf\xe9.jpg")


def moved_file(original: str, number: int = 1) -> MovedFile:
    return MovedFile(original, f"{original}.{number}", f"{number}", number, 10**18 + number, 10**18 - number)


def planned(journal: Journal, *originals: str, run: str = "run", **more: Any) -> JournalEntry:
    files = tuple(map(moved_file, originals))
    return journal.plan(JournalEntry(run=run, files=files, **{"kept": "/kept.jpg", "kept_sha256": "ab", **more}))


def test_an_entry_is_read_as_it_was_planned(tmp_path: Path) -> None:
    sidecars = Sidecar(path=NOT_UTF8, sha256="cd", is_ours=True), Sidecar(path="/b.xmp", sha256="", is_ours=False)
    with opened(tmp_path / "history.sqlite") as journal:
        first = planned(journal, NOT_UTF8, "/2.nef", "/1.xmp", kept=NOT_UTF8, method="hardlink", sidecars=sidecars)
        second = planned(journal, "/3.jpg", run="later")
        assert (first.run, first.method, first.state) == ("run", "hardlink", State.PLANNED)
        assert (first.kept, first.kept_sha256) == (NOT_UTF8, "ab")
        assert first.at_ns <= second.at_ns
        assert [file.original for file in first.files] == [NOT_UTF8, "/2.nef", "/1.xmp"]
        assert first.sidecars == sidecars
    with opened(tmp_path / "history.sqlite") as journal:
        assert journal.entries((State.PLANNED,)) == [first, second]


def test_a_commit_is_on_the_disk_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the journal lost an entry in a power failure, the entry's file could not come back from the quarantine."""
    connections: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def remember(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connections.append(connect(*arguments, **named))
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", remember)
    with opened(tmp_path / "history.sqlite"):
        (connection,) = connections
        full = 2  # "PRAGMA synchronous"
        assert connection.execute("PRAGMA synchronous").fetchone() == (full,)
        assert connection.execute("PRAGMA fullfsync").fetchone() == (True,)


def test_a_file_of_the_first_format_gets_what_it_lacks(tmp_path: Path) -> None:
    with opened(tmp_path / "history.sqlite") as journal:
        (choice,) = journal.choices.add([("keep", [ChosenPhoto("/1.jpg", "")])])
        entry = planned(journal, "/1.jpg", choice=choice.id)
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as connection:
        connection.executescript("DROP TABLE runs; DROP TRIGGER move_carries_out_choice; PRAGMA user_version = 1")
    with opened(tmp_path / "history.sqlite") as journal:
        assert journal.entries((State.PLANNED,)) == [entry]
        journal.set_state(entry, State.MOVED)
        assert [one.state for one in journal.choices.all()] == [DONE]
        assert planned(journal, "/2.jpg", run=journal.new_run()).computer == this_computer()


@pytest.mark.parametrize("steps_s", [(0, 0.25, 0.25), (0, -3600, 1), (0, 2, 3600)])
def test_the_names_of_runs_differ_and_sort_whatever_the_clock_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_s: tuple[float, ...]
) -> None:
    """Also those of several processes, and after a run of an earlier version, which recorded only what it moved."""
    moment = datetime(2026, 10, 25, 2, 30, 0, 750_000)
    runs = [f"20261025-023000-{'f' * 8}"]

    class Clock(datetime):
        @classmethod
        def now(cls, *_: Any) -> datetime:  # type: ignore[override]  # the journal asks for the local time
            return moment

    monkeypatch.setattr(journal_module, "datetime", Clock)
    with opened(tmp_path / "history.sqlite") as journal:
        planned(journal, "/1.jpg", run=runs[0])
        planned(journal, "/2.jpg", run="a name that is no time")
    for step_s in steps_s:
        moment += timedelta(seconds=step_s)
        with opened(tmp_path / "history.sqlite") as journal:
            runs.append(journal.new_run())
    assert sorted(set(runs)) == runs
    assert runs[-1] > f"{moment:%Y%m%d-%H%M%S}"
    assert [len(name.rpartition("-")[2]) for name in runs] == [8] * 4
