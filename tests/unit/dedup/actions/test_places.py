"""Recycle bins, snapshots, libraries and caches: what is searched there, and that the photos elsewhere stay.

Each file that must not be kept is the older one, which the rules would prefer.
"""

import os
from pathlib import Path

import pytest

from clip_client.dedup import scan
from clip_client.dedup.files.places import place_of
from tests.fixtures.albums import TIME_NS, planned, searched, write

VANISHING = {
    "#recycle": "a recycle bin",
    "@Recycle": "a recycle bin",
    "$RECYCLE.BIN/S-1-5-21": "a recycle bin",
    "RECYCLER": "a recycle bin",
    ".Trash-1000/files": "a recycle bin",
    ".Trashes": "a recycle bin",
    ".local/share/Trash/files": "a recycle bin",
    "files_trashbin/files": "a recycle bin",
    "files_versions": "a folder of old versions",
    "lost+found": "lost+found",
    "System Volume Information": "Windows' System Volume Information",
    ".snapshots/1/snapshot": "a snapshot",
    "#snapshot/hourly": "a snapshot",
    ".snapshot": "a snapshot",
    ".zfs/snapshot/daily": "a snapshot",
    "@eaDir/1.nef": "Synology's thumbnails",
    ".@__thumb": "QNAP's thumbnails",
    "appdata_oc1a2b3c/preview": "Nextcloud's previews",
    "Catalog Previews.lrdata/0": "Lightroom's previews",
    "iPhoto Library.photolibrary/Thumbnails": "iPhoto's previews",
    "Old.aplibrary/Previews/2012": "Aperture's previews",
    "Lightroom Library.lrlibrary/0f/previews": "Lightroom's previews",
}
LIBRARIES = {
    "iPhoto Library.photolibrary/Masters/2012": "an iPhoto library",
    "Old.migratedaplibrary/Masters": "an Aperture library",
    "Lightroom Library.lrlibrary/0f/originals/2017": "a Lightroom library",
}


def old(path: Path, data: bytes = b"photo") -> Path:
    return write(path, data, TIME_NS - 10**9)


def reasons(root: Path, *named: Path) -> list[str]:
    """Say why each photo stays of what was found in ``named``; nothing moves."""
    plan = planned(searched(*named), [root])
    assert plan.moves == ()
    return [skip.reason for skip in plan.skipped]


@pytest.mark.parametrize("folder", VANISHING)
def test_what_vanishes_by_itself_is_searched_only_if_it_is_named(root: Path, folder: str) -> None:
    live, vanishing = write(root / "Rome" / "1.nef", b"photo"), old(root / folder / "1.nef")
    found = scan([root], raw=True, include_hidden=True)
    assert found.photos == (str(live),)
    (failure,) = found.failed
    assert failure.message == f"Files in {VANISHING[folder]} are searched only if you name their folder."
    assert str(root / folder).startswith(failure.path)
    for named in (root / folder, vanishing):
        assert scan([live.parent, named], raw=True).photos == tuple(sorted((str(live), str(vanishing))))


@pytest.mark.parametrize("folder", ["#recycle", "#snapshot/hourly", "Old.aplibrary/Previews/2012"])
def test_what_vanishes_by_itself_is_never_kept(root: Path, folder: str) -> None:
    live, what = write(root / "Rome" / "1.nef", b"photo"), VANISHING[folder]
    for name in ("1.nef", "2.nef"):
        old(root / folder / name)
    (group,) = searched(live.parent, root / folder).groups
    assert (group.keep, group.reason) == (str(live), f"the other is in {what}")
    assert reasons(root, live.parent, root / folder) == [f"It is inside {what}, where nothing is moved."] * 2
    # A file that is only there is no reason for another one to move.
    assert reasons(root, root / folder) == [f"The kept photo is in {what}, so nothing moves for it."]


def test_one_folder_of_each_kind_is_listed(root: Path) -> None:
    photos = [write(root / name / "1.nef", b"%d" % number) for number, name in enumerate("abc")]
    for photo in photos:
        old(photo.parent / "@eaDir" / "1.nef" / "1.jpg")
    found = scan([root], raw=True)
    assert found.photos == tuple(map(str, photos))
    (failure,) = found.failed
    assert failure.path == str(root / "a" / "@eaDir")
    assert failure.message.endswith("only if you name their folder; 2 more such folders passed over.")


def test_a_link_does_not_hide_a_bin(root: Path) -> None:
    live = write(root / "Rome" / "1.nef", b"photo")
    old(root.parent / "#recycle" / "trip" / "1.nef")
    (root / "Rome" / "z").symlink_to(root.parent / "#recycle" / "trip")
    assert scan([root], raw=True, follow_links=True).photos == (str(live),)
    (group,) = searched(root, root / "Rome" / "z").groups
    assert group.keep == str(live)


@pytest.mark.parametrize("folder", LIBRARIES)
def test_originals_in_a_library_are_kept_and_never_move(root: Path, folder: str) -> None:
    inside, copy = old(root / folder / "1.nef"), write(root / "Rome" / "1.nef", b"photo")
    found = searched(root)
    assert [(move.duplicate.path, move.kept.path) for move in planned(found, [root]).moves] == [
        (str(copy), str(inside))
    ]
    os.utime(copy, (1e9, 1e9))
    assert reasons(root, root) == [f"It is inside {LIBRARIES[folder]}, which needs all its files."]


MARKS = {"in each folder": ("thumbs/.immich", "upload/.immich"), "above": (".immich",), "by the folders": ()}


@pytest.mark.parametrize("mark", MARKS)
def test_immich_is_known_by_its_marker_or_layout_and_not_by_a_name(root: Path, mark: str) -> None:
    preview, photo = (old(root / folder / "ab" / "1.nef", folder.encode()) for folder in ("thumbs", "upload"))
    assert scan([root], raw=True).photos == (str(preview), str(photo)), "anybody may call a folder thumbs"
    for marker in MARKS[mark]:
        write(root / marker, b"")
    if mark == "by the folders":
        for folder in ("encoded-video", "profile"):
            (root / folder).mkdir()
    assert scan([root], raw=True).photos == (str(photo),)
    write(root / "Rome" / "1.nef", b"upload", TIME_NS - 10**10)
    assert reasons(root, root) == ["It is inside Immich's library, which needs all its files."]


def test_in_a_library_of_apple_photos_only_originals_last() -> None:
    lasting = {folder: place_of(f"/a/L.photoslibrary/{folder}") for folder in ("originals/A", "resources/derivatives")}
    assert [place is not None and place.is_lasting for place in lasting.values()] == [True, False]
    assert place_of("/a/photoslibrary/library/thumbs/trash") is None


def test_what_cannot_be_written_is_kept_only_if_nothing_else_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a read-only snapshot of btrfs under any name, where even root can write nothing."""
    read_only, access = root / "2024-01-01", os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: access(path, mode) and not (path == str(read_only) and mode & os.W_OK)
    )
    old(read_only / "1.nef")
    live = [write(root / "Rome" / f"{number}.nef", b"photo") for number in (1, 2)]
    found = searched(root)
    assert found.groups[0].keep == str(live[0])
    assert [move.duplicate.path for move in planned(found, [root]).moves] == [str(live[1])]
    # A person says that this folder lasts.
    trusted = searched(root, references=[read_only])
    assert [move.duplicate.path for move in planned(trusted, [root]).moves] == list(map(str, live))
