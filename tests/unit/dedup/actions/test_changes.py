"""What has changed since the plan, or changes during the move, stays or comes back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from clip_client.dedup.actions.apply import apply
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal, State
from clip_client.dedup.types import QUARANTINE_NAME
from tests.fixtures.albums import copies, planned, planned_copies, snapshot, without_access, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def replace_by_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def link_to_the_kept_photo(path: Path) -> None:
    path.unlink()
    path.hardlink_to(path.with_name("1.jpg"))


KEPT_CHANGED = "The kept photo has changed or can no longer be read."
CHANGES: list[tuple[str, Callable[[Path], object], str]] = [
    ("2.jpg", lambda path: path.write_bytes(b"y"), "It has changed since it was compared."),
    ("2.jpg", lambda path: path.write_bytes(b""), "It has changed since it was compared."),
    ("2.jpg", replace_by_a_link, "It is no longer a regular file."),
    ("2.jpg", link_to_the_kept_photo, "It is the kept photo itself under another name."),
    ("2.nef", replace_by_a_link, "It is no longer a regular file."),
    ("2.jpg", os.unlink, "The system refuses: No such file or directory."),
    ("1.jpg", os.unlink, KEPT_CHANGED),
    ("1.jpg", lambda path: path.write_bytes(b""), KEPT_CHANGED),
    ("1.jpg", lambda path: path.write_bytes(b"y"), KEPT_CHANGED),
    *(
        (name, change, f"The {kind} beside it is damaged, or differs from that of the kept photo.")
        for kind, both in (("RAW file", ("1.nef", "2.nef")), ("sidecar", ("1.xmp", "2.xmp")))
        for name in both
        for change in (lambda path: path.write_bytes(b"longer"), lambda path: path.write_bytes(b"war"))
    ),
    ("1.nef", os.unlink, "The RAW file beside it is damaged, or differs from that of the kept photo."),
    ("1.xmp", os.unlink, "The sidecar beside it is damaged, or differs from that of the kept photo."),
]


@pytest.mark.parametrize(("name", "change", "sentence"), CHANGES)
def test_what_changes_after_the_plan_stays_and_says_why(
    tmp_path: Path, journal: Journal, name: str, change: Callable[[Path], object], sentence: str
) -> None:
    """The sidecars are empty: one that is gone is no copy of them."""
    root = tmp_path / "r"
    for number in (1, 2):
        write(root / f"{number}.nef", b"raw")
        write(root / f"{number}.xmp", b"")
    plan, _ = planned_copies(root)
    assert len(plan.moves) == 1
    change(root / name)
    before = snapshot(root)
    (outcome,) = apply(plan, journal)
    assert (outcome.done, outcome.message) == (False, sentence)
    assert without_access(snapshot(root)) == without_access(before)
    assert journal.entries(IN_QUARANTINE) == []


@pytest.mark.parametrize("name", ["2.jpg", "2.nef"])
@pytest.mark.parametrize("data", [b"longer", b"y"])
def test_a_file_that_is_written_to_during_the_move_comes_back(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes
) -> None:
    root = tmp_path / "r"
    for number in (1, 2):
        write(root / f"{number}.nef", b"z")
    plan, _ = planned_copies(root)
    rename = os.rename

    def write_and_rename(source: str, target: str) -> None:
        if os.path.basename(source) == name:
            (root / name).write_bytes(data)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", write_and_rename)
        (outcome,) = apply(plan, journal)
    assert (outcome.done, outcome.message) == (False, "It changed during the move, and is back.")
    assert (root / name).read_bytes() == data
    assert sorted(os.listdir(root)) == ["1.jpg", "1.nef", "2.jpg", "2.nef"]
    assert len(journal.entries((State.ABANDONED,))) == 1


def test_what_a_program_saves_in_the_moment_of_the_move_is_not_lost(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Editors write a new file and rename it onto the old name: also between two of our own steps."""
    plan, (_, copy) = planned_copies(tmp_path / "r")
    unlink, rename = os.unlink, os.rename

    def save() -> None:
        if not (tmp_path / "saved").exists():
            write(tmp_path / "saved", b"")
            os.replace(write(tmp_path / "new", b"edited"), copy)

    def unlink_later(path: str) -> None:
        save()
        unlink(path)

    def rename_later(source: str, target: str) -> None:
        save()
        rename(source, target)

    monkeypatch.setattr(os, "unlink", unlink_later)
    monkeypatch.setattr(os, "rename", rename_later)
    (outcome,) = apply(plan, journal)
    assert (outcome.done, copy.read_bytes()) == (False, b"edited")


def append_and_set_the_time_back(kept: Path) -> None:
    times = kept.stat()
    kept.write_bytes(b"xy")
    os.utime(kept, ns=(times.st_atime_ns, times.st_mtime_ns))


def replace_by_a_file_of_the_same_size_and_time(kept: Path) -> None:
    times = kept.stat()
    new = write(kept.with_name("new"), b"y")
    os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(new, kept)


@pytest.mark.parametrize("hard_link", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        os.unlink,
        lambda kept: kept.write_bytes(b"edited"),
        lambda kept: kept.write_bytes(b"y"),
        append_and_set_the_time_back,
        replace_by_a_file_of_the_same_size_and_time,
    ],
)
def test_a_kept_photo_that_changes_during_the_move_brings_the_copy_back(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object], hard_link: bool
) -> None:
    """As a search with another store does that keeps the copy, and moves what this one keeps."""
    found, (kept, copy) = copies(tmp_path / "r")
    plan = planned(found, [tmp_path / "r"], hard_link=hard_link)
    rename = os.rename

    def change_and_rename(source: str, target: str) -> None:
        rename(source, target)
        change(kept)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", change_and_rename)
        (outcome,) = apply(plan, journal)
    said = "The kept photo disappeared or changed during the move, so this one is back."
    assert (outcome.done, outcome.message) == (False, said)
    assert copy.read_bytes() == b"x"
    assert journal.entries(IN_QUARANTINE) == []
    assert not (tmp_path / "r" / QUARANTINE_NAME).exists()
