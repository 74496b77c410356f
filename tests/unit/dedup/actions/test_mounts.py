"""Moving copies where other file systems are mounted among the photos: real mounts, in a namespace of their own.

``test_quarantine.py`` shows without mounts what else is refused for them.
"""

from __future__ import annotations

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
    journal, bound = root.with_name("journal.sqlite"), root / "bound"
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
    linked = planned(found, [root], hard_link=True)
    assert [skip.reason.partition(",")[0] for skip in linked.skipped] == ["The kept photo is on another file system"]
    # A link leads to a file, whatever path it names.
    for name in ("1.nef", "2.nef"):
        write(bound / name, b"y")
    (root / "link").symlink_to(root.with_name("elsewhere") / "2.nef")
    (skip,) = planned(searched(bound, root / "link"), [bound]).skipped
    assert skip.reason == f"It is the target of a link, which would break: {root / 'link'}."


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts in a namespace exist on Linux only")
def test_with_other_file_systems_among_the_photos(root: Path, tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("mounts need the program unshare (Linux)")
    for folder in (root / "disk", root / "bound", tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
    mounts = f"mount -t tmpfs none '{root}/disk' && mount --bind '{tmp_path}/elsewhere' '{root}/bound'"
    code = f"import sys; from pathlib import Path; from {__name__} import check; check(Path(sys.argv[1]))"
    for script, arguments in ((f'{mounts} && "$0" -c ""', ()), (f'{mounts} && exec "$0" "$@"', ("-c", code, root))):
        # No other process sees the mounts, which disappear when the command ends.
        command = [unshare, "--mount", "--user", "--map-root-user", "sh", "-c", script, sys.executable, *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if ended.returncode and not arguments:
            pytest.skip(f"this user cannot run Python in a namespace with mounts: {ended.stderr.strip()}")
    assert ended.returncode == 0, ended.stderr
