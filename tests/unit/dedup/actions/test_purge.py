"""Files that go to the trash, and files that stay in the quarantine, where undo still finds them."""

import errno
import os
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from clip_client._storage.sqlite import StoreError
from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.actions.purge import purge, suspects
from clip_client.dedup.store.journal import IN_QUARANTINE, Folder, Journal, JournalEntry, State
from clip_client.dedup.types import EDITED, EXACT, QUARANTINE_NAME, RE_ENCODED, SAME_PIXELS, SIMILAR
from tests.fixtures.albums import album, carry_out, files, member, opened, planned, report, write
from tests.fixtures.commands import Said

NOT_WRITABLE = "Permission denied; make its folder and the quarantine writable and try again"


def move(journal: Journal, kept: Path, *copies: Path, tier: str = EXACT, chosen: Collection[str] = ()) -> str:
    """Move the copies in one run, as copies of this tier; return its name."""
    plan = planned(report(tuple(map(member, (kept, *copies)))), [kept.parent])
    moves = tuple(replace(one, tier=tier, is_chosen=one.duplicate.path in chosen) for one in plan.moves)
    run = journal.new_run()
    assert all(outcome.done for outcome in apply(replace(plan, moves=moves), journal, run=run))
    return run


@pytest.mark.skipif(sys.platform != "linux", reason="the trash of other systems cannot be moved aside")
def test_purge_reaches_the_real_trash(root: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    carry_out(planned(album(root), [root]), store / "history.sqlite")
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    command = [sys.executable, "-m", "clip_client", "purge", "--yes", "--store", str(store)]
    ended = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert "3 photos in the system's trash; the space is free once the trash is emptied\n" in ended.stdout
    trashed = {path.name for path in (tmp_path / "data" / "Trash" / "files").iterdir()}
    assert trashed == {"2.jpg", "2.cr2", "2.jpg.xmp", "3.jpg", "copy.jpg"}
    assert not (root / QUARANTINE_NAME).exists()


def test_a_journal_that_fails_says_what_is_in_the_trash_and_so_does_undo(
    root: Path, tmp_path: Path, said: Said
) -> None:
    """The first photo is recorded; the second one is in the trash, too."""

    class FullJournal(Journal):
        def set_state(self, entry: JournalEntry, state: str, folders: Sequence[Folder] = ()) -> JournalEntry:
            if state == State.PURGED and entry.files[0].original == str(root / "2.jpg"):
                raise StoreError("the disk is full")
            return super().set_state(entry, state, folders)

    with opened(tmp_path / "history.sqlite", FullJournal) as journal:
        move(journal, *(write(root / f"{number}.jpg", b"x") for number in range(4)))
        with pytest.raises(StoreError) as raised:
            purge(journal, trash=os.unlink)
        assert str(raised.value) == "the disk is full; 2 of 3 photos went to the system's trash before that"
    assert said("undo", "--store", tmp_path) == [
        "1 photo restored",
        "2 photos of the same runs went to the system's trash, where undo does not look",
    ]


@pytest.mark.parametrize(
    ("refused", "error", "reason"),
    [
        ("1.jpg", lambda path: PermissionError(errno.EACCES, "Permission denied", path), NOT_WRITABLE),
        # Also as send2trash says it.
        ("1.jpg", lambda path: OSError(errno.EACCES, f"Permission denied: {path}"), NOT_WRITABLE),
        ("2.jpg", lambda _: OSError("there is no trash on this disk"), "there is no trash on this disk"),
        ("2.cr2", lambda _: OSError("there is no trash on this disk"), "there is no trash on this disk"),
    ],
)
def test_what_the_trash_refuses_comes_back(
    root: Path, tmp_path: Path, journal: Journal, refused: str, error: Callable[[str], OSError], reason: str
) -> None:
    """The trash may take the photo and only refuse a file that belongs to it."""
    kept, *copies = (write(root / name, b"x") for name in ("0.jpg", "1.jpg", "2.jpg"))
    for name in ("0.cr2", "2.cr2"):
        write(root / name, b"raw")
    before = files(root)
    move(journal, kept, *copies)
    trashed: dict[str, str] = {}

    def trash(path: str) -> None:
        if os.path.basename(path) == refused:
            raise error(path)
        trashed[os.path.basename(path)] = path
        os.rename(path, tmp_path / os.path.basename(path))

    outcomes = purge(journal, trash=trash)
    stays = root / f"{refused[0]}.jpg"
    assert [(outcome.path, outcome.message) for outcome in outcomes] == [
        (str(path), f"The system's trash refuses it: {reason}." if path == stays else "In the system's trash.")
        for path in copies
    ]
    assert [entry.files[0].original for entry in journal.entries((State.MOVED,))] == [str(stays)]
    for name, path in trashed.items():
        os.renames(tmp_path / name, path)  # as the trash does that puts something back
    for entry in journal.entries((State.PURGED,)):
        journal.set_state(entry, State.MOVED)
    assert [outcome.message for outcome in undo(journal)] == ["Restored."] * 2
    assert files(root) == before


def test_purge_of_one_run_leaves_the_others_and_tells_how_far_it_is(tmp_path: Path, journal: Journal) -> None:
    first = [write(tmp_path / "a" / f"{number}.jpg", b"x") for number in range(4)]
    second = [write(tmp_path / "b" / f"{number}.jpg", b"y") for number in range(2)]
    run, other = move(journal, *first), move(journal, *second)
    told: list[tuple[str, int, int]] = []
    assert purge(journal, only=(), trash=os.unlink) == ()  # the quarantine was empty when a person agreed
    only = {entry.id for entry in journal.entries(IN_QUARANTINE, run=run)}
    outcomes = purge(journal, only=only, trash=os.unlink, on_progress=lambda *progress: told.append(progress))
    assert [outcome.path for outcome in outcomes] == [str(path) for path in first[1:]]
    assert told == [("purging", 1, 3), ("purging", 2, 3), ("purging", 3, 3)]
    assert [entry.run for entry in journal.entries(IN_QUARANTINE)] == [other]


CHANGES = [(b"x", b"x"), (b"", b""), (b"bytes", b"other"), (b"bytes", b"longer"), (b"bytes", b"")]
"""The bytes of a file before and after a program has written it."""


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [(name, *both) for name in ("2.jpg", "2.nef", "2.xmp") for both in CHANGES if name != "2.jpg" or both[0]],
)
def test_other_bytes_keep_a_photo_and_another_time_does_not(
    root: Path, journal: Journal, name: str, before: bytes, after: bytes
) -> None:
    """Times on FAT shift with daylight saving, and programs for metadata set them back. An empty file has no bytes."""
    for stem in "12":
        for ending in ("jpg", "nef", "xmp"):
            write(root / f"{stem}.{ending}", before if name.endswith(ending) else ending.encode())
    move(journal, root / "1.jpg", root / "2.jpg")
    (entry,) = journal.entries(IN_QUARANTINE)
    (file,) = (one for one in entry.files if one.original == str(root / name))
    with open(file.quarantined, "wb") as away:
        away.write(after)
    os.utime(file.quarantined, ns=(0, 0) if len(after) == len(before) else (file.atime_ns, file.mtime_ns))
    (outcome,) = purge(journal, trash=os.unlink)
    back = f"clip-client undo {root / '2.jpg'} --store {journal.directory}"
    changed = f"It was changed after it was moved; restore it with: {back}."
    assert outcome.message == ("In the system's trash." if after == before else changed)
    assert os.path.exists(file.quarantined) == (after != before)


