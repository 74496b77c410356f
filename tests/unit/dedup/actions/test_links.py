"""Links among the searched files: no link is left dangling, and none stands in for a file that is moved away."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clip_client.dedup import scan
from clip_client.dedup.actions.apply import apply
from clip_client.dedup.types import QUARANTINE_NAME, Links
from tests.fixtures.albums import member, opened, planned, report, searched, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from clip_client.dedup.actions.plan import Plan


def dangling(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_symlink() and not path.exists()]


def moved(plan: Plan) -> list[str]:
    return [os.path.basename(move.duplicate.path) for move in plan.moves]


def apply_all(plan: Plan, journal: Path) -> None:
    with opened(journal) as store:
        assert all(outcome.done for outcome in apply(plan, store))


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


@pytest.mark.parametrize("hard_link", [False, True])
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
def test_the_target_of_a_link_stays_and_the_reason_names_the_link(
    tmp_path: Path, make: Callable[[Path], None], hard_link: bool
) -> None:
    root = tmp_path / "root"
    for name in ("1.nef", "2.nef", "3.nef"):
        write(root / name, b"x")
    make(root)
    found = searched(root)
    assert [group.keep for group in found.groups] == [str(root / "1.nef")]
    plan = planned(found, [root], hard_link=hard_link)
    if make is link_to_a_sidecar and hard_link:
        assert moved(plan) == ["2.nef", "3.nef"]  # the sidecar stays beside the name of the photo
    else:
        assert moved(plan) == ["3.nef"]
        (skip,) = plan.skipped
        assert "is the target of a link, which would break: " in skip.reason
        link = skip.reason.partition("break: ")[2].removesuffix(".")
        assert Path(link).is_symlink()
    apply_all(plan, tmp_path / "journal.sqlite")
    assert dangling(root) == []


def test_a_link_in_a_reference_folder_counts_too(tmp_path: Path) -> None:
    root, reference = tmp_path / "root", tmp_path / "reference"
    write(root / "2.nef", b"x")
    write(reference / "1.nef", b"x")
    (reference / "link.nef").symlink_to(root / "2.nef")
    plan = planned(searched(root, references=[reference]), [root])
    assert moved(plan) == []
    assert str(reference / "link.nef") in plan.skipped[0].reason


def test_a_folder_that_a_link_leads_to_stays_while_its_copies_move(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root / "1.nef", b"x")
    write(root / "album" / "2.nef", b"x")
    (root / "latest").symlink_to("album")
    plan = planned(searched(root), [root])
    apply_all(plan, tmp_path / "journal.sqlite")
    assert moved(plan) == ["2.nef"]
    assert dangling(root) == []


@pytest.mark.parametrize(("link", "to"), [("a.nef", "x.nef"), ("a", ".")])
@pytest.mark.parametrize("keep", [["name"], ["path=*/a*"], ["oldest"]])
def test_a_link_out_of_the_folders_is_not_kept_instead_of_a_file_inside(
    tmp_path: Path, link: str, to: str, keep: list[str]
) -> None:
    """The file outside may go away at any time; its name and its age must not make it the one that is kept."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    write(outside / "x.nef", b"x", 10**18)
    write(root / "inside.nef", b"x")
    write(root / "second.nef", b"x")
    (root / link).symlink_to(outside / to)
    found = searched(root, follow_links=True, keep=keep)
    (group,) = found.groups
    assert group.keep == str(root / "inside.nef")
    assert len(group.members) == 3
    plan = planned(found, [root])
    assert moved(plan) == ["second.nef"]
    assert found.links.only_by_link == {group.members[2].path}


def test_a_link_alone_beside_the_file_inside_moves_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(tmp_path / "outside.nef", b"x")
    inside = write(root / "z.nef", b"x")
    (root / "a.nef").symlink_to(tmp_path / "outside.nef")
    found = searched(root)
    assert found.groups[0].keep == str(inside)
    assert found.groups[0].reason == "the other is a link to a file that was not searched"
    assert moved(planned(found, [root])) == []


