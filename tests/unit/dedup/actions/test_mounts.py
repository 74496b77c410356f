"""Moving copies where other file systems are mounted among the photos: real mounts, in their own namespace."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.types import QUARANTINE_NAME, SAME_PIXELS, Metadata
from tests.fixtures.albums import member, opened, planned, report, snapshot, without_access, write
from tests.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def in_namespace(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose mounts no other process sees; they disappear when it ends."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("mounts need the program unshare (Linux)")
    return subprocess.run(
        [unshare, "--mount", "--user", "--map-root-user", *command], capture_output=True, text=True, cwd=ROOT
    )


def check_on_mounts(check: Callable[[Path], None], folder: Path) -> None:
    """Run ``check`` of this file with a tmpfs mounted at ``folder/root/disk``, and one at ``folder/other``."""
    for name in ("root/disk", "other"):
        (folder / name).mkdir(parents=True)
    mounts = " && ".join(f"mount -t tmpfs none '{folder / name}'" for name in ("root/disk", "other"))
    possible = in_namespace("sh", "-c", f'{mounts} && "$0" -c ""', sys.executable)
    if possible.returncode:
        pytest.skip(f"this user cannot run Python in a namespace with mounts: {possible.stderr.strip()}")
    code = f"from pathlib import Path; from {__name__} import {check.__name__} as check; check(Path({str(folder)!r}))"
    ended = in_namespace("sh", "-c", f'{mounts} && exec "$0" "$@"', sys.executable, "-c", code)
    assert ended.returncode == 0, ended.stderr


def check_copies_below_a_mount(folder: Path) -> None:
    """The copies go to the top of the mount, and come back; the kept photo may be on another file system."""
    root = folder / "root"
    kept = write(root / "1.jpg", b"x")
    copies = [write(root / "2.jpg", b"x"), write(root / "disk" / "a" / "b" / "3.jpg", b"x")]
    before = snapshot(root)
    plan = planned(report(tuple(map(member, [kept, *copies]))), [root])
    assert [move.folder for move in plan.moves] == [str(root), str(root / "disk")]
    with opened(folder / "journal.sqlite") as journal:
        applied = apply(plan, journal, run="run")
        assert [outcome.message for outcome in applied if not outcome.done] == []
        assert (root / "disk" / QUARANTINE_NAME / "run" / "a" / "b" / "3.jpg").read_bytes() == b"x"
        assert [outcome.done for outcome in undo(journal)] == [True, True]
    assert without_access(snapshot(root)) == without_access(before)
    assert not (root / QUARANTINE_NAME).exists()
    assert not (root / "disk" / QUARANTINE_NAME).exists()


def check_hard_links_across_file_systems(folder: Path) -> None:
    """The plan refuses those, and only those; so what it names is what moves."""
    root, other = folder / "root", folder / "other"
    kept, near = write(root / "1.jpg", b"x"), write(root / "2.jpg", b"x")
    far = [write(root / "disk" / "3.jpg", b"x"), write(other / "4.jpg", b"x")]
    found = report(tuple(map(member, [kept, near, *far])))
    plan = planned(found, [root, other], hard_link=True)
    assert [move.duplicate.path for move in plan.moves] == [str(near)]
    assert [skip.photo.path for skip in plan.skipped] == list(map(str, far))
    assert {skip.reason for skip in plan.skipped} == {
        f"The kept photo is on another file system, which a hard link cannot cross: {kept}."
    }
    assert len(planned(found, [root, other]).moves) == 3
    with opened(folder / "journal.sqlite") as journal:
        assert [outcome.done for outcome in apply(plan, journal)] == [True]
    assert near.samefile(kept)


def check_files_that_are_mounts(folder: Path) -> None:
    """A single file may be a mount, and a quarantine, too: nothing can be renamed to or from there."""
    root = folder / "root"
    kept, copy, beside = (write(root / name, b"x") for name in ("1.jpg", "2.jpg", "3.jpg"))
    for name in ("1.xmp", "3.xmp"):
        write(root / name, b"rating")
    mount(write(folder / "other" / "2.jpg", b"x"), copy)
    mount(write(folder / "other" / "3.xmp", b"rating"), root / "3.xmp")
    plan = planned(report(tuple(map(member, [kept, copy, beside]))), [root])
    assert plan.moves == ()
    assert [skip.reason.split(" is ")[0] for skip in plan.skipped] == ["The file", "The sidecar beside it"]
    assert all("a mount point" in skip.reason for skip in plan.skipped)
    deep = [write(root / "deep" / name, b"y") for name in ("1.jpg", "2.jpg")]
    (folder / "other" / "away").mkdir()
    (root / "deep" / QUARANTINE_NAME).mkdir()
    mount(folder / "other" / "away", root / "deep" / QUARANTINE_NAME)
    plan = planned(report(tuple(map(member, deep))), [root / "deep"])
    assert [skip.reason.partition(" is ")[2] for skip in plan.skipped] == [
        "on another file system, and files cannot be renamed across file systems."
    ]


def check_a_mount_of_the_same_device(folder: Path) -> None:
    """The plan cannot see it, and its files move when it is named itself."""
    root = folder / "root"
    kept = write(root / "1.jpg", b"x")
    (root / "bound").mkdir()
    write(folder / "elsewhere" / "2.jpg", b"x")
    mount(folder / "elsewhere", root / "bound")
    found = report((member(kept), member(root / "bound" / "2.jpg")))
    with opened(folder / "journal.sqlite") as journal:
        (outcome,) = apply(planned(found, [root]), journal)
        assert (outcome.done, outcome.message) == (
            False,
            "Its folder is mounted there, and files cannot be renamed across mounts; name that folder itself.",
        )
        assert sorted(path.name for path in (root / "bound").iterdir()) == ["2.jpg"]
        assert not (root / QUARANTINE_NAME).exists()
        assert [outcome.done for outcome in apply(planned(found, [root, root / "bound"]), journal)] == [True]
        assert [outcome.done for outcome in undo(journal)] == [True]


def check_a_read_only_mount(folder: Path) -> None:
    """Root may write to any folder, and to no file system that is mounted read-only: no move and no sidecar."""
    disk = folder / "root" / "disk"
    photos = [write(folder / "root" / "1.jpg", b"x"), write(disk / "2.jpg", b"x")]
    titled = member(write(folder / "root" / "3.jpg", b"y"), tier=SAME_PIXELS, metadata=Metadata(title="Gate"))
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    plan = planned(report(tuple(map(member, photos))), [folder / "root"])
    assert [skip.reason for skip in plan.skipped] == [f"Its file system is mounted read-only: {disk}."]
    plan = planned(report((member(photos[1]), titled)), [folder / "root"], merge_metadata=True)
    assert [skip.reason for skip in plan.skipped] == [
        f"No sidecar can be written beside the kept photo: its file system is mounted read-only: {disk}."
    ]


def mount(source: Path, target: Path) -> None:
    subprocess.run(["mount", "--bind", source, target], check=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts in a namespace exist on Linux only")
@pytest.mark.parametrize(
    "check",
    [
        check_copies_below_a_mount,
        check_hard_links_across_file_systems,
        check_files_that_are_mounts,
        check_a_mount_of_the_same_device,
        check_a_read_only_mount,
    ],
)
def test_with_other_file_systems_among_the_photos(tmp_path: Path, check: Callable[[Path], None]) -> None:
    check_on_mounts(check, tmp_path)