def test_only_the_photo_that_was_kept_instead_counts(tmp_path: Path, journal: Journal) -> None:
    """Equal bytes somewhere in the journal are not enough: the kept photo itself must be there, or have moved later."""
    first = [write(tmp_path / "a" / f"{number}.jpg", b"x") for number in range(2)]
    second = [write(tmp_path / "b" / f"{number}.jpg", b"x") for number in range(2)]
    move(journal, *first)
    move(journal, *second)
    first[0].unlink()
    outcomes, where = purge(journal, trash=os.unlink), f" --store {journal.directory}"
    assert [outcome.done for outcome in outcomes] == [False, True]
    assert outcomes[0].message == (
        f"The photo that was kept instead is missing or changed: {first[0]}; restore it with: "
        f"clip-client undo {first[1]}{where}, or all such photos with: clip-client undo --suspects{where}."
    )
    (entry,) = journal.entries(IN_QUARANTINE)
    first[0].symlink_to(entry.files[0].quarantined)
    assert [outcome.done for outcome in purge(journal, trash=os.unlink)] == [False], "a link to it is not the photo"
    assert first[0].read_bytes() == b"x"


def test_a_kept_photo_that_was_edited_and_then_moved_keeps_its_copies(root: Path, journal: Journal) -> None:
    """The file that stays in place of it holds other bytes."""
    last, kept, copy = (write(root / name, b"x") for name in ("0.jpg", "1.jpg", "2.jpg"))
    move(journal, kept, copy)
    for path in (kept, last):
        write(path, b"edited")
    move(journal, last, kept)
    outcomes = {os.path.basename(outcome.path): outcome.done for outcome in purge(journal, trash=os.unlink)}
    assert outcomes == {"1.jpg": True, "2.jpg": False}


