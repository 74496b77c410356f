"""The journal returns what it has written, in this process and in the next one, and knows its computer again."""

import os
import platform
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import clip_client.dedup.store.journal as journal_module
from clip_client.dedup.store import computer
from clip_client.dedup.store.choices import DONE, ChosenPhoto
from clip_client.dedup.store.computer import is_this_computer, name_of, this_computer
from clip_client.dedup.store.journal import Journal, JournalEntry, MovedFile, Sidecar, State
from tests.fixtures.albums import opened

NOT_UTF8 = os.fsdecode(b"/photos/caf\xe9.jpg")


def planned(journal: Journal, *originals: str, run: str = "run", **more: Any) -> JournalEntry:
    files = tuple(MovedFile(original, f"{original}.1", "1", 1, 10**18 + 1, 10**18 - 1) for original in originals)
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


@pytest.fixture(autouse=True)
def no_id_is_remembered() -> Iterator[None]:
    computer._hashed_id.cache_clear()
    yield
    computer._hashed_id.cache_clear()


def become(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, said: str, name: str = "laptop") -> None:
    """Run on a computer of this name whose ``system`` has said its id."""
    (tmp_path / "machine-id").write_text(said)
    registry = SimpleNamespace(
        KEY_READ=1,
        KEY_WOW64_64KEY=2,
        HKEY_LOCAL_MACHINE=3,
        OpenKey=lambda *_: nullcontext(),
        QueryValueEx=lambda *_: (said, 1),
    )
    monkeypatch.setattr(computer, "_MACHINE_ID", tmp_path / ("machine-id" if said else "none"))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=said))
    monkeypatch.setitem(sys.modules, "winreg", registry)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "node", lambda: name)
    computer._hashed_id.cache_clear()


MAC = '+-o J413AP  <class IOPlatformExpertDevice>\n    {\n      "model" = <"Mac14,2">\n      "IOPlatformUUID" = "%s"\n'


@pytest.mark.parametrize(("system", "form"), [("linux", "%s\n"), ("win32", "%s"), ("darwin", MAC)])
def test_a_computer_is_the_same_under_another_name_and_another_one_under_its_name(
    system: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, tmp_path, system, form % ("ab" * 16))
    recorded = this_computer()
    assert "ab" * 16 not in recorded
    become(monkeypatch, tmp_path, system, form % ("ab" * 16), name="dhcp-12")
    assert (is_this_computer(recorded), name_of(recorded)) == (True, "laptop")
    become(monkeypatch, tmp_path, system, form % ("cd" * 16))
    assert not is_this_computer(recorded)
    become(monkeypatch, tmp_path, system, "")
    assert not is_this_computer(recorded)


@pytest.mark.parametrize("said", ["uninitialized\n", ""])
def test_a_computer_without_an_id_and_a_run_of_an_earlier_version_are_known_by_the_name(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, tmp_path, "linux", said)
    recorded = this_computer()
    assert (recorded, name_of(recorded)) == ("laptop", "laptop")
    for now in (said, "ab" * 16):
        become(monkeypatch, tmp_path, "linux", now)
        assert is_this_computer("laptop")
        assert is_this_computer("")
        assert not is_this_computer("desktop")
