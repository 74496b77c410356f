"""Moving copies away and back in processes that are killed between any two steps: over real files."""

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clip_client.dedup import DuplicateReport
from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.actions.purge import purge
from clip_client.dedup.store.journal import IN_QUARANTINE, State
from clip_client.dedup.types import QUARANTINE_NAME
from tests.fixtures.albums import (
    carry_out,
    member,
    opened,
    planned,
    refusing,
    report,
    snapshot,
    take_back,
    without_access,
    write,
)
from tests.fixtures.crashes import IN_MEMORY, Kills, contents, fork_and_kill

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are killed by way of fork"),
    # Hundreds of forks in a test: 106 s on two cores that other work shared by ten.
    pytest.mark.timeout(300),
]


def few_copies(root: Path) -> DuplicateReport:
    """Two copies of a photo that share a companion, in a private folder: the fewest files for which each step differs.

    The companion moves with the second one, and comes back with the first one that does.
    """
    for name in ("kept.mov", "deep/1.mov"):
        write(root / name, b"film")
    paths = [write(root / name, b"x", 10**18) for name in ("kept.jpg", "deep/1.jpg", "deep/1.png")]
    (root / "deep").chmod(0o700)
    for folder in (root / "deep", root):
        os.utime(folder, ns=(10**18, 10**18))
    return report(tuple(map(member, paths)))


def folders(root: Path) -> dict[Path, tuple[int, int]]:
    """All folders, their modes and the times of their last change."""
    every = [root, *(path for path in root.rglob("*") if path.is_dir())]
    return {path: (path.stat().st_mode, path.stat().st_mtime_ns) for path in every}


