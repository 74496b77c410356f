"""Sidecars that save metadata: what other programs wrote is neither replaced, nor relied on, nor removed."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from clip_client.dedup.actions.quarantine import CannotMove
from clip_client.dedup.actions.sidecars import (
    SidecarToWrite,
    check_sidecars,
    remaining_sidecars,
    remove_sidecars,
    write_sidecars,
)
from clip_client.dedup.store.journal import Journal, JournalEntry, Sidecar, State
from tests.fixtures.albums import write

if TYPE_CHECKING:
    from pathlib import Path


def to_write(path: Path, data: bytes = b"ours", *, is_ours: bool = True) -> SidecarToWrite:
    return SidecarToWrite(path=str(path), data=data, is_ours=is_ours)


def planned(journal: Journal, *sidecars: Sidecar, run: str = "run") -> JournalEntry:
    return journal.plan(
        run=run, method="quarantine", kept="/kept", kept_sha256="", tier="exact", files=[], sidecars=sidecars
    )


def refusal(sidecar: SidecarToWrite, journal: Journal) -> str:
    with pytest.raises(CannotMove) as raised:
        check_sidecars([sidecar], journal)
    return str(raised.value)


def test_only_what_the_journal_knows_as_ours_is_relied_on(tmp_path: Path, journal: Journal) -> None:
    path = tmp_path / "kept.xmp"
    mine, given = to_write(path), to_write(path, is_ours=False)
    (new,) = check_sidecars([mine], journal)
    assert (new.path, new.is_ours) == (str(path), True)
    assert refusal(given, journal) == f"The kept photo's sidecar is no longer there: {path}."
    written = f"Another program has written the kept photo's sidecar: {path}."
    write(path, b"ours")
    assert refusal(mine, journal) == written  # equal bytes, but nothing tells that they are ours
    (found,) = check_sidecars([given], journal)
    assert found == Sidecar(path=new.path, sha256=new.sha256, is_ours=False)
    planned(journal, found)
    assert refusal(mine, journal) == written
    assert check_sidecars([given], journal) == (found,)
    planned(journal, Sidecar(path=new.path, sha256="of other bytes", is_ours=True))
    assert refusal(mine, journal) == written
    planned(journal, new)
    assert check_sidecars([mine, given], journal) == (new, new)
    write(path, b"other")
    assert refusal(mine, journal) == refusal(given, journal) == written


def test_what_is_missing_is_written_beside_what_is_there(tmp_path: Path, journal: Journal) -> None:
    first, second = tmp_path / "1.xmp", tmp_path / "2.xmp"
    write(first, b"there before")
    write_sidecars([to_write(first), to_write(second)], planned(journal))
    assert (first.read_bytes(), second.read_bytes()) == (b"there before", b"ours")
    assert {path.name for path in tmp_path.glob("*.part")} == set()


def test_a_sidecar_that_another_program_writes_at_the_same_moment_stays(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "kept.xmp", os.link
    entry = planned(journal, *check_sidecars([to_write(path)], journal))

    def link_late(source: str, target: str) -> None:
        write(path, b"of another program")
        link(source, target)

    monkeypatch.setattr(os, "link", link_late)
    with pytest.raises(CannotMove) as raised:
        write_sidecars([to_write(path)], entry)
    assert str(raised.value) == f"Another program has just written {path}."
    assert [draft.name for draft in tmp_path.glob("*.part")] == ["kept.xmp.run.part"]
    remove_sidecars(entry, journal)
    assert path.read_bytes() == b"of another program"
    assert list(tmp_path.glob("*.part")) == []


def test_a_sidecar_goes_when_no_moved_photo_needs_it(tmp_path: Path, journal: Journal) -> None:
    path = tmp_path / "kept.xmp"
    sidecars = check_sidecars([to_write(path)], journal)
    first, second = (planned(journal, *sidecars, run=run) for run in ("1", "2"))
    write_sidecars([to_write(path)], first)
    remove_sidecars(first, journal)
    assert path.exists()
    assert remaining_sidecars(first, journal) == ""  # the second still needs it, so there is nothing to say
    journal.set_state(first, State.RESTORED)
    remove_sidecars(second, journal)
    assert not path.exists()
    assert remaining_sidecars(second, journal) == ""


def test_sidecars_that_cannot_go_are_named(tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them: one was changed, one is in a folder that has become read-only, and one is of another program."""
    paths = [tmp_path / name for name in ("changed.xmp", "stays.xmp", "goes.xmp")]
    other = write(tmp_path / "given.xmp", b"given")
    wanted = [*map(to_write, paths), to_write(other, b"given", is_ours=False)]
    entry = planned(journal, *check_sidecars(wanted, journal))
    write_sidecars(wanted, entry)
    write(paths[0], b"changed")
    unlink = os.unlink

    def refuse(path: str) -> None:
        if path == str(paths[1]):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        remove_sidecars(entry, journal)
    assert [path.exists() for path in (*paths, other)] == [True, True, False, True]
    assert remaining_sidecars(entry, journal) == (
        f"Its sidecar was changed or cannot be removed, and stays: {paths[0]}, {paths[1]}."
    )
