"""What belongs to a photo by its name goes where the photo goes: into the quarantine, back, and to the trash."""

import itertools
import os
from pathlib import Path

import pytest

from clip_client.dedup import DuplicateGroup
from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.actions.purge import purge
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal
from tests.fixtures.albums import files, member, planned, report, write

ALONE: dict[str, str] = {
    # Photo -> companions, each of which is tried alone. Which names these are, is tested in test_companions.py.
    "IMG_1.jpg": "IMG_1.MP4 IMG_1_3.mov IMG_O1.AAE IMG_1.jpg.xmp IMG_1.THM IMG_1.WAV IMG_1.nef IMG_1.json ._IMG_1.jpg",
    "IMG_1(2).jpg": "IMG_1.jpg(2).json",
    "IMG_1-edited.jpg": "IMG_1.jpg.json",
    "PXL_1.MP.jpg": "PXL_1.MP",
}
TOGETHER: dict[str, tuple[str, ...]] = {
    "darktable's duplicates": ("IMG_1.jpg.xmp", "IMG_1_01.jpg.xmp", "IMG_1_02.jpg.xmp"),
    "a RAW file with its sidecars": ("IMG_1.nef", "IMG_1.nef.xmp", "IMG_1.nef.pp3", "IMG_1.xmp"),
    "an edited live photo of an iPhone": ("IMG_1.mov", "IMG_1.AAE", "IMG_O1.AAE", "._IMG_1.jpg", "._IMG_1.mov"),
    "a motion photo of Takeout": ("IMG_1.MP", "IMG_1.jpg.json", "IMG_1.MP.json"),
}
TABLE = {
    **{f"{name} of {photo}": (photo, (name,)) for photo, names in ALONE.items() for name in names.split()},
    **{name: ("IMG_1.jpg", beside) for name, beside in TOGETHER.items()},
}
SHARED = {
    # Companion -> photo that it belongs to, beside IMG_1.jpg.
    **dict.fromkeys("IMG_1.mov IMG_1_3.mov IMG_O1.AAE IMG_1.xmp IMG_1.WAV IMG_1.nef".split(), "IMG_1.png"),
    "IMG_1.jpg.json": "IMG_1-edited.jpg",
}


def album(root: Path, photo: str, *beside: str) -> tuple[DuplicateGroup, dict[str, tuple[bytes, int]]]:
    for folder in ("new", "old"):
        for name in (photo, *beside):
            write(root / folder / name, name.encode())
    groups = report((member(root / "new" / photo), member(root / "old" / photo)))
    return groups.groups[0], files(root)


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder)) if folder.exists() else set()


def moved(root: Path, journal: Journal, *groups: DuplicateGroup) -> int:
    outcomes = apply(planned(report(*(group.members for group in groups)), [root]), journal)
    assert all(one.done for one in outcomes), outcomes
    return len(outcomes)


@pytest.mark.parametrize(("photo", "beside"), TABLE.values(), ids=TABLE)
def test_companions_go_come_back_and_are_purged_with_their_photo(
    root: Path, journal: Journal, photo: str, beside: tuple[str, ...]
) -> None:
    group, before = album(root, photo, *beside)
    assert moved(root, journal, group) == 1
    assert (names(root / "old"), names(root / "new")) == (set(), {photo, *beside})
    assert [one.message for one in undo(journal)] == ["Restored."]
    assert files(root) == before
    assert moved(root, journal, group) == 1
    for name in beside:  # without its counterpart each of them is the last one
        (root / "new" / name).rename(root / "aside")
        assert [one.done for one in purge(journal, trash=os.unlink)] == [False]
        (root / "aside").rename(root / "new" / name)
    trash: list[str] = []
    assert [one.done for one in purge(journal, trash=trash.append)] == [True]
    assert {os.path.basename(path) for path in trash} == {photo, *beside}


@pytest.mark.parametrize(("photo", "beside"), TABLE.values(), ids=TABLE)
def test_a_photo_stays_with_a_companion_that_the_kept_one_lacks(
    root: Path, journal: Journal, photo: str, beside: tuple[str, ...]
) -> None:
    for name, change in itertools.product(beside, (None, b"", b"other")):
        group, before = album(root, photo, *beside)
        (root / "new" / name).unlink()
        if change is not None:
            write(root / "new" / name, change)
        assert moved(root, journal, group) == 0
        write(root / "new" / name, name.encode())
        assert files(root) == before


def test_a_file_of_unknown_purpose_holds_the_photo_of_its_name(root: Path) -> None:
    for name in ("report.docx", "report.jpg.bak", "report.tar.gz", "report.txt", "report"):
        group, _ = album(root, "report.jpg", name)
        plan = planned(report(group.members), [root])
        said = f"The file {name} has the same name and may belong to it; rename either."
        assert (plan.moves, [skip.reason for skip in plan.skipped]) == ((), [said])
        (root / "old" / name).unlink()


@pytest.mark.parametrize(("name", "second"), SHARED.items())
def test_what_two_photos_share_goes_with_the_last_and_comes_back_with_the_first(
    root: Path, journal: Journal, name: str, second: str
) -> None:
    one, _ = album(root, "IMG_1.jpg", name)
    other, before = album(root, second, name)
    assert moved(root, journal, one) == 1
    assert names(root / "old") == {second, name}
    assert moved(root, journal, other) == 1
    assert names(root / "old") == set()
    assert sum(size for _, size in journal.runs().values()) == len("IMG_1.jpg" + second + name)
    (first, _) = journal.entries(IN_QUARANTINE)
    assert [outcome.message for outcome in undo(journal, only={first.id})] == ["Restored."]
    assert names(root / "old") == {"IMG_1.jpg", name}
    undo(journal)
    assert files(root) == before
    assert moved(root, journal, one, other) == 2
    trash: list[str] = []
    assert [outcome.done for outcome in purge(journal, trash=trash.append)] == [True, True]
    assert journal.runs() == {}
    assert sorted(map(os.path.basename, trash)) == sorted(["IMG_1.jpg", second, name])


def in_two_formats(root: Path) -> list[DuplicateGroup]:
    """Copies of a photo in two formats, with one film."""
    return [album(root, photo, "IMG_1.mov")[0] for photo in ("IMG_1.jpg", "IMG_1.png")]


def test_what_is_back_with_another_photo_is_not_purged(root: Path, journal: Journal) -> None:
    groups = in_two_formats(root)
    moved(root, journal, *groups)
    (first, _) = journal.entries(IN_QUARANTINE)
    undo(journal, only={first.id})
    (root / "new" / "IMG_1.mov").unlink()
    assert [outcome.done for outcome in purge(journal, trash=os.unlink)] == [True]
    assert names(root / "old") == {"IMG_1.jpg", "IMG_1.mov"}
    # It moves again with the photo that is left.
    write(root / "new" / "IMG_1.mov", b"IMG_1.mov")
    assert moved(root, journal, groups[0]) == 1
    assert names(root / "old") == set()
    undo(journal)
    assert names(root / "old") == {"IMG_1.jpg", "IMG_1.mov"}


def test_what_two_photos_share_stays_with_the_one_that_does_not_move(root: Path, journal: Journal) -> None:
    plan = planned(report(*(group.members for group in in_two_formats(root))), [root])
    write(root / "old" / "IMG_1.jpg", b"edited")
    assert sorted(outcome.done for outcome in apply(plan, journal)) == [False, True]
    assert names(root / "old") == {"IMG_1.jpg", "IMG_1.mov"}