def test_photos_that_were_kept_for_each_other_in_a_circle_stay(root: Path, journal: Journal) -> None:
    """A person has put copies back where they were, let them move again, and deleted the last one."""
    photos = [write(root / f"{number}.jpg", b"x") for number in range(3)]
    for kept, copy in ((1, 0), (2, 1), (0, 2)):
        write(photos[kept], b"x")
        move(journal, photos[kept], photos[copy])
    photos[0].unlink()
    assert [outcome.done for outcome in purge(journal, trash=os.unlink)] == [False] * 3
    write(photos[2], b"x")
    assert [outcome.done for outcome in purge(journal, trash=os.unlink)] == [True] * 3


@pytest.mark.parametrize(
    ("tier", "is_chosen", "is_proved"),
    [
        (EXACT, False, True),
        (SAME_PIXELS, False, True),
        (RE_ENCODED, False, True),
        (RE_ENCODED, True, False),  # a person kept a small copy instead of the photo itself
        (EDITED, False, True),
        (SIMILAR, False, False),
    ],
)
def test_only_a_proved_move_makes_another_photo_stand_for_the_kept_one(
    tmp_path: Path, journal: Journal, tier: str, is_chosen: bool, is_proved: bool
) -> None:
    """A moves as an exact copy of B, and then B moves for C: of the picture of A, C may show nothing."""
    a, b, c = (write(tmp_path / f"it's {name}.jpg", data) for name, data in (("A", b"x"), ("B", b"x"), ("C", b"y")))
    if tier == EXACT:
        write(c, b"x")
    move(journal, b, a)
    move(journal, c, b, tier=tier, chosen={str(b)} if is_chosen else ())
    outcomes, where = purge(journal, trash=os.unlink), f" --store {journal.directory}"
    assert [outcome.done for outcome in outcomes] == [is_proved, True]
    if not is_proved:
        assert outcomes[0].message == (
            f"The photo that was kept instead, {b}, was moved itself for {c}, which is not proved to show all of it; "
            f"restore it with: clip-client undo {shlex.quote(str(a))}{where}, or all such photos with: "
            f"clip-client undo --suspects{where}."
        )
        assert [entry.files[0].original for entry in suspects(journal)] == [str(a)]
        assert [outcome.done for outcome in undo(journal)[-1:]] == [True]
        assert a.read_bytes() == b"x"


def test_a_chain_is_proved_only_if_each_of_its_moves_is(tmp_path: Path, journal: Journal) -> None:
    photos = [write(tmp_path / f"{number}.jpg", b"%d" % number) for number in range(5)]
    tiers = (SAME_PIXELS, EDITED, SIMILAR, RE_ENCODED)
    for tier, moved, kept in zip(tiers, photos[:-1], photos[1:], strict=True):
        move(journal, kept, moved, tier=tier)
    # The third one moved because a person asked for it, and what was kept for it moved only for what is proved.
    assert [outcome.done for outcome in purge(journal, trash=os.unlink)] == [False, False, True, True]


