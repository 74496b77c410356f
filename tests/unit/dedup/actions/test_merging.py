"""What a copy says that the kept photo does not: it keeps the copy, or goes into a sidecar that can be undone."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from clip_client.cli.options.dedup import ActionOptions
from clip_client.dedup import Member, Store
from clip_client.dedup.actions.apply import Outcome, apply, undo
from clip_client.dedup.actions.losses import merged, unsaid
from clip_client.dedup.actions.purge import purge
from clip_client.dedup.files.metadata import read_sidecar
from clip_client.dedup.store.journal import State
from clip_client.dedup.types import QUARANTINE_NAME, SAME_PIXELS, SIMILAR, LibraryPhoto, Metadata
from tests.fixtures.albums import carried_out, member, opened, planned, report, snapshot, without_access, write
from tests.fixtures.crashes import contents, fork_and_kill
from tests.fixtures.images.camera_files import packet
from tests.fixtures.members import changed

if TYPE_CHECKING:
    from pathlib import Path

    from clip_client.dedup import DuplicateReport
    from clip_client.dedup.actions.plan import Plan

SAID = Metadata(
    taken="2019-05-03T10:11:12",
    latitude=48.2,
    longitude=-16.37,
    rating=4,
    keywords="Caf\u00e9\nWien",
    title="Gate",
    caption="A gate & a wall",
)
FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("date", {"taken": SAID.taken}),
    ("GPS position", {"latitude": SAID.latitude, "longitude": SAID.longitude}),
    ("rating", {"rating": SAID.rating}),
    ("keywords", {"keywords": SAID.keywords}),
    ("title", {"title": SAID.title}),
    ("caption", {"caption": SAID.caption}),
]


def photo(path: Path, metadata: Metadata) -> Member:
    """A file whose bytes depend on what it says."""
    return member(write(path, repr(metadata).encode()), tier=SAME_PIXELS, metadata=metadata)


def album(root: Path, *copies: Metadata, kept: Metadata | None = None) -> DuplicateReport:
    """A group of ``kept.jpg``, which says nothing unless told to, and a file for each of ``copies``."""
    members = [photo(root / "kept.jpg", kept or Metadata(lens="50 mm"))]
    members += [photo(root / f"{number}.jpg", said) for number, said in enumerate(copies)]
    return report(tuple(members))


def carry_out(plan: Plan, store: Path) -> tuple[Outcome, ...]:
    with opened(store) as journal:
        return apply(plan, journal)


def take_back(store: Path, path: Path | None = None) -> tuple[Outcome, ...]:
    with opened(store) as journal:
        entries = journal.entries((State.MOVED,), original=None if path is None else str(path))
        return undo(journal, only={entry.id for entry in entries})


def why(plan: Plan) -> str:
    assert plan.moves == ()
    (skip,) = plan.skipped
    return skip.reason


@pytest.mark.parametrize(("name", "fields"), FIELDS)
def test_each_field_that_the_kept_photo_lacks_keeps_the_copy(tmp_path: Path, name: str, fields: dict[str, Any]) -> None:
    plan = planned(album(tmp_path, Metadata(**fields)), [tmp_path])
    assert why(plan) == f"It has metadata that the kept photo lacks, which --merge-metadata can save: {name}."
    # Said by both of them, it keeps nothing.
    both = replace(SAID, lens="50 mm")
    assert len(planned(album(tmp_path, Metadata(**fields), kept=both), [tmp_path]).moves) == 1


@pytest.mark.parametrize(
    ("copy", "kept", "missing", "differing"),
    [
        ({"taken": "2019-05-03"}, {"taken": "2019-05-03T10:11:12"}, (), ()),
        ({"taken": "2019-05-03T10:11:12"}, {"taken": "2019-05-03"}, ("date",), ()),
        ({"taken": "2019-05-04"}, {"taken": "2019-05-03T10:11:12"}, (), ("date",)),
        ({"latitude": 1.0, "longitude": 2.0}, {"latitude": 1.0001, "longitude": 1.9999}, (), ()),
        ({"latitude": 1.0, "longitude": 2.0}, {"latitude": 1.0, "longitude": 2.001}, (), ("GPS position",)),
        ({"rating": 3}, {"rating": 4}, (), ("rating",)),
        ({}, {"rating": 4}, (), ()),
        ({"keywords": "a\nb"}, {"keywords": "b\nc"}, ("keywords",), ()),
        ({"keywords": "a"}, {"keywords": "a\nc"}, (), ()),
        ({"title": "a"}, {"title": "b"}, (), ("title",)),
        ({"caption": "a"}, {"caption": "b"}, (), ("caption",)),
        ({"lens": "50 mm", "software": "GIMP"}, {}, (), ()),
    ],
)
def test_fields_are_compared_by_what_they_say(
    copy: dict[str, Any], kept: dict[str, Any], missing: tuple[str, ...], differing: tuple[str, ...]
) -> None:
    said, known = Metadata(**copy), Metadata(**kept)
    assert set(unsaid(said, known)) == {*missing, *differing}
    assert unsaid(said, merged(known, said)) == list(differing)


@pytest.mark.parametrize(("said", "data", "moves"), [(SAID, b"copy", 0), (Metadata(), b"copy", 1), (SAID, b"other", 1)])
@pytest.mark.parametrize("merges", [False, True])
def test_only_the_photo_that_it_is_a_copy_of_counts_and_equal_bytes_lose_nothing(
    tmp_path: Path, *, merges: bool, said: Metadata, data: bytes, moves: int
) -> None:
    kept = member(write(tmp_path / "kept.jpg", b"kept"), metadata=SAID)
    other = member(write(tmp_path / "other.jpg", b"other"), tier=SIMILAR)
    copy = member(write(tmp_path / "copy.jpg", data), tier=SIMILAR, metadata=said)
    found = report((kept, other, replace(copy, copy_of=other.path, copy_tier=SAME_PIXELS)))
    # The other photo may move, and a sidecar beside it would not stay.
    assert len(planned(found, [tmp_path], merge_metadata=merges).moves) == moves


def test_metadata_that_cannot_be_read_keeps_the_copy(tmp_path: Path) -> None:
    copies = album(tmp_path, Metadata(is_incomplete=True))
    for merges in (False, True):
        assert "cannot be read" in why(planned(copies, [tmp_path], merge_metadata=merges))


@pytest.mark.parametrize("name", ["kept.xmp", "kept.jpg.xmp"])
def test_what_the_kept_photos_sidecar_says_is_not_lacking(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    groups = album(root, Metadata(rating=4))
    write(root / name, packet('xmp:Rating="4">'))
    plan = planned(groups, [root])
    assert [one.is_ours for move in plan.moves for one in move.sidecars] == [False]
    write(root / name, packet('xmp:Rating="2">'))  # the only place of the rating has changed since
    (outcome,) = carry_out(plan, tmp_path / "journal.sqlite")
    assert "Another program has written the kept photo's sidecar" in outcome.message
    (root / name).unlink()
    (outcome,) = carry_out(plan, tmp_path / "journal.sqlite")
    assert "no longer there" in outcome.message
    assert (root / "0.jpg").exists()


def test_a_sidecar_of_another_program_is_never_removed(tmp_path: Path) -> None:
    root, store = tmp_path / "root", tmp_path / "journal.sqlite"
    groups = album(root, Metadata(rating=4))
    write(root / "kept.jpg.xmp", packet('xmp:Rating="4">'))
    before = snapshot(root)
    (outcome,) = carry_out(planned(groups, [root], merge_metadata=True), store)
    assert outcome.done
    take_back(store)
    assert without_access(snapshot(root)) == without_access(before)


def test_a_merge_writes_a_sidecar_and_undo_removes_it(tmp_path: Path) -> None:
    root, store = tmp_path / "root", tmp_path / "journal.sqlite"
    groups = album(root, SAID)
    before = snapshot(root)
    plan = planned(groups, [root], merge_metadata=True)
    assert snapshot(root) == before
    assert [outcome.done for outcome in carry_out(plan, store)] == [True]
    assert sorted(os.listdir(root)) == [QUARANTINE_NAME, "kept.jpg", "kept.jpg.xmp"]
    found = read_sidecar((root / "kept.jpg.xmp").read_bytes())
    assert (found.latitude, found.longitude) == pytest.approx((48.2, -16.37))
    assert found == replace(SAID, latitude=found.latitude, longitude=found.longitude)
    assert unsaid(SAID, found) == []
    assert [outcome.message for outcome in take_back(store)] == ["Restored."]
    assert without_access(snapshot(root)) == without_access(before)


def test_only_what_is_lacking_is_written_but_all_keywords(tmp_path: Path) -> None:
    root = tmp_path / "root"
    kept = Metadata(title="Gate", rating=2, keywords="Tor")
    carry_out(
        planned(album(root, replace(SAID, rating=2), kept=kept), [root], merge_metadata=True),
        tmp_path / "journal",
    )
    found = read_sidecar((root / "kept.jpg.xmp").read_bytes())
    assert (found.title, found.rating, found.keywords) == ("", 0, "Caf\u00e9\nTor\nWien")


def test_several_copies_fill_one_sidecar_which_goes_with_the_last(tmp_path: Path) -> None:
    root, store = tmp_path / "root", tmp_path / "journal.sqlite"
    groups = album(root, Metadata(rating=4), Metadata(title="Gate"), Metadata(caption="A gate", rating=4))
    before = snapshot(root)
    outcomes = carry_out(planned(groups, [root], merge_metadata=True), store)
    assert [outcome.done for outcome in outcomes] == [True] * 3
    sidecar = root / "kept.jpg.xmp"
    assert read_sidecar(sidecar.read_bytes()) == Metadata(rating=4, title="Gate", caption="A gate")
    for number in (1, 0):
        take_back(store, root / f"{number}.jpg")
        assert sidecar.exists(), "another copy still needs it"
    take_back(store)
    assert without_access(snapshot(root)) == without_access(before)


def test_a_later_run_relies_on_the_sidecar_of_the_first(tmp_path: Path) -> None:
    root, store = tmp_path / "root", tmp_path / "journal.sqlite"
    kept, first, second = album(root, Metadata(rating=4, title="Gate"), Metadata(rating=4)).groups[0].members
    before = snapshot(root)
    with opened(store) as journal:
        apply(planned(report((kept, first)), [root], merge_metadata=True), journal)
        assert apply(planned(report((kept, second)), [root]), journal)[0].done
    take_back(store, root / "0.jpg")
    assert (root / "kept.jpg.xmp").exists()
    take_back(store)
    assert without_access(snapshot(root)) == without_access(before)


@pytest.mark.parametrize(
    ("copies", "reason"),
    [
        ((Metadata(rating=4), Metadata(rating=3)), "Its rating differs from that of the kept photo"),
        ((Metadata(title="a"), Metadata(title="b", caption="c")), "Its title differs from that of the kept photo"),
    ],
)
def test_of_copies_that_contradict_each_other_one_is_merged(
    tmp_path: Path, copies: tuple[Metadata, ...], reason: str
) -> None:
    plan = planned(album(tmp_path, *copies), [tmp_path], merge_metadata=True)
    assert [os.path.basename(move.duplicate.path) for move in plan.moves] == ["0.jpg"]
    assert reason in plan.skipped[0].reason


def test_nothing_is_written_where_a_sidecar_is_or_may_not_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    groups = album(root, Metadata(rating=4))
    (found,) = groups.groups
    in_reference = report((changed(found.members[0], is_reference=True), found.members[1]))
    assert "nothing is written to the kept photo's folder" in why(planned(in_reference, [root], merge_metadata=True))
    for name, sidecar, said in (
        ("kept.jpg.xmp", packet('xmp:Rating="2">'), "Its rating differs"),
        ("kept.jpg.xmp", packet(">"), "already has a sidecar"),
        ("kept.xmp", packet(">"), "already has a sidecar"),
        ("kept.jpg.xmp", None, "already has a sidecar"),
    ):
        if sidecar is None:
            (root / name).symlink_to(tmp_path / "nowhere")
        else:
            write(root / name, sidecar)
        assert said in why(planned(groups, [root], merge_metadata=True))
        (root / name).unlink()
    other = report((changed(found.members[0], path=str(write(tmp_path / "away" / "kept.jpg", b"k"))), found.members[1]))
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path / "away") and access(path, mode))
    assert "read-only for you" in why(planned(other, [root], merge_metadata=True))


@pytest.mark.parametrize("merges", [False, True])
def test_a_photo_of_a_library_whose_metadata_would_be_lost_is_not_for_the_album(tmp_path: Path, merges: bool) -> None:
    kept, copy = album(tmp_path, Metadata(rating=4)).groups[0].members
    inside = LibraryPhoto(path=copy.path, library=str(tmp_path), uuid="A", name="IMG_1.JPG", taken_ns=None)
    plan = planned(report((kept, changed(copy, in_library=inside))), [tmp_path], merge_metadata=merges)
    assert why(plan) == "It has metadata that the kept photo lacks: rating."
    assert plan.for_album == ()


def test_a_journal_of_before_there_were_sidecars_is_opened_and_undone(tmp_path: Path) -> None:
    root, store = tmp_path / "root", tmp_path / "journal.sqlite"
    groups = album(root, Metadata())
    before = snapshot(root)
    assert carry_out(planned(groups, [root]), store)[0].done
    with closing(sqlite3.connect(store)) as old:
        old.execute("DROP TABLE sidecars")
        for name in ("tier", "proof", "is_chosen"):
            old.execute(f"ALTER TABLE units DROP COLUMN {name}")
        old.execute("PRAGMA user_version = 1")
    assert take_back(store)[0].done
    assert without_access(snapshot(root)) == without_access(before)


@pytest.mark.parametrize("is_equal", [False, True])
def test_a_sidecar_that_appears_before_the_move_is_left_alone(tmp_path: Path, is_equal: bool) -> None:
    root = tmp_path / "root"
    plan = planned(album(root, Metadata(rating=4)), [root], merge_metadata=True)
    write(root / "kept.jpg.xmp", plan.moves[0].sidecars[0].data if is_equal else b"of another program")
    before = snapshot(root)
    (outcome,) = carry_out(plan, tmp_path / "journal.sqlite")
    assert "Another program has written the kept photo's sidecar" in outcome.message
    take_back(tmp_path / "journal.sqlite")
    assert without_access(snapshot(root)) == without_access(before)


def test_a_sidecar_stays_until_its_copy_can_come_back(tmp_path: Path) -> None:
    root, store = tmp_path / "root", tmp_path / "journal.sqlite"
    groups = album(root, Metadata(rating=4))
    before = snapshot(root)
    carry_out(planned(groups, [root], merge_metadata=True), store)
    write(root / "0.jpg", b"another photo")
    assert not take_back(store)[0].done
    assert (root / "kept.jpg.xmp").exists()
    (root / "0.jpg").unlink()
    assert take_back(store)[0].done
    assert without_access(snapshot(root)) == without_access(before)


def test_a_sidecar_that_was_changed_stays_and_undo_says_so(tmp_path: Path) -> None:
    root, store = tmp_path / "root", tmp_path / "journal.sqlite"
    carry_out(planned(album(root, Metadata(rating=4)), [root], merge_metadata=True), store)
    write(root / "kept.jpg.xmp", b"edited")
    (outcome,) = take_back(store)
    assert outcome.done
    assert outcome.message == (
        f"Restored. Its sidecar was changed or cannot be removed, and stays: {root / 'kept.jpg.xmp'}."
    )
    assert (root / "kept.jpg.xmp").read_bytes() == b"edited"


def test_a_copy_that_cannot_move_leaves_no_sidecar(tmp_path: Path) -> None:
    root = tmp_path / "root"
    plan = planned(album(root, Metadata(rating=4)), [root], merge_metadata=True)
    (root / QUARANTINE_NAME).write_bytes(b"a file in the way")
    before = snapshot(root)
    assert not carry_out(plan, tmp_path / "journal.sqlite")[0].done
    assert without_access(snapshot(root)) == without_access(before)


def test_purge_leaves_a_copy_whose_sidecar_is_gone(tmp_path: Path) -> None:
    root, store = tmp_path / "root", tmp_path / "journal.sqlite"
    carry_out(planned(album(root, Metadata(rating=4), Metadata(rating=4)), [root], merge_metadata=True), store)
    trashed: list[str] = []

    def trash(path: str) -> None:
        trashed.append(os.path.basename(path))
        os.unlink(path)

    (root / "kept.jpg.xmp").rename(root / "aside")
    with opened(store) as journal:
        assert {outcome.done for outcome in purge(journal, trash=trash)} == {False}
        (root / "aside").rename(root / "kept.jpg.xmp")
        first = journal.entries((State.MOVED,))[0]
        assert [outcome.done for outcome in purge(journal, only=[first.id], trash=trash)] == [True]
    # What is in the trash needs the sidecar for good.
    take_back(store)
    assert (root / "1.jpg").exists()
    assert (root / "kept.jpg.xmp").exists()
    assert trashed == ["0.jpg"]


def test_a_kill_between_any_two_steps_leaves_no_half_sidecar(tmp_path: Path) -> None:
    """Kill the merge, then the undo that follows, at every step each; then undo in peace."""
    step, killed = 0, True
    while killed:
        root, store = tmp_path / f"{step}" / "root", tmp_path / f"{step}" / "journal.sqlite"
        groups = album(root, Metadata(rating=4), Metadata(title="Gate"))
        before = snapshot(root)
        plan = planned(groups, [root], merge_metadata=True)
        killed = fork_and_kill(lambda store=store, plan=plan: carry_out(plan, store), before_step=step)  # type: ignore[misc]
        photos = {data for data, _, _ in before.values()}
        assert photos <= contents(root)
        for number, said in enumerate((Metadata(rating=4), Metadata(title="Gate"))):
            if not (root / f"{number}.jpg").exists():
                saved = read_sidecar((root / "kept.jpg.xmp").read_bytes())
                assert not unsaid(said, saved), f"killed before step {step}"
        fork_and_kill(lambda store=store: take_back(store), before_step=step % 31)  # type: ignore[misc]
        assert photos <= contents(root)
        take_back(store)
        assert without_access(snapshot(root)) == without_access(before), f"killed before step {step}"
        step += 1
    assert step > 40


@pytest.mark.parametrize("merges", [False, True])
def test_the_command_says_what_it_would_write(tmp_path: Path, capsys: pytest.CaptureFixture[str], merges: bool) -> None:
    chosen = ActionOptions(apply=False, dry_run=True, hard_link=False, merge_metadata=merges)
    root = tmp_path / "root"
    with Store(tmp_path / "store") as store:
        assert carried_out(album(root, Metadata(rating=4), Metadata(title="Gate")), [str(root)], store, chosen) == 0
    said = capsys.readouterr().out.splitlines()
    assert said.count(f"would write: {root / 'kept.jpg.xmp'}") == merges
    stays = "It has metadata that the kept photo lacks, which --merge-metadata can save: rating."
    assert (f"stays: {root / '0.jpg'}: {stays}" in said) != merges
