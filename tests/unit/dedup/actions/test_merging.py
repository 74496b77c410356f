"""Metadata that only a copy has: it keeps the copy, or goes into a sidecar that can be undone."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clip_client.dedup import DuplicateReport, Member, Store
from clip_client.dedup.actions.apply import apply, undo, undo_from
from clip_client.dedup.actions.plan import Plan
from clip_client.dedup.actions.purge import purge
from clip_client.dedup.metadata.facts import Value, read_sidecar_facts
from clip_client.dedup.metadata.xmp import read_xmp
from clip_client.dedup.store.journal import LONGEST_RUN, Journal, State
from clip_client.dedup.types import QUARANTINE_NAME, SAME_PIXELS, SIMILAR, LibraryPhoto
from tests.fixtures.albums import carried_out, carry_out, files, member, planned, refusing, report, take_back, write
from tests.fixtures.commands import Said
from tests.fixtures.crashes import Kills, contents, fork_and_kill
from tests.fixtures.images.camera_files import packet
from tests.fixtures.images.image_files import jpeg
from tests.fixtures.images.metadata_files import listed
from tests.fixtures.members import changed

SAID = (
    'photoshop:DateCreated="2019-05-03T10:11:12" exif:GPSLatitude="48,12.0N" exif:GPSLongitude="16,22.2W" '
    'xmp:Rating="4" dc:title="Gate" photoshop:City="Wien">'
    "<dc:subject><rdf:Bag><rdf:li>Caf\u00e9</rdf:li><rdf:li>Wien</rdf:li></rdf:Bag></dc:subject>"
    "<dc:description>A gate &amp;\na wall</dc:description>"
)
RATED, TITLED = 'xmp:Rating="4">', 'dc:title="Gate">'


def album(root: Path, *copies: str, kept: str = ">") -> DuplicateReport:
    """A group of ``kept.jpg``, by default without metadata, and a file for each of ``copies``."""
    said = {"kept": kept, **{str(number): one for number, one in enumerate(copies)}}
    return report(tuple(photo(root / f"{name}.jpg", one) for name, one in said.items()))


def photo(path: Path, said: str) -> Member:
    """A file with XMP, given as attributes and elements."""
    return member(write(path, jpeg(xmp=packet(said))), tier=SAME_PIXELS)


def saved(root: Path) -> dict[str, set[Value]]:
    return dict(read_sidecar_facts((root / "kept.jpg.xmp").read_bytes()).said)


def merging(root: Path, *copies: str, **more: Any) -> Plan:
    return planned(album(root, *copies, **more), [root], merge_metadata=True)


def why(plan: Plan) -> str:
    assert plan.moves == ()
    (skip,) = plan.skipped
    return skip.reason


@pytest.mark.parametrize(("said", "data", "moves"), [(SAID, "copy", 0), (">", "copy", 1), (SAID, "other", 1)])
@pytest.mark.parametrize("merges", [False, True])
def test_only_the_photo_that_it_is_a_copy_of_counts_and_equal_bytes_lose_nothing(
    root: Path, *, merges: bool, said: str, data: str, moves: int
) -> None:
    kept = photo(root / "kept.jpg", SAID)
    other = member(write(root / "other.jpg", jpeg()), tier=SIMILAR)
    copy = member(write(root / "copy.jpg", jpeg(xmp=packet(said)) if data == "copy" else jpeg()), tier=SIMILAR)
    found = report((kept, other, replace(copy, copy_of=other.path, copy_tier=SAME_PIXELS)))
    # The other photo may move, and a sidecar beside it would not stay.
    assert len(planned(found, [root], merge_metadata=merges).moves) == moves


# Copies that stay.


@pytest.mark.parametrize("merges", [False, True])
def test_metadata_that_cannot_be_read_or_would_be_lost_in_an_album_keeps_the_copy(root: Path, *, merges: bool) -> None:
    copies = album(root, "no XMP")
    assert "cannot be read" in why(planned(copies, [root], merge_metadata=merges))
    kept, copy = album(root, RATED).groups[0].members
    inside = LibraryPhoto(path=copy.path, library=str(root), uuid="A", name="IMG_1.JPG", taken_ns=None)
    plan = planned(report((kept, changed(copy, in_library=inside))), [root], merge_metadata=merges)
    assert (why(plan), plan.for_album) == ("It has metadata that the kept photo lacks: rating.", ())


def test_of_copies_that_contradict_each_other_one_is_merged(root: Path) -> None:
    plan = merging(root, 'dc:title="a">', 'dc:title="b" dc:description="c">')
    assert [os.path.basename(move.duplicate.path) for move in plan.moves] == ["0.jpg"]
    assert "Its title differs from that of the kept photo" in plan.skipped[0].reason


@pytest.mark.parametrize(
    ("name", "sidecar", "said"),
    [
        ("kept.jpg.xmp", packet('xmp:Rating="2">'), "Its rating differs"),
        ("kept.jpg.xmp", packet(">"), "already has a sidecar"),
        ("kept.xmp", packet(">"), "already has a sidecar"),
        ("kept.jpg.xmp", None, "already has a sidecar"),  # a link that leads nowhere
    ],
)
def test_nothing_is_written_where_a_sidecar_is(root: Path, name: str, sidecar: bytes | None, said: str) -> None:
    groups = album(root, RATED)
    if sidecar is None:
        (root / name).symlink_to(root / "nowhere")
    else:
        write(root / name, sidecar)
    assert said in why(planned(groups, [root], merge_metadata=True))


def test_nothing_is_written_where_a_sidecar_may_not_be(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, copy = album(root, RATED).groups[0].members
    in_reference = report((changed(kept, is_reference=True), copy))
    assert "nothing is written to the kept photo's folder" in why(planned(in_reference, [root], merge_metadata=True))
    away = write(root / "away" / "kept.jpg", b"k")
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(away.parent) and access(path, mode))
    elsewhere = report((changed(kept, path=str(away)), copy))
    assert "; make it writable" in why(planned(elsewhere, [root], merge_metadata=True))


# The sidecar of another program.


@pytest.mark.parametrize(("name", "merges"), [("kept.xmp", False), ("kept.jpg.xmp", False), ("kept.jpg.xmp", True)])
def test_what_the_kept_photos_sidecar_says_is_not_lacking_and_stays(
    root: Path, journal: Journal, name: str, merges: bool
) -> None:
    groups = album(root, RATED)
    write(root / name, packet(RATED))
    before = files(root)
    plan = planned(groups, [root], merge_metadata=merges)
    assert [one.is_ours for move in plan.moves for one in move.sidecars] == [False]
    write(root / name, packet('xmp:Rating="2">'))  # the only place of the rating has changed since
    (outcome,) = apply(plan, journal)
    assert "Another program has written the kept photo's sidecar" in outcome.message
    (root / name).unlink()
    (outcome,) = apply(plan, journal)
    assert "no longer there" in outcome.message
    write(root / name, packet(RATED))
    assert apply(plan, journal)[0].done
    undo(journal)
    assert files(root) == before


@pytest.mark.parametrize("is_equal", [False, True])
def test_a_sidecar_that_appears_before_the_move_is_left_alone(root: Path, journal: Journal, is_equal: bool) -> None:
    plan = merging(root, RATED)
    write(root / "kept.jpg.xmp", plan.moves[0].sidecars[0].data if is_equal else b"of another program")
    before = files(root)
    (outcome,) = apply(plan, journal)
    assert "Another program has written the kept photo's sidecar" in outcome.message
    undo(journal)
    assert files(root) == before


def test_a_sidecar_that_another_program_writes_at_the_same_moment_stays(
    root: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, sidecar, link = merging(root, RATED), root / "kept.jpg.xmp", os.link

    def link_late(source: str, target: str) -> None:
        write(sidecar, b"of another program")
        link(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link_late)
        (outcome,) = apply(plan, journal)
    assert (outcome.done, outcome.message) == (False, f"Another program has just written {sidecar}.")
    assert sidecar.read_bytes() == b"of another program"
    assert sorted(os.listdir(root)) == ["0.jpg", "kept.jpg", "kept.jpg.xmp"]


# The sidecar that a merge writes.


def test_a_merge_writes_a_sidecar_and_undo_removes_it(root: Path, journal: Journal) -> None:
    groups = album(root, SAID)
    before = files(root)
    plan = planned(groups, [root], merge_metadata=True)
    assert files(root) == before
    assert [outcome.done for outcome in apply(plan, journal)] == [True]
    assert sorted(os.listdir(root)) == [QUARANTINE_NAME, "kept.jpg", "kept.jpg.xmp"]
    assert saved(root) == dict(read_sidecar_facts(packet(SAID)).said)
    written = read_xmp((root / "kept.jpg.xmp").read_bytes())
    assert (written["dc:description"], written["exif:GPSVersionID"]) == (
        [{"": ["A gate &\na wall"]}],
        [{"": ["2.3.0.0"]}],
    )
    assert [outcome.message for outcome in undo(journal)] == ["Restored."]
    assert files(root) == before


@pytest.mark.parametrize("how", ["changed", "refused"])
def test_undo_says_that_a_sidecar_stays(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, how: str
) -> None:
    with Store(tmp_path / "store") as store:
        apply(merging(root, SAID), store.journal)
    sidecar = root / "kept.jpg.xmp"
    if how == "changed":
        write(sidecar, sidecar.read_bytes() + b"\n")
    else:
        monkeypatch.setattr(os, "unlink", refusing(os.unlink, PermissionError(errno.EACCES, "denied"), sidecar))
    stays = f"{root / '0.jpg'}: Restored. Its sidecar was changed or cannot be removed, and stays: {sidecar}."
    assert said("undo", "--store", tmp_path / "store") == ["1 photo restored", stays]
    assert sidecar.exists()


def test_undo_from_a_folder_leaves_the_sidecar_and_a_later_undo_removes_it(root: Path, journal: Journal) -> None:
    apply(merging(root, RATED), journal)
    sidecar = root / "kept.jpg.xmp"
    (outcome,) = undo_from(str(root))
    assert outcome.message == f"Restored. The sidecar with its metadata stays: {sidecar}."
    undo(journal)
    assert not sidecar.exists()


def test_a_photo_of_another_owner_is_restored_with_all_that_follows(
    root: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who may write to a folder may rename a file in it, but only the owner may set the file's times."""
    apply(merging(root, RATED), journal)
    refused = PermissionError(errno.EPERM, "Operation not permitted")
    monkeypatch.setattr(os, "utime", refusing(os.utime, refused, root / "0.jpg"))
    assert [(one.done, one.message) for one in undo(journal)] == [(True, "Restored.")]
    assert sorted(os.listdir(root)) == ["0.jpg", "kept.jpg"]


