"""Links and mounts among the searched files: no link is left dangling, and no file moves to another file system."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clip_client.dedup import scan
from clip_client.dedup.actions.plan import Plan
from clip_client.dedup.types import QUARANTINE_NAME
from tests.fixtures.albums import carry_out, files, member, planned, report, searched, take_back, write
from tests.paths import ROOT


def copies(root: Path, *names: str) -> list[Path]:
    return [write(root / name, b"bytes") for name in names]


def moved(plan: Plan) -> list[str]:
    return [os.path.basename(move.duplicate.path) for move in plan.moves]


def assert_no_link_dangles_after(plan: Plan, root: Path) -> None:
    assert all(outcome.done for outcome in carry_out(plan, root.with_name("history.sqlite")))
    assert [path for path in root.rglob("*") if path.is_symlink() and not path.exists()] == []


def chain_of_links(root: Path) -> None:
    (root / "z").symlink_to("2.nef")
    (root / "link.nef").symlink_to("z")


def link_through_a_link_to_a_folder(root: Path) -> None:
    (root / "same").symlink_to(".")
    (root / "deep").mkdir()
    (root / "deep" / "link.nef").symlink_to("../same/2.nef")


def link_to_a_sidecar(root: Path) -> None:
    for name in ("1.xmp", "2.xmp"):
        write(root / name, b"rating")
    (root / "shared.xmp").symlink_to("2.xmp")


@pytest.mark.parametrize(
    "make",
    [
        lambda root: (root / "link.nef").symlink_to("2.nef"),
        lambda root: (root / "cover").symlink_to(root / "2.nef"),
        chain_of_links,
        link_through_a_link_to_a_folder,
        link_to_a_sidecar,
    ],
)
def test_the_target_of_a_link_stays_and_the_reason_names_the_link(root: Path, make: Callable[[Path], None]) -> None:
    copies(root, "1.nef", "2.nef", "3.nef")
    make(root)
    found = searched(root)
    assert [group.keep for group in found.groups] == [str(root / "1.nef")]
    plan = planned(found, [root])
    assert moved(plan) == ["3.nef"]
    (skip,) = plan.skipped
    _, breaks, link = skip.reason.removesuffix(".").partition("is the target of a link, which would break: ")
    assert (bool(breaks), Path(link).is_symlink()) == (True, True)
    assert_no_link_dangles_after(plan, root)


def test_a_link_in_a_reference_folder_counts_too(root: Path, tmp_path: Path) -> None:
    (copy,) = copies(root, "2.nef")
    copies(tmp_path / "reference", "1.nef")
    (tmp_path / "reference" / "link.nef").symlink_to(copy)
    plan = planned(searched(root, references=[tmp_path / "reference"]), [root])
    assert moved(plan) == []
    assert str(tmp_path / "reference" / "link.nef") in plan.skipped[0].reason


def test_a_folder_that_a_link_leads_to_stays_while_its_copies_move(root: Path) -> None:
    copies(root, "1.nef", "album/2.nef")
    (root / "latest").symlink_to("album")
    plan = planned(searched(root), [root])
    assert moved(plan) == ["2.nef"]
    assert_no_link_dangles_after(plan, root)


# Files that only a link reaches.


@pytest.mark.parametrize(("link", "to"), [("a.nef", "x.nef"), ("a", ".")])
@pytest.mark.parametrize("keep", [["name"], ["path=*/a*"], ["oldest"]])
def test_a_link_out_of_the_folders_is_not_kept_instead_of_a_file_inside(
    root: Path, tmp_path: Path, link: str, to: str, keep: list[str]
) -> None:
    """The file outside may go away at any time; its name and its age must not make it the one that is kept."""
    write(tmp_path / "outside" / "x.nef", b"bytes", 10**18)
    copies(root, "inside.nef", "second.nef")
    (root / link).symlink_to(tmp_path / "outside" / to)
    found = searched(root, follow_links=True, keep=keep)
    (group,) = found.groups
    assert (group.keep, len(group.members)) == (str(root / "inside.nef"), 3)
    assert moved(planned(found, [root])) == ["second.nef"]
    assert [one.photo.is_by_link for one in group.members] == [False, False, True]


def test_a_plan_moves_nothing_for_the_sake_of_a_file_that_only_a_link_reaches(root: Path) -> None:
    kept, copy = copies(root, "1.jpg", "2.jpg")
    found = report((member(kept, is_by_link=True), member(copy)))
    plan = planned(found, [root])
    assert plan.moves == ()
    assert plan.skipped[0].reason == f"The kept photo is a link to a file that was not searched: {kept}."


def test_what_is_named_by_a_link_is_searched_like_any_folder(tmp_path: Path) -> None:
    """The result is the same if the walk finds another link to the same folder."""
    copies(tmp_path / "real", "1.nef", "2.nef")
    (tmp_path / "named").symlink_to("real")
    (tmp_path / "album").mkdir()
    (tmp_path / "album" / "also").symlink_to("../real")
    found = searched(tmp_path / "album", tmp_path / "named", follow_links=True)
    assert not any(one.photo.is_by_link for group in found.groups for one in group.members)
    assert moved(planned(found, [tmp_path / "album", tmp_path / "named"])) == ["2.nef"]


# Hard links, and sidecars that are links.


def test_of_two_hard_links_the_one_that_no_link_leads_to_names_the_file(root: Path, tmp_path: Path) -> None:
    (inside,) = copies(root, "z/1.nef")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "1.nef").hardlink_to(inside)
    (root / "a").symlink_to(tmp_path / "outside")
    found = scan([root], raw=True, follow_links=True)
    assert (found.photos, found.only_by_link) == ((str(inside),), frozenset())


@pytest.mark.parametrize("where", ["root", "elsewhere"])
def test_a_file_with_another_hard_link_stays_because_its_bytes_would(root: Path, tmp_path: Path, where: str) -> None:
    """Another name of the kept file is not a reason to leave its copies."""
    kept, linked, _ = copies(root, "1.nef", "2.nef", "3.nef")
    (tmp_path / where).mkdir(exist_ok=True)
    (tmp_path / where / "other name.nef").hardlink_to(linked)
    os.utime(kept, ns=(0, 10**18))
    (root / "0 other name.nef").hardlink_to(kept)
    found = searched(root)
    plan = planned(found, [root])
    assert moved(plan) == ["3.nef"]
    assert [skip.reason for skip in plan.skipped] == ["It has 2 names (hard links), so moving one would free no space."]
    assert (plan.size_bytes, found.groups[0].spare_bytes[0]) == (5, 5)


def test_a_sidecar_that_is_a_link_keeps_its_photo(root: Path) -> None:
    """The link would be left behind, or would lead nowhere from its place in the quarantine."""
    copies(root, "1.nef", "2.nef")
    write(root / "1.xmp", b"rating")
    (root / "2.xmp").symlink_to("1.xmp")
    plan = planned(searched(root), [root])
    assert moved(plan) == []
    assert plan.skipped[0].reason == "The sidecar beside it is a link or not a regular file."


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