@pytest.mark.parametrize("how", ["kept", "chain"])
def test_what_an_earlier_version_moved_is_proved_again(tmp_path: Path, journal: Journal, how: str) -> None:
    """Each photo by itself: not by the earlier version, and not by the photo that was kept in between."""
    photos = [write(tmp_path / "r" / f"{number}.jpg", b"%d" % number) for number in range(4)]
    asked: list[tuple[str, str]] = []

    def prove(kept: str, moved: str) -> str:
        asked.append((os.path.basename(kept), os.path.basename(moved)))
        return RE_ENCODED if asked[-1][1] == "1.jpg" else ""

    move(journal, *photos[:3], tier=RE_ENCODED)
    exact = write(tmp_path / "r" / "exact.jpg", b"0")
    move(journal, photos[0], exact)
    if how == "chain":
        move(journal, photos[3], photos[0], tier=RE_ENCODED)
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as connection, connection:
        connection.execute("UPDATE units SET tier = '', proof = 0")  # only this version records them
    kept = photos[3 if how == "chain" else 0]
    assert [entry.files[0].original for entry in suspects(journal, prove=lambda _kept, _moved: "")] == [
        str(one) for one in (photos[1], photos[2], *([exact, photos[0]] if how == "chain" else []))
    ]
    outcomes = {os.path.basename(one.path): one for one in purge(journal, prove=prove, trash=os.unlink)}
    assert (kept.name, "1.jpg") in asked
    assert [outcomes[name].done for name in ("1.jpg", "2.jpg")] == [True, False]
    of_chain = f"The photo that was kept instead, {photos[0]}, was moved itself for"
    why = of_chain if how == "chain" else "An earlier version moved it for"
    assert outcomes["2.jpg"].message.startswith(f"{why} {kept}, which is not proved to show all of it; restore it")
    # The same bytes prove themselves, as long as the file is there.
    assert outcomes["exact.jpg"].done == (how == "kept")


def test_what_is_beside_the_kept_photo_is_found_by_kind_and_a_raw_file_by_bytes(root: Path, journal: Journal) -> None:
    for name, data in (("jpg", b"x"), ("nef", b"raw"), ("xmp", b"stars")):
        for number in (1, 2):
            write(root / f"{number}.{name}", data)
    kept, raw, sidecar = (root / f"1.{name}" for name in ("jpg", "nef", "xmp"))
    move(journal, kept, root / "2.jpg")
    refused = f"The RAW file that was kept instead is no longer beside {kept}."
    raw.rename(root / "1.mov")  # as a film it would be no RAW file any more
    (root / "0.nef").symlink_to("nowhere")
    assert [outcome.message for outcome in purge(journal, trash=os.unlink)] == [refused]
    write(raw, b"war")
    assert [outcome.message for outcome in purge(journal, trash=os.unlink)] == [refused]
    raw.unlink()
    (root / "1.mov").rename(root / "renamed.dng")
    sidecar.unlink()
    refused = f"The sidecar that was kept instead is no longer beside {kept}."
    assert [outcome.message for outcome in purge(journal, trash=os.unlink)] == [refused]
    write(root / "1.jpg.xmp", b"more stars")  # programs write to it, and name it in two ways
    assert [outcome.done for outcome in purge(journal, trash=os.unlink)] == [True]


def test_what_was_not_in_the_quarantine_is_not_said_to_be_in_the_trash(root: Path, journal: Journal) -> None:
    """Whether a person has taken it out, or an interrupted move ends."""
    photos = [write(root / f"{number}.jpg", b"x") for number in range(3)]
    move(journal, *photos)
    taken, interrupted = journal.entries(IN_QUARANTINE)
    journal.set_state(interrupted, State.PLANNED)
    os.unlink(taken.files[0].quarantined)
    assert {(one.path, one.done, one.message) for one in purge(journal, trash=os.unlink)} == {
        (str(photos[1]), False, "It was no longer in the quarantine."),
        (str(photos[2]), False, "Its move was interrupted, so it is back in its folder."),
    }
    assert photos[2].exists()