def test_only_what_is_lacking_is_written_but_all_keywords(root: Path, journal: Journal) -> None:
    kept = 'dc:title="Gate" xmp:Rating="4"' + ">" + listed("dc:subject", "Tor")
    apply(merging(root, SAID, kept=kept), journal)
    assert saved(root)["keywords"] == {"Caf\u00e9", "Tor", "Wien"}
    assert set(saved(root)) == {"date", "GPS position", "keywords", "caption", "city"}


def test_several_copies_fill_one_sidecar_which_goes_with_the_last(root: Path, tmp_path: Path) -> None:
    groups = album(root, RATED, TITLED, 'dc:description="A gate" xmp:Rating="4">')
    before, sidecar = files(root), root / "kept.jpg.xmp"
    outcomes = carry_out(planned(groups, [root], merge_metadata=True), tmp_path / "journal")
    assert [outcome.done for outcome in outcomes] == [True] * 3
    assert saved(root) == {"rating": {(4.0,)}, "title": {"Gate"}, "caption": {"A gate"}}
    for number in (1, 0):
        take_back(tmp_path / "journal", root / f"{number}.jpg")
        assert sidecar.exists(), "another copy still needs it"
    take_back(tmp_path / "journal")
    assert files(root) == before


def test_a_later_run_relies_on_the_sidecar_of_the_first(root: Path, tmp_path: Path) -> None:
    kept, first, second = album(root, 'dc:title="Gate" xmp:Rating="4">', RATED).groups[0].members
    before = files(root)
    carry_out(planned(report((kept, first)), [root], merge_metadata=True), tmp_path / "journal")
    assert carry_out(planned(report((kept, second)), [root]), tmp_path / "journal")[0].done
    take_back(tmp_path / "journal", root / "0.jpg")
    assert (root / "kept.jpg.xmp").exists()
    take_back(tmp_path / "journal")
    assert files(root) == before


