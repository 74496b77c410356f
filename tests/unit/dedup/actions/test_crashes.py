"""Moving copies away and back in processes that are killed between any two steps: over real files."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.actions.purge import purge
from clip_client.dedup.store.journal import IN_QUARANTINE, State
from clip_client.dedup.types import QUARANTINE_NAME
from tests.fixtures.albums import album, member, opened, planned, report, snapshot, without_access, write
from tests.fixtures.crashes import IN_MEMORY, contents, fork_and_kill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clip_client.dedup.actions.plan import Plan

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are killed by way of fork"),
    # Hundreds of forks in a test: 106 s on two cores that other work shared by ten.
    pytest.mark.timeout(300),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as name:
        yield Path(name)


@pytest.mark.parametrize("hard_link", [False, True])
def test_a_kill_between_any_two_steps_loses_nothing(folder: Path, hard_link: bool) -> None:
    """Kill ``apply``, then kill the ``undo`` that follows, at every step each; then undo in peace."""
    step, killed = 0, True
    while killed:
        root, store = folder / f"{step}" / "root", folder / f"{step}" / "journal.sqlite"
        groups = album(root)
        before = snapshot(root)
        plan = planned(groups, [root], hard_link=hard_link)

        def act(store: Path = store, plan: Plan = plan) -> None:
            with opened(store) as journal:
                apply(plan, journal)

        def take_back(store: Path = store) -> None:
            with opened(store) as journal:
                undo(journal)

        killed = fork_and_kill(act, before_step=step)
        assert contents(root) == {data for data, _, _ in before.values()}
        moved = [name for name in before if not (root / name).exists()]
        for group in groups.groups:
            assert Path(group.keep).exists()
        # A second crash, in the recovery or in the undo itself.
        fork_and_kill(take_back, before_step=step % 41)
        assert contents(root) == {data for data, _, _ in before.values()}
        take_back()
        after = snapshot(root)
        assert without_access(after) == without_access(before), f"killed before step {step}"
        assert [after[name] for name in moved] == [before[name] for name in moved], f"killed before step {step}"
        assert not (root / QUARANTINE_NAME).exists(), f"killed before step {step}"
        step += 1
    assert step > 40


def test_a_kill_during_undo_without_hard_links_loses_nothing(folder: Path) -> None:
    """On exFAT and many network shares. A file that takes the name meanwhile stays, too."""

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), source, None, target)

    step, killed = 0, True
    while killed:
        root, store = folder / f"{step}" / "root", folder / f"{step}" / "journal.sqlite"
        for number in range(2):
            write(root / "deep" / f"{number}.nef", b"raw")
        kept, copy = (write(root / "deep" / f"{number}.jpg", b"x") for number in range(2))
        before = snapshot(root)
        with opened(store) as journal:
            apply(planned(report((member(kept), member(copy))), [root]), journal)
        assert not copy.exists()

        def take_back(store: Path = store) -> None:
            os.link = refuse  # type: ignore[assignment]  # the child never gives it back
            with opened(store) as journal:
                undo(journal)

        killed = fork_and_kill(take_back, before_step=step)
        assert contents(root) == {data for data, _, _ in before.values()}
        taken = step % 2 and not copy.exists()
        if taken:
            write(copy, b"new")
        fork_and_kill(take_back, before_step=10**6)
        if taken:
            assert copy.read_bytes() == b"new"
            copy.unlink()
            fork_and_kill(take_back, before_step=10**6)
        assert without_access(snapshot(root)) == without_access(before), f"killed before step {step}"
        assert not (root / QUARANTINE_NAME).exists(), f"killed before step {step}"
        step += 1
    assert step > 15


def test_a_purge_after_a_kill_during_undo_parts_no_photo_from_its_companions(folder: Path) -> None:
    """The journal says that files are coming back before the first of them does, so purge completes that first."""
    step, killed = 0, True
    while killed:
        root, store = folder / f"{step}" / "root", folder / f"{step}" / "journal.sqlite"
        for number in range(2):
            write(root / f"{number}.nef", b"raw")
            write(root / f"{number}.xmp", b"<x/>")
        kept, copy = (write(root / f"{number}.jpg", b"x") for number in range(2))
        with opened(store) as journal:
            apply(planned(report((member(kept), member(copy))), [root]), journal)

        def take_back(store: Path = store) -> None:
            with opened(store) as journal:
                undo(journal)

        killed = fork_and_kill(take_back, before_step=step)
        with opened(store) as journal:
            purge(journal, trash=os.unlink)
        left = {path.name for path in root.glob("1.*")}
        assert left in (set(), {"1.jpg", "1.nef", "1.xmp"}), f"killed before step {step}"
        step += 1
    assert step > 15


@pytest.mark.parametrize("again", [False, True])
def test_a_kill_during_purge_keeps_what_is_not_in_the_trash(folder: Path, again: bool) -> None:
    step, killed = 0, True
    while killed:
        root, store = folder / f"{step}" / "root", folder / f"{step}" / "journal.sqlite"
        trash = folder / f"{step}" / "trash"
        trash.mkdir(parents=True)
        groups = album(root)
        before = snapshot(root)
        with opened(store) as journal:
            apply(planned(groups, [root]), journal)

        def into_trash(path: str, trash: Path = trash) -> None:
            os.rename(path, trash / os.path.basename(path))

        def act(store: Path = store, into: Callable[[str], None] = into_trash) -> None:
            with opened(store) as journal:
                purge(journal, trash=into)

        killed = fork_and_kill(act, before_step=step)
        with opened(store) as journal:
            if again:
                purge(journal, trash=into_trash)
            else:
                undo(journal)
            assert journal.entries((State.MOVED,)) == []
        assert not (root / QUARANTINE_NAME).exists(), f"killed before step {step}"
        assert contents(root) | contents(trash) == {data for data, _, _ in before.values()}
        step += 1


steps = st.lists(
    st.tuples(
        st.sampled_from(["apply", "undo all", "undo run", "undo file", "purge", "edit", "delete", "add"]),
        st.integers(0, 5),
        st.one_of(st.none(), st.integers(0, 60)),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(steps=steps)
def test_nothing_is_ever_lost_but_by_the_person(steps: list[tuple[str, int, int | None]]) -> None:
    """Any sequence of runs, crashes, undos, purges and meddling.

    What must be true after each step: all bytes that the person has not destroyed are under the root or in the trash;
    every content has a readable file outside quarantine and trash; nothing outside the root has changed.
    """
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        root, store, trash = Path(folder, "root"), Path(folder, "journal.sqlite"), Path(folder, "trash")
        trash.mkdir()
        outside = write(Path(folder, "outside", "copy.jpg"), b"0")
        for number in range(6):
            write(root / f"{number % 2}" / f"{number}.jpg", str(number % 2).encode())
        for action, which, crash in steps:
            act = lambda action=action, which=which: _step(action, which, root, store, trash)  # noqa: E731
            fork_and_kill(act, before_step=10**6 if crash is None or action in ("edit", "delete", "add") else crash)
            shown = {data for name, (data, _, _) in snapshot(root).items() if QUARANTINE_NAME not in name}
            assert {b"0", b"1"} <= shown
            assert outside.read_bytes() == b"0"
        with opened(store) as journal:
            undo(journal)
        hidden = [name for name in snapshot(root) if QUARANTINE_NAME in name]
        with opened(store) as journal:
            known = {file.quarantined for entry in journal.entries((State.MOVED,)) for file in entry.files}
        assert {str(root / name) for name in hidden} <= known


def _step(action: str, which: int, root: Path, store: Path, trash: Path) -> None:
    present = sorted(path for path in root.rglob("*.jpg") if QUARANTINE_NAME not in str(path))
    groups = [[path for path in present if path.read_bytes() == data] for data in (b"0", b"1")]
    if action in ("edit", "delete", "add"):
        # The person, too, leaves one of each: otherwise there would be nothing to hold the program to.
        of_kind, new = groups[which % 2], root / "0" / f"{which}.jpg"
        if action == "add" and not new.exists():
            write(new, b"0" if which % 2 else b"1")
        elif action != "add" and len(of_kind) > 1:
            of_kind[0].unlink()
            if action == "edit":  # as editors do: in place it would change every hard link of the file
                write(of_kind[0], b"edited %d" % which)
        return
    with opened(store) as journal:
        if action == "apply":
            turned = [files[which % len(files) :] + files[: which % len(files)] for files in groups if len(files) > 1]
            found = report(*(tuple(map(member, files)) for files in turned))
            apply(planned(found, [root], hard_link=bool(which % 2)), journal)
        elif action == "purge":
            purge(journal, trash=lambda path: os.rename(path, trash / f"{len(os.listdir(trash))}"))
        elif action == "undo file":
            path = str(root / f"{which % 2}" / f"{which}.jpg")
            undo(journal, only={entry.id for entry in journal.entries(IN_QUARANTINE, original=path)})
        else:
            entries = journal.entries(IN_QUARANTINE)
            runs = {entry.run for entry in entries if action != "undo run" or entry.run == entries[0].run}
            undo(journal, only={entry.id for entry in entries if entry.run in runs})