def test_a_link_into_the_quarantine_is_not_kept_instead_of_a_file(tmp_path: Path) -> None:
    root = tmp_path / "root"
    away = write(root / QUARANTINE_NAME / "run" / "1.nef", b"x")
    inside = write(root / "z.nef", b"x")
    (root / "a.nef").symlink_to(away)
    assert searched(root).groups[0].keep == str(inside)


def test_a_plan_moves_nothing_for_the_sake_of_a_file_that_only_a_link_reaches(tmp_path: Path) -> None:
    kept, copy = write(tmp_path / "root" / "1.jpg", b"x"), write(tmp_path / "root" / "2.jpg", b"x")
    found = report((member(kept), member(copy)), links=Links(only_by_link=frozenset({str(kept)})))
    plan = planned(found, [tmp_path / "root"])
    assert plan.moves == ()
    assert plan.skipped[0].reason == f"The kept photo is a link to a file that was not searched: {kept}."


def test_what_is_named_by_a_link_is_searched_like_any_folder(tmp_path: Path) -> None:
    """Also if the walk finds another link to the same folder."""
    for name in ("1.nef", "2.nef"):
        write(tmp_path / "real" / name, b"x")
    (tmp_path / "named").symlink_to("real")
    (tmp_path / "album").mkdir()
    (tmp_path / "album" / "also").symlink_to("../real")
    found = searched(tmp_path / "album", tmp_path / "named", follow_links=True)
    assert found.links.only_by_link == frozenset()
    assert moved(planned(found, [tmp_path / "album", tmp_path / "named"])) == ["2.nef"]


def test_of_two_hard_links_the_one_that_no_link_leads_to_names_the_file(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    inside = write(root / "z" / "1.nef", b"x")
    outside.mkdir()
    (outside / "1.nef").hardlink_to(inside)
    (root / "a").symlink_to(outside)
    found = scan([root], raw=True, follow_links=True)
    assert found.photos == (str(inside),)
    assert found.links.only_by_link == frozenset()


def test_loops_and_broken_links_are_listed_and_harm_no_move(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("1.nef", "2.nef"):
        write(root / name, b"x")
    (root / "self.nef").symlink_to("self.nef")
    (root / "ping").symlink_to("pong")
    (root / "pong").symlink_to("ping")
    (root / "gone.nef").symlink_to("nowhere.nef")
    found = searched(root)
    assert [os.path.basename(failure.path) for failure in found.failed] == ["gone.nef", "ping", "pong", "self.nef"]
    assert moved(planned(found, [root])) == ["2.nef"]


@pytest.mark.parametrize("where", ["root", "elsewhere"])
def test_a_file_with_another_hard_link_stays_because_its_bytes_would(tmp_path: Path, where: str) -> None:
    root = tmp_path / "root"
    for name in ("1.nef", "2.nef", "3.nef"):
        write(root / name, b"bytes")
    (tmp_path / where).mkdir(exist_ok=True)
    (tmp_path / where / "other name.nef").hardlink_to(root / "2.nef")
    found = searched(root)
    plan = planned(found, [root])
    assert moved(plan) == ["3.nef"]
    assert [skip.reason for skip in plan.skipped] == [
        "It has 2 names (hard links), so moving this one would free no space."
    ]
    assert (plan.size_bytes, found.groups[0].spare_bytes) == (5, 5)


def test_a_hard_link_of_the_kept_file_is_no_reason_to_leave_its_copies(tmp_path: Path) -> None:
    root = tmp_path / "root"
    kept, _copy = write(root / "1.nef", b"x", 10**18), write(root / "2.nef", b"x")
    (root / "0 other name.nef").hardlink_to(kept)
    assert moved(planned(searched(root), [root])) == ["2.nef"]


def test_a_sidecar_that_is_a_link_keeps_its_photo(tmp_path: Path) -> None:
    """It would be left behind, or lead nowhere from its place in the quarantine."""
    root = tmp_path / "root"
    for name in ("1.nef", "2.nef"):
        write(root / name, b"x")
    write(root / "1.xmp", b"rating")
    (root / "2.xmp").symlink_to("1.xmp")
    plan = planned(searched(root), [root])
    assert moved(plan) == []
    assert plan.skipped[0].reason == "The sidecar beside it is a link or not a regular file."
