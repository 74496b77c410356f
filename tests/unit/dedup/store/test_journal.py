"""What the journal has written down is what it returns, in this process and in the next one."""

from __future__ import annotations

import os
import sqlite3
from datetime import datetime
from typing import TYPE_CHECKING, Any

from clip_client.dedup.store.journal import IN_QUARANTINE, Journal, JournalEntry, MovedFile, Sidecar, State, new_run
from tests.fixtures.albums import opened

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

STATES = (State.PLANNED, State.MOVED, State.ABANDONED, State.RESTORING, State.RESTORED, State.PURGING, State.PURGED)
NOT_UTF8 = os.fsdecode(b"/photos/caf\xe9.jpg")


def moved_file(original: str, number: int = 1) -> MovedFile:
    return MovedFile(
        original=original,
        quarantined=f"{original}.{number}",
        sha256=f"{number}",
        size_bytes=number,
        atime_ns=10**18 + number,
        mtime_ns=10**18 - number,
    )


def planned(journal: Journal, *originals: str, run: str = "run", **more: Any) -> JournalEntry:
    given: dict[str, Any] = {"method": "quarantine", "kept": "/kept.jpg", "kept_sha256": "ab", **more}
    return journal.plan(run=run, files=list(map(moved_file, originals)), **given)


def test_an_entry_is_read_as_it_was_planned(tmp_path: Path) -> None:
    sidecars = [Sidecar(path=NOT_UTF8, sha256="cd", is_ours=True), Sidecar(path="/b.xmp", sha256="", is_ours=False)]
    with opened(tmp_path / "journal.sqlite") as journal:
        first = planned(journal, NOT_UTF8, "/2.nef", "/1.xmp", kept=NOT_UTF8, method="hardlink", sidecars=sidecars)
        second = planned(journal, "/3.jpg", run="later")
        assert (first.run, first.method, first.state) == ("run", "hardlink", State.PLANNED)
        assert (first.kept, first.kept_sha256) == (NOT_UTF8, "ab")
        assert first.at_ns <= second.at_ns
        assert [file.original for file in first.files] == [NOT_UTF8, "/2.nef", "/1.xmp"]
        assert first.sidecars == tuple(sidecars)
    with opened(tmp_path / "journal.sqlite") as journal:
        assert journal.entries((State.PLANNED,)) == [first, second]


def test_entries_are_selected_by_state_run_and_old_path(journal: Journal) -> None:
    entries = {}
    for state in STATES:
        for run in ("one", "other"):
            entries[state, run] = journal.set_state(planned(journal, "/1.jpg", f"/{state}.xmp", run=run), state)
            assert entries[state, run].state == state
    for state in STATES:
        both = [entries[state, "one"], entries[state, "other"]]
        assert journal.entries((state,)) == both
        assert journal.entries((state,), run="other") == both[1:]
        assert journal.entries(STATES, original=f"/{state}.xmp") == both
        assert journal.entries(STATES, run="one", original=f"/{state}.xmp") == both[:1]
    assert journal.entries(STATES, original="/1.jpg") == list(entries.values())
    assert journal.entries(STATES, original="/2.jpg") == journal.entries(STATES, run="a third") == []
    assert {entry.state for entry in journal.entries(IN_QUARANTINE)} == {
        State.PLANNED,
        State.MOVED,
        State.RESTORING,
        State.PURGING,
    }


def test_a_sidecar_is_needed_by_each_entry_that_is_not_back(journal: Journal) -> None:
    """What is in the trash needs it for good."""
    ours = Sidecar(path=NOT_UTF8, sha256="cd", is_ours=True)
    entries = {state: journal.set_state(planned(journal, "/1.jpg", sidecars=[ours]), state) for state in STATES}
    planned(journal, "/2.jpg", sidecars=[Sidecar(path="/other.xmp", sha256="cd", is_ours=True)])
    needed_by = [state for state in STATES if state not in (State.RESTORED, State.ABANDONED)]
    assert journal.sidecars(NOT_UTF8) == [(entries[state].id, ours) for state in needed_by]


def test_a_commit_is_on_the_disk_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure, a file in the quarantine that the journal does not know could not come back."""
    connections: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def remember(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connections.append(connect(*arguments, **named))
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", remember)
    with opened(tmp_path / "journal.sqlite"):
        (connection,) = connections
        full = 2  # "PRAGMA synchronous"
        assert connection.execute("PRAGMA synchronous").fetchone() == (full,)


def test_the_names_of_runs_differ_and_sort_by_time() -> None:
    before = datetime.now().replace(microsecond=0)
    first, second = new_run(), new_run()
    moment, letters = first.rsplit("-", 1)
    assert before <= datetime.strptime(moment, "%Y%m%d-%H%M%S") <= datetime.now()
    assert len(letters) == 8
    assert first != second