def test_a_sidecar_is_there_only_while_its_copy_is_away(root: Path, journal: Journal) -> None:
    plan = merging(root, RATED)
    before = files(root)
    in_the_way = write(root / QUARANTINE_NAME, b"a file")
    assert not apply(plan, journal)[0].done
    in_the_way.unlink()
    assert files(root) == before
    apply(plan, journal)
    write(root / "0.jpg", b"another photo")
    assert not undo(journal)[0].done
    assert (root / "kept.jpg.xmp").exists()
    (root / "0.jpg").unlink()
    assert undo(journal)[0].done
    assert files(root) == before


def test_purge_leaves_a_copy_whose_sidecar_is_gone(root: Path, journal: Journal) -> None:
    apply(merging(root, RATED, RATED), journal)
    (root / "kept.jpg.xmp").rename(root / "aside")
    gone = f"The sidecar with its metadata is no longer beside the kept photo: {root / 'kept.jpg.xmp'}."
    assert [(outcome.done, outcome.message) for outcome in purge(journal, trash=os.unlink)] == [(False, gone)] * 2
    (root / "aside").rename(root / "kept.jpg.xmp")
    first, second = journal.entries((State.MOVED,))
    assert [outcome.done for outcome in purge(journal, only=[first.id], trash=os.unlink)] == [True]
    assert [os.path.exists(entry.files[0].quarantined) for entry in (first, second)] == [False, True]
    # What is in the trash needs the sidecar for good.
    undo(journal)
    assert (root / "1.jpg").exists()
    assert (root / "kept.jpg.xmp").exists()


