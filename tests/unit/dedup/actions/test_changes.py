"""Moving copies away while other programs and file systems change the photos."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clip_client.dedup.actions.apply import apply
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal, State
from clip_client.dedup.types import QUARANTINE_NAME
from tests.fixtures.albums import copies, files, planned, planned_copies, then, write


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
    root: Path, journal: Journal, name: str, change: Callable[[Path], object], sentence: str
) -> None:
    """The sidecars are empty: a missing sidecar does not equal an empty one."""
    for number in (1, 2):
        write(root / f"{number}.nef", b"raw")
        write(root / f"{number}.xmp", b"")
    plan, _ = planned_copies(root)
    assert len(plan.moves) == 1
    change(root / name)
    before = files(root)
    (outcome,) = apply(plan, journal)
    assert (outcome.done, outcome.message) == (False, sentence)
    assert files(root) == before
    assert journal.entries(IN_QUARANTINE) == []


@pytest.mark.parametrize("name", ["2.jpg", "2.nef"])
@pytest.mark.parametrize("data", [b"longer", b"y"])
def test_a_file_that_is_written_to_during_the_move_comes_back(
    root: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes
) -> None:
    for number in (1, 2):
        write(root / f"{number}.nef", b"z")
    plan, _ = planned_copies(root)
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "rename",
            then(os.rename, lambda old, new: Path(new).write_bytes(data) if os.path.basename(old) == name else None),
        )  # fmt: skip
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
    saves = iter([write(tmp_path / "new", b"edited")])

    def after_a_save(call: Callable[..., None]) -> Callable[..., None]:
        def step(*paths: str) -> None:
            for new in saves:
                os.replace(new, copy)
            call(*paths)

        return step

    for name in ("unlink", "rename"):
        monkeypatch.setattr(os, name, after_a_save(getattr(os, name)))
    (outcome,) = apply(plan, journal)
    assert (outcome.done, copy.read_bytes()) == (False, b"edited")


@pytest.mark.parametrize(
    "change",
    [
        os.unlink,
        lambda kept: kept.write_bytes(b"y"),
        # With the time of before.
        lambda kept: write(kept, b"xy"),
        lambda kept: os.replace(write(kept.with_name("new"), b"y"), kept),
    ],
)
def test_a_kept_photo_that_changes_during_the_move_brings_the_copy_back(
    root: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    """A search with another store may do this: it keeps the copy, and moves the photo that this search keeps."""
    found, (kept, copy) = copies(root)
    plan = planned(found, [root])
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", then(os.rename, lambda *_: change(kept)))
        (outcome,) = apply(plan, journal)
    said = "The kept photo disappeared or changed during the move, so its copy is back."
    assert (outcome.done, outcome.message) == (False, said)
    assert copy.read_bytes() == b"x"
    assert journal.entries(IN_QUARANTINE) == []
    assert not (root / QUARANTINE_NAME).exists()
