"""Sidecars that other programs wrote are neither replaced, nor relied on, nor removed."""

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
from tests.fixtures.albums import write

if TYPE_CHECKING:
    from pathlib import Path

    from clip_client.dedup.store.journal import Journal, JournalEntry, Sidecar


def to_write(path: Path, data: bytes = b"ours", *, is_ours: bool = True) -> SidecarToWrite:
    return SidecarToWrite(path=str(path), data=data, is_ours=is_ours)


def recorded(journal: Journal, *sidecars: Sidecar, run: str = "run") -> JournalEntry:
    return journal.plan(
        run=run, method="quarantine", kept="/kept", kept_sha256="", tier="exact", files=[], sidecars=sidecars
    )


def test_what_is_missing_is_written_beside_what_is_there(tmp_path: Path, journal: Journal) -> None:
    first, second = tmp_path / "1.xmp", tmp_path / "2.xmp"
    write(first, b"there before")
    write_sidecars([to_write(first), to_write(second)], recorded(journal))
    assert (first.read_bytes(), second.read_bytes()) == (b"there before", b"ours")
    assert {path.name for path in tmp_path.glob("*.part")} == set()


def test_a_sidecar_that_another_program_writes_at_the_same_moment_stays(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "kept.xmp", os.link
    entry = recorded(journal, *check_sidecars([to_write(path)], journal))

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


def test_sidecars_that_cannot_go_are_named(tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them: one was changed, one is in a folder that has become read-only, and one is of another program."""
    paths = [tmp_path / name for name in ("changed.xmp", "stays.xmp", "goes.xmp")]
    other = write(tmp_path / "given.xmp", b"given")
    wanted = [*map(to_write, paths), to_write(other, b"given", is_ours=False)]
    entry = recorded(journal, *check_sidecars(wanted, journal))
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
