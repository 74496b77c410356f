"""What goes to the trash, and what stays in the quarantine, where undo still finds it."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.actions.purge import purge
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal, State
from clip_client.dedup.types import QUARANTINE_NAME
from tests.fixtures.albums import album, member, planned, report, snapshot, without_access, write

if TYPE_CHECKING:
    from pathlib import Path


def move(journal: Journal, kept: Path, *copies: Path) -> str:
    """Move the copies in one run; return its name."""
    root = kept.parent
    applied = apply(planned(report(tuple(map(member, (kept, *copies)))), [root]), journal)
    assert [outcome.message for outcome in applied.outcomes if not outcome.done] == []
    return applied.run


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "path"), "Permission denied"),
        (OSError("there is no trash on this disk"), "there is no trash on this disk"),  # as send2trash says it
    ],
)
@pytest.mark.parametrize("refused", ["1.jpg", "2.jpg", "2.cr2"])
def test_what_the_trash_refuses_comes_back(
    tmp_path: Path, journal: Journal, error: OSError, reason: str, refused: str
) -> None:
    """Also if it takes the photo, and refuses only what belongs to it."""
    root = tmp_path / "root"
    kept = write(root / "0.jpg", b"x")
    copies = [write(root / name, b"x") for name in ("1.jpg", "2.jpg")]
    for name in ("0.cr2", "2.cr2"):
        write(root / name, b"raw")
    before = snapshot(root)
    move(journal, kept, *copies)
    trashed: dict[str, str] = {}

    def trash(path: str) -> None:
        if os.path.basename(path) == refused:
            raise error
        trashed[os.path.basename(path)] = path
        os.rename(path, tmp_path / os.path.basename(path))

    outcomes = purge(journal, trash=trash)
    stays = root / f"{refused[0]}.jpg"
    assert [outcome.path for outcome in outcomes] == list(map(str, copies))
    assert [outcome.done for outcome in outcomes] == [path != stays for path in copies]
    assert {outcome.message for outcome in outcomes} == {
        "In the system's trash.",
        f"The system's trash refuses it: {reason}.",
    }
    assert [entry.files[0].original for entry in journal.entries((State.MOVED,))] == [str(stays)]
    for name, path in trashed.items():
        os.renames(tmp_path / name, path)  # as the trash does that puts something back
    for entry in journal.entries((State.PURGED,)):
        journal.set_state(entry, State.MOVED)
    assert [outcome.message for outcome in undo(journal)] == ["Restored."] * 2
    assert without_access(snapshot(root)) == without_access(before)


def test_a_second_purge_takes_what_the_first_could_not(tmp_path: Path, journal: Journal) -> None:
    root = tmp_path / "root"
    groups = album(root)
    apply(planned(groups, [root]), journal)
    sent: list[str] = []

    def full(path: str) -> None:
        if len(sent) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sent.append(path)
        os.unlink(path)

    assert [outcome.done for outcome in purge(journal, trash=full)] == [False] * 3
    assert len(journal.entries(IN_QUARANTINE)) == 3
    assert [outcome.done for outcome in purge(journal, trash=os.unlink)] == [True] * 3
    assert not (root / QUARANTINE_NAME).exists()


def test_purge_of_one_run_leaves_the_others_and_tells_how_far_it_is(tmp_path: Path, journal: Journal) -> None:
    first = [write(tmp_path / "a" / f"{number}.jpg", b"x") for number in range(4)]
    second = [write(tmp_path / "b" / f"{number}.jpg", b"y") for number in range(2)]
    run, other = move(journal, *first), move(journal, *second)
    told: list[tuple[str, int, int]] = []
    outcomes = purge(journal, run=run, trash=os.unlink, on_progress=lambda *progress: told.append(progress))
    assert [outcome.path for outcome in outcomes] == [str(path) for path in first[1:]]
    assert told == [("purging", 1, 3), ("purging", 2, 3), ("purging", 3, 3)]
    assert [entry.run for entry in journal.entries(IN_QUARANTINE)] == [other]


@pytest.mark.parametrize("name", ["2.jpg", "2.nef", "2.xmp"])
@pytest.mark.parametrize("data", [b"", b"x"])
def test_a_changed_time_alone_does_not_keep_a_photo(tmp_path: Path, journal: Journal, name: str, data: bytes) -> None:
    """Times on FAT shift with daylight saving. What counts are the bytes; an empty file has none."""
    root = tmp_path / "r"
    kept, copy = write(root / "1.jpg", b"photo"), write(root / "2.jpg", b"photo")
    for stem in "12":
        write(root / f"{stem}.nef", b"raw" if name == "2.jpg" else data)
        write(root / f"{stem}.xmp", data)
    move(journal, kept, copy)
    (entry,) = journal.entries(IN_QUARANTINE)
    (away,) = [file.quarantined for file in entry.files if file.original == str(root / name)]
    os.utime(away, ns=(0, 0))
    assert [outcome.message for outcome in purge(journal, trash=os.unlink)] == ["In the system's trash."]


@pytest.mark.parametrize("change", [b"other", b"longer", b""])
def test_other_bytes_keep_a_photo_whatever_their_time(tmp_path: Path, journal: Journal, change: bytes) -> None:
    kept, copy = write(tmp_path / "r" / "1.jpg", b"bytes"), write(tmp_path / "r" / "2.jpg", b"bytes")
    move(journal, kept, copy)
    (entry,) = journal.entries(IN_QUARANTINE)
    (file,) = entry.files
    with open(file.quarantined, "wb") as away:
        away.write(change)
    if len(change) != file.size_bytes:  # times can be set back, as programs for metadata do
        os.utime(file.quarantined, ns=(file.atime_ns, file.mtime_ns))
    (outcome,) = purge(journal, trash=os.unlink)
    assert outcome.message == "It was changed after it was moved; restore it with: clip-client undo."
    assert os.path.exists(file.quarantined)


def test_only_the_photo_that_was_kept_instead_counts(tmp_path: Path, journal: Journal) -> None:
    """Equal bytes somewhere in the journal are not enough: the kept photo itself must be there, or have moved later."""
    first = [write(tmp_path / "a" / f"{number}.jpg", b"x") for number in range(2)]
    second = [write(tmp_path / "b" / f"{number}.jpg", b"x") for number in range(2)]
    move(journal, *first)
    move(journal, *second)
    first[0].unlink()
    outcomes = purge(journal, trash=os.unlink)
    assert [outcome.message for outcome in outcomes] == [
        f"The photo that was kept instead is missing or changed: {first[0]}.",
        "In the system's trash.",
    ]


def test_a_kept_photo_that_was_edited_and_then_moved_keeps_its_copies(tmp_path: Path, journal: Journal) -> None:
    """What stays instead of it holds other bytes."""
    last, kept, copy = (write(tmp_path / "r" / name, b"x") for name in ("0.jpg", "1.jpg", "2.jpg"))
    move(journal, kept, copy)
    for path in (kept, last):
        write(path, b"edited")
    move(journal, last, kept)
    outcomes = {os.path.basename(outcome.path): outcome.done for outcome in purge(journal, trash=os.unlink)}
    assert outcomes == {"1.jpg": True, "2.jpg": False}


def test_photos_that_were_kept_for_each_other_in_a_circle_stay(tmp_path: Path, journal: Journal) -> None:
    """A person has put copies back where they were, let them move again, and deleted the last one."""
    photos = [write(tmp_path / "r" / f"{number}.jpg", b"x") for number in range(3)]
    for kept, copy in ((1, 0), (2, 1), (0, 2)):
        write(photos[kept], b"x")
        move(journal, photos[kept], photos[copy])
    photos[0].unlink()
    assert [outcome.done for outcome in purge(journal, trash=os.unlink)] == [False] * 3
    write(photos[2], b"x")
    assert [outcome.done for outcome in purge(journal, trash=os.unlink)] == [True] * 3


def test_the_raw_file_of_the_kept_photo_is_found_by_kind_and_bytes(tmp_path: Path, journal: Journal) -> None:
    root = tmp_path / "r"
    kept, copy = write(root / "1.jpg", b"x"), write(root / "2.jpg", b"x")
    raw, _ = write(root / "1.nef", b"raw"), write(root / "2.nef", b"raw")
    move(journal, kept, copy)
    refused = f"The RAW file that was kept instead is no longer beside {kept}."
    raw.rename(root / "1.mov")  # as a film it would be no RAW file any more
    (root / "0.nef").symlink_to("nowhere")
    assert [outcome.message for outcome in purge(journal, trash=os.unlink)] == [refused]
    write(raw, b"war")
    assert [outcome.message for outcome in purge(journal, trash=os.unlink)] == [refused]
    raw.unlink()
    (root / "1.mov").rename(root / "renamed.dng")
    assert [outcome.done for outcome in purge(journal, trash=os.unlink)] == [True]