@pytest.mark.parametrize("has_links", [True, False])
def test_a_kill_between_any_two_steps_loses_nothing(
    kills: Kills, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    """Kill ``apply``, then kill the ``undo`` that follows, at every step each; then undo in peace.

    Also on a file system without hard links, such as exFAT and many network shares.
    """
    if not has_links:
        monkeypatch.setattr(os, "link", refusing(os.link, OSError(errno.EPERM, os.strerror(errno.EPERM))))
    for folder in kills.every(1 if has_links else 2):
        root, journal = folder / "root", folder / "history.sqlite"
        (group,) = few_copies(root).groups
        before, photos, around = snapshot(root), contents(root), folders(root)
        kills.kill(carry_out, planned(report(group.members), [root]), journal)
        assert contents(root) == photos
        moved = [name for name in before if not (root / name).exists()]
        assert Path(group.keep).exists()
        # A second crash, in the recovery or in the undo itself.
        fork_and_kill(take_back, journal, before_step=kills.step % 29)
        assert contents(root) == photos
        take_back(journal)
        after = snapshot(root)
        assert without_access(after) == without_access(before), f"killed before step {kills.step}"
        assert [after[name] for name in moved] == [before[name] for name in moved], f"killed before step {kills.step}"
        assert folders(root) == around, f"killed before step {kills.step}"
    assert kills.step > 20


def purge_into(trash: Path, store: Path) -> None:
    with opened(store) as journal:
        purge(journal, trash=lambda path: os.rename(path, trash / os.path.basename(path)))


@pytest.mark.parametrize("again", [False, True])
def test_a_kill_during_purge_keeps_what_is_not_in_the_trash(kills: Kills, again: bool) -> None:
    for folder in kills.every(1):
        root, store, trash = folder / "root", folder / "history.sqlite", folder / "trash"
        trash.mkdir(parents=True)
        carry_out(planned(few_copies(root), [root]), store)
        files, around = len(snapshot(root)), folders(root)
        around = {path: facts for path, facts in around.items() if QUARANTINE_NAME not in path.parts}
        kills.kill(purge_into, trash, store)
        if again:
            purge_into(trash, store)
        else:
            take_back(store)
        with opened(store) as journal:
            assert journal.entries((State.MOVED,)) == []
        assert folders(root) == around, f"killed before step {kills.step}"
        assert len(snapshot(root)) + len(snapshot(trash)) == files


steps = st.lists(
    st.tuples(
        st.sampled_from(["apply", "undo all", "undo run", "undo file", "purge", "edit", "delete", "add"]),
        st.integers(0, 5),
        st.one_of(st.none(), st.integers(0, 30)),
        st.sampled_from([False, False, True]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40, deadline=None, derandomize=True)
@example(steps=[("apply", 0, None, False), ("purge", 0, None, True)])
@example(steps=[("apply", 0, None, False), ("undo all", 0, None, True)])
@given(steps=steps)
def test_nothing_is_ever_lost_but_by_the_person(steps: list[tuple[str, int, int | None, bool]]) -> None:
    """Any sequence of runs, crashes, undos, purges and meddling, some of them while the disk is not there.

    What must be true after each step: all bytes that the person has not destroyed are under the root or in the trash;
    every content has a readable file outside quarantine and trash; nothing outside the root has changed.
    """
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        root, store, trash = Path(folder, "root"), Path(folder, "history.sqlite"), Path(folder, "trash")
        trash.mkdir()
        outside = write(Path(folder, "outside", "copy.jpg"), b"0")
        for number in range(6):
            write(root / f"{number % 2}" / f"{number}.jpg", str(number % 2).encode())
        for action, which, crash, is_away in steps:
            if action in ("edit", "delete", "add"):
                meddle(action, which, root)
            else:
                disk = root.rename(Path(folder, "unplugged")) if is_away else root
                fork_and_kill(act, action, which, root, store, trash, before_step=10**6 if crash is None else crash)
                disk.rename(root)
            shown = {data for name, (data, _, _) in snapshot(root).items() if QUARANTINE_NAME not in name}
            assert {b"0", b"1"} <= shown
            assert outside.read_bytes() == b"0"
        take_back(store)
        hidden = [name for name in snapshot(root) if QUARANTINE_NAME in name]
        with opened(store) as journal:
            known = {file.quarantined for entry in journal.entries((State.MOVED,)) for file in entry.files}
        assert {str(root / name) for name in hidden} <= known


def groups_in(root: Path) -> list[list[Path]]:
    present = sorted(path for path in root.rglob("*.jpg") if QUARANTINE_NAME not in str(path))
    return [[path for path in present if path.read_bytes() == data] for data in (b"0", b"1")]


def meddle(action: str, which: int, root: Path) -> None:
    """Do what a person may do, who leaves one of each photo: else there would be nothing to hold the program to."""
    of_kind, new = groups_in(root)[which % 2], root / "0" / f"{which}.jpg"
    if action == "add" and not new.exists():
        write(new, b"0" if which % 2 else b"1")
    elif action != "add" and len(of_kind) > 1:
        of_kind[0].unlink()
        if action == "edit":  # as editors do
            write(of_kind[0], b"edited %d" % which)


def act(action: str, which: int, root: Path, store: Path, trash: Path) -> None:
    with opened(store) as journal:
        if action == "apply":
            groups = groups_in(root)
            turned = [files[which % len(files) :] + files[: which % len(files)] for files in groups if len(files) > 1]
            found = report(*(tuple(map(member, files)) for files in turned))
            apply(planned(found, [root]), journal)
        elif action == "purge":
            purge(journal, trash=lambda path: os.rename(path, trash / f"{len(os.listdir(trash))}"))
        elif action == "undo file":
            path = str(root / f"{which % 2}" / f"{which}.jpg")
            undo(journal, only={entry.id for entry in journal.entries(IN_QUARANTINE, original=path)})
        else:
            entries = journal.entries(IN_QUARANTINE)
            runs = {entry.run for entry in entries if action != "undo run" or entry.run == entries[0].run}
            undo(journal, only={entry.id for entry in entries if entry.run in runs})