@pytest.mark.parametrize(
    ("rewritten", "lost"), [('xmp:Rating="4" xmp:Label="Red">', ""), ('xmp:Rating="5">', "rating"), (">", "rating")]
)
def test_purge_leaves_a_copy_whose_sidecar_another_program_rewrote(
    root: Path, journal: Journal, rewritten: str, lost: str
) -> None:
    """A program may write the sidecar as it likes, as long as the values are in it."""
    assert apply(merging(root, RATED), journal)[0].done
    write(root / "kept.jpg.xmp", packet(rewritten))
    (outcome,) = purge(journal, trash=os.unlink)
    assert outcome.done == (not lost)
    if lost:
        assert outcome.message.startswith(f"The sidecar beside the kept photo was changed and lacks its {lost} now: ")
        assert undo(journal)[0].done


def test_a_kill_between_any_two_steps_leaves_no_half_sidecar(kills: Kills) -> None:
    """Kill the merge, then the undo that follows, at every second step each; then undo in peace."""
    for folder in kills.every(2):
        root, journal = folder / "root", folder / "history.sqlite"
        groups = album(root, RATED, TITLED)
        before, photos = files(root), contents(root)
        kills.kill(carry_out, planned(groups, [root], merge_metadata=True), journal)
        assert photos <= contents(root)
        for number, name in enumerate(("rating", "title")):
            if not (root / f"{number}.jpg").exists():
                assert name in saved(root), f"killed before step {kills.step}"
        fork_and_kill(take_back, journal, before_step=kills.step % 31)
        assert photos <= contents(root)
        take_back(journal)
        assert files(root) == before, f"killed before step {kills.step}"
    assert kills.step > 20


@pytest.mark.parametrize("merges", [False, True])
def test_the_command_says_what_it_would_write(root: Path, tmp_path: Path, *, merges: bool) -> None:
    with Store(tmp_path / "store") as store:
        said = carried_out(album(root, SAID), [root], store, dry_run=True, merge_metadata=merges)
    assert said.count(f"would write: {root / 'kept.jpg.xmp'}") == merges
    assert any(line.startswith(f"stays: {root / '0.jpg'}: It has metadata") for line in said) != merges


# Bytes of a stem that leave room for a sidecar's draft, where names have at most 255.
ROOM = 255 - len(f".jpg.xmp.{LONGEST_RUN}.part")


@pytest.mark.parametrize("stem", [ROOM, ROOM + 1, 251])
def test_a_sidecar_needs_room_for_its_name(stem: int, root: Path) -> None:
    kept, copy = photo(root / f"{'k' * stem}.jpg", ">"), photo(root / "copy.jpg", TITLED)
    plan = planned(report((kept, copy)), [root], merge_metadata=True)
    refused = "No sidecar can be written beside the kept photo, whose name is too long for one."
    assert [skip.reason for skip in plan.skipped] == ([] if stem == ROOM else [refused])
    assert [one.done for one in carry_out(plan, root.with_name("history.sqlite"))] == [True] * (stem == ROOM)
    assert os.path.exists(f"{kept.path}.xmp") is (stem == ROOM)
