"""Moving copies where other file systems are mounted among the photos: real mounts, in a namespace of their own.

``test_quarantine.py`` shows without mounts what else is refused for them.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clip_client.dedup.types import QUARANTINE_NAME
from tests.fixtures.albums import carry_out, files, member, planned, report, searched, take_back, write
from tests.paths import ROOT


def check(root: Path) -> None:
    """Move copies to the top of each mount and back: ``disk`` is a tmpfs, and ``bound`` a folder of the same device."""
    journal, bound = root.with_name("history.sqlite"), root / "bound"
    far = root / "disk" / "a" / "b" / "3.jpg"
    found = report(tuple(member(write(path, b"x")) for path in (root / "1.jpg", root / "2.jpg", far, bound / "4.jpg")))
    before = files(root)
    plan = planned(found, [root])
    assert [move.folder for move in plan.moves] == [str(root), str(root / "disk"), str(root)]
    # The plan cannot see that the folder is mounted, and its files move if it is named itself.
    refused = "Its folder is mounted there, and files cannot be renamed across mounts; name that folder itself."
    assert [one.message for one in carry_out(plan, journal) if not one.done] == [refused]
    assert [path.name for path in bound.iterdir()] == ["4.jpg"]
    assert [path.name for path in (root / "disk" / QUARANTINE_NAME).rglob("*.jpg")] == ["3.jpg"]
    assert all(one.done for one in take_back(journal))
    assert all(one.done for one in carry_out(planned(found, [root, bound]), journal))
    assert [path.name for path in bound.rglob("*.jpg")] == ["4.jpg"]
    assert all(one.done for one in take_back(journal))
    assert files(root) == before
    assert not any(root.rglob(QUARANTINE_NAME))
    # A link leads to a file, whatever path it names.
    for name in ("1.nef", "2.nef"):
        write(bound / name, b"y")
    (root / "link").symlink_to(root.with_name("elsewhere") / "2.nef")
    (skip,) = planned(searched(bound, root / "link"), [bound]).skipped
    assert skip.reason == f"It is the target of a link, which would break: {root / 'link'}."


def check_overlay(root: Path) -> None:
    """Move copies of a layer on another device, whose files have that device's number, and back."""
    journal, photos = root.with_name("history.sqlite"), [root / "a" / "1.jpg", root / "a" / "2.jpg"]
    assert photos[0].stat().st_dev != photos[0].parent.stat().st_dev
    before = files(root)
    plan = planned(report(tuple(map(member, photos))), [root])
    assert [move.folder for move in plan.moves] == [str(root)]
    assert all(one.done for one in carry_out(plan, journal))
    assert [path.name for path in (root / QUARANTINE_NAME).rglob("*.jpg")] == ["2.jpg"]
    assert all(one.done for one in take_back(journal))
    assert files(root) == before


in_a_namespace = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="mounts in a namespace exist on Linux only"
)


@in_a_namespace
def test_with_other_file_systems_among_the_photos(root: Path, tmp_path: Path) -> None:
    for folder in (root / "disk", root / "bound", tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
    mounts = f"mount -t tmpfs none '{root}/disk' && mount --bind '{tmp_path}/elsewhere' '{root}/bound'"
    run_with(mounts, "check", root)


@in_a_namespace
def test_photos_on_an_overlay(root: Path, tmp_path: Path) -> None:
    for name in ("1.jpg", "2.jpg"):
        write(tmp_path / "lower" / "a" / name, b"x")
    for folder in (root, tmp_path / "disk"):
        folder.mkdir(exist_ok=True)
    layers = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/disk/upper,workdir={tmp_path}/disk/work"
    disk = f"mount -t tmpfs none '{tmp_path}/disk' && mkdir '{tmp_path}/disk/upper' '{tmp_path}/disk/work'"
    run_with(f"{disk} && mount -t overlay none -o '{layers}' '{root}'", "check_overlay", root)


def run_with(mounts: str, checking: str, root: Path) -> None:
    """Run a function of this module with mounts that a shell makes."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("mounts need the program unshare (Linux)")
    code = f"import sys; from pathlib import Path; from {__name__} import {checking}; {checking}(Path(sys.argv[1]))"
    for script, arguments in ((f'{mounts} && "$0" -c ""', ()), (f'{mounts} && exec "$0" "$@"', ("-c", code, root))):
        # No other process sees the mounts, which disappear when the command ends.
        command = [unshare, "--mount", "--user", "--map-root-user", "sh", "-c", script, sys.executable, *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if ended.returncode and not arguments:
            pytest.skip(f"this user cannot run Python in a namespace with mounts: {ended.stderr.strip()}")
    assert ended.returncode == 0, ended.stderr
