"""What a person chose moves whatever its tier is, and nothing else does: once, until a person chooses again."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clip_client.cli.main import main
from clip_client.cli.options.dedup import ActionOptions
from clip_client.dedup import Store
from clip_client.dedup.actions.apply import apply, recover
from clip_client.dedup.actions.chosen_runs import record, settle, take_back
from clip_client.dedup.compare.chosen_groups import chosen_photos
from clip_client.dedup.store.choices import DONE, KEEP, UNDONE, WAITING, Choices, ChosenPhoto
from clip_client.dedup.store.decisions import DIFFERENT, KEEP_ALL
from clip_client.dedup.store.journal import MovedFile, State
from clip_client.dedup.types import BURST, SIMILAR
from tests.fixtures.albums import MODEL, carried_out, member, planned, report, write
from tests.fixtures.crashes import IN_MEMORY, fork_and_kill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clip_client.dedup import DuplicateReport

APPLY_CHOSEN = ActionOptions(apply=True, is_chosen=True)


def a_group(folder: Path, model: str = "m/random:0@00000000", **last: Any) -> DuplicateReport:
    """Return three different photos that look alike; ``last`` is about the third."""
    paths = [write(folder / f"{name}.jpg", name.encode()) for name in "abc"]
    others = [{"tier": SIMILAR, "similarity": 0.9}, {"tier": SIMILAR, "similarity": 0.9, **last}]
    return report(
        tuple(member(path, **more) for path, more in zip(paths, [{}, *others], strict=True)),
        model=model,
    )


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.jpg"))


def test_the_last_choice_about_a_group_moves_and_nothing_else_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, store = tmp_path / "photos", ["--store", str(tmp_path / "store")]
    found = a_group(photos, other_shot=BURST)
    a, b, c = (str(photos / f"{name}.jpg") for name in "abc")
    for choice in ([a, b], [c, b]):
        assert main(["decide", "keep", *choice, *store]) == 0
    with Store(tmp_path / "store") as opened:
        assert carried_out(found, [str(photos)], opened, APPLY_CHOSEN) == 0
        (entry,) = opened.journal.entries(["moved"])
        assert (entry.tier, entry.is_chosen) == (SIMILAR, True)
        assert [choice.run for choice in opened.choices.all()] == ["", entry.run]
    assert (left(photos), entry.kept) == (["a.jpg", "c.jpg"], c)
    assert main(["undo", *store]) == 0
    said: list[str] = []
    with Store(tmp_path / "store") as opened:
        assert [(choice.run, choice.state) for choice in opened.choices.all()] == [("", UNDONE), (entry.run, UNDONE)]
        carried_out(found, [str(photos)], opened, APPLY_CHOSEN, say=said.append)
    assert (left(photos), said[-1]) == (["a.jpg", "b.jpg", "c.jpg"], "0 photos moved")
    assert f"stays: {b}: Its choice was taken back; to move it, choose again." in said
    assert main(["decide", "list", *store]) == 0
    assert f"keep, run {entry.run}, taken back" in capsys.readouterr().out
    assert main(["decide", "keep", b, c, *store]) == 0  # c is a frame of a burst, and a person wants it to move
    with Store(tmp_path / "store") as opened:
        carried_out(found, [str(photos)], opened, APPLY_CHOSEN)
    assert left(photos) == ["a.jpg", "b.jpg"]
    capsys.readouterr()


@pytest.mark.parametrize("how", [["undo"], ["undo", "b.jpg"], ["undo", "--suspects"]])
def test_what_was_brought_back_waits_for_a_new_choice_whatever_moved_it(
    how: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The choice has not been carried out, because ``--apply`` moved the photo first, as an exact copy."""
    photos, store = tmp_path / "photos", ["--store", str(tmp_path / "store")]
    a, b = (write(photos / f"{name}.jpg", b"copy") for name in "ab")
    found = report((member(a), member(b)))
    assert main(["decide", "keep", str(a), str(b), *store]) == 0
    with Store(tmp_path / "store") as opened:
        assert carried_out(found, [str(photos)], opened, ActionOptions(apply=True)) == 0
    if "--suspects" in how:
        a.rename(tmp_path / "elsewhere.jpg")
    assert main([*(str(photos / part) if part == "b.jpg" else part for part in how), *store]) == 0
    if "--suspects" in how:
        (tmp_path / "elsewhere.jpg").rename(a)
    with Store(tmp_path / "store") as opened:
        assert [choice.state for choice in opened.choices.all()] == [UNDONE]
        carried_out(found, [str(photos)], opened, APPLY_CHOSEN)
    assert left(photos) == ["a.jpg", "b.jpg"]


def test_a_choice_about_other_bytes_or_taken_back_moves_nothing(tmp_path: Path) -> None:
    photos, store = tmp_path / "photos", ["--store", str(tmp_path / "store")]
    a_group(photos)
    a, b, c = (str(photos / f"{name}.jpg") for name in "abc")
    assert main(["decide", "keep", a, b, *store]) == 0
    write(photos / "b.jpg", b"saved by another program")
    found = report(tuple(member(photos / f"{name}.jpg") for name in "abc"))
    with Store(tmp_path / "store") as opened:
        carried_out(found, [str(photos)], opened, APPLY_CHOSEN)
        assert left(photos) == ["a.jpg", "b.jpg", "c.jpg"]
    assert main(["decide", "keep", a, c, *store]) == 0
    assert main(["decide", "forget", c, *store]) == 0
    with Store(tmp_path / "store") as opened:
        carried_out(found, [str(photos)], opened, APPLY_CHOSEN)
    assert left(photos) == ["a.jpg", "b.jpg", "c.jpg"]


def test_a_chosen_photo_that_stays_is_listed_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, store = tmp_path / "photos", ["--store", str(tmp_path / "store")]
    found = a_group(photos)
    a, b, other = str(photos / "a.jpg"), str(photos / "b.jpg"), str(write(photos / "other.jpg", b"other"))
    elsewhere = [str(write(tmp_path / "elsewhere" / name, name.encode())) for name in ("1.jpg", "2.jpg")]
    gone = str(write(photos / "gone.jpg", b"gone"))
    for choice in ([a, b], [a, other], [other, gone], elsewhere):
        assert main(["decide", "keep", *choice, *store]) == 0
    (photos / "gone.jpg").unlink()
    assert main(["decide", "keep", a, other, *store]) == 0
    capsys.readouterr()
    said: list[str] = []
    with Store(tmp_path / "store") as opened:
        carried_out(found, [str(photos)], opened, ActionOptions(dry_run=True, is_chosen=True), say=said.append)
    assert said == [
        f"stays: {b}: A later choice about its group holds.",
        f"stays: {other}: The search does not find it in one group with {a}, or a chosen photo has changed.",
        "--apply would move nothing",
    ]


@pytest.mark.parametrize(
    ("model", "rules", "stay"),
    [
        (MODEL, "pixels", ["a.jpg", "b.jpg", "c.jpg"]),
        (MODEL, "pixels, act-on=similar", ["a.jpg", "c.jpg"]),
        (MODEL, "act-on=edited", ["a.jpg", "b.jpg", "c.jpg"]),
        ("m/random:0@1", "act-on=similar", ["a.jpg", "b.jpg", "c.jpg"]),
    ],
)
def test_what_rules_chose_moves_by_default_or_by_a_tier_that_a_person_added(
    model: str, rules: str, stay: list[str], tmp_path: Path
) -> None:
    """The store holds a choice that moves all; c is a frame of a burst, which only a look at it can move."""
    photos = tmp_path / "photos"
    found = a_group(photos, model, other_shot=BURST)
    (group,) = found.groups
    with Store(tmp_path / "store") as store:
        store.choices.add([("keep", chosen_photos(group, {1, 2}))], rules=rules)
        assert carried_out(found, [str(photos)], store, APPLY_CHOSEN) == 0
    assert left(photos) == stay


# What became of choices, also after a kill.


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as name:
        yield Path(name)


def chosen_pairs(root: Path, store: Path, count: int = 2) -> DuplicateReport:
    """Make pairs of copies, and choose that the second one of each moves."""
    pairs = [[write(root / f"{number}{name}.jpg", b"%d" % number) for name in "ab"] for number in range(count)]
    with Store(store) as opened:
        for pair in pairs:
            first, second = (ChosenPhoto(str(path), member(path).sha256) for path in pair)
            opened.choices.add([(KEEP, [first, second._replace(moves=True)])])
    return report(*(tuple(map(member, pair)) for pair in pairs))


def apply_chosen(found: DuplicateReport, root: Path, store: Path) -> None:
    with Store(store) as opened:
        carried_out(found, [str(root)], opened, APPLY_CHOSEN, say=lambda _line: None)


def found_now(found: DuplicateReport) -> DuplicateReport:
    """What another search finds: groups of which all photos are there."""
    return report(*(one.members for one in found.groups if all(os.path.exists(each.path) for each in one.members)))


def states(store: Path) -> list[str]:
    """The states of the choices, after the next process has looked what became of them."""
    with Store(store) as opened:
        with opened.journal.exclusive():
            recover(opened.journal)
            settle(opened)
        return [choice.state for choice in opened.choices.all()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are killed by way of fork")
def test_after_a_kill_each_choice_is_done_or_waits(folder: Path) -> None:
    step, killed, seen = 0, True, set()
    while killed:
        root, store = folder / str(step) / "root", folder / str(step) / "store"
        found = chosen_pairs(root, store)
        killed = fork_and_kill(lambda: apply_chosen(found, root, store), before_step=step)  # noqa: B023
        after = states(store)
        seen.add(tuple(after))
        moved = [not (root / f"{number}b.jpg").exists() for number in range(2)]
        assert after == [DONE if is_moved else WAITING for is_moved in moved], f"killed before step {step}"
        apply_chosen(found_now(found), root, store)
        assert sorted(path.name for path in root.glob("*.jpg")) == ["0a.jpg", "1a.jpg"]
        # What is taken back stays back, although the process that takes it back is killed, too.
        undo = lambda: main(["undo", "--store", str(store)])  # noqa: B023, E731
        fork_and_kill(undo, before_step=step)
        assert main(["undo", "--store", str(store)]) == 0
        apply_chosen(found, root, store)
        assert len(list(root.glob("*.jpg"))) == 4, f"killed before step {step}"
        assert states(store) == [UNDONE, UNDONE]
        step += 3
    assert seen == {(WAITING, WAITING), (DONE, WAITING), (DONE, DONE)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are killed by way of fork")
def test_an_undo_that_is_killed_lets_nothing_move_that_it_brought_back(folder: Path) -> None:
    """The choice still waits: ``--apply`` moved the photo by its tier, so the journal does not name the choice."""
    step, killed = 0, True
    while killed:
        root, store = folder / str(step) / "root", folder / str(step) / "store"
        found = chosen_pairs(root, store, count=1)
        with Store(store) as opened:
            carried_out(found, [str(root)], opened, ActionOptions(apply=True), say=lambda _line: None)
            assert [choice.state for choice in opened.choices.all()] == [WAITING]
        killed = fork_and_kill(lambda: main(["undo", "--store", str(store)]), before_step=step)  # noqa: B023
        is_back = (root / "0b.jpg").exists()
        apply_chosen(found_now(found), root, store)
        assert (root / "0b.jpg").exists() == is_back, f"killed before step {step}"
        step += 3


def test_a_new_choice_about_what_was_taken_back_is_carried_out(tmp_path: Path) -> None:
    root, store = tmp_path / "root", tmp_path / "store"
    found = chosen_pairs(root, store, count=1)
    apply_chosen(found, root, store)
    assert main(["undo", "--store", str(store)]) == 0
    assert main(["decide", "keep", str(root / "0b.jpg"), str(root / "0a.jpg"), "--store", str(store)]) == 0
    apply_chosen(found, root, store)
    assert [path.name for path in root.glob("*.jpg")] == ["0b.jpg"]
    assert states(store) == [UNDONE, DONE]


def test_photos_that_a_person_put_back_wait_for_a_new_choice(tmp_path: Path) -> None:
    root, store = tmp_path / "root", tmp_path / "store"
    found = chosen_pairs(root, store)
    apply_chosen(found, root, store)
    write(root / "0b.jpg", b"0")
    assert states(store) == [UNDONE, DONE]
    apply_chosen(found, root, store)
    assert (root / "0b.jpg").exists()


def test_a_choice_that_hard_links_carried_out_is_done(tmp_path: Path) -> None:
    """The link has the path of the copy, so the path does not tell that the copy is back."""
    root, store = tmp_path / "root", tmp_path / "store"
    found = chosen_pairs(root, store, count=1)
    with Store(store) as opened:
        carried_out(found, [str(root)], opened, ActionOptions(apply=True, is_chosen=True, hard_link=True))
    assert os.path.samefile(root / "0a.jpg", root / "0b.jpg")
    assert states(store) == [DONE]
    assert main(["undo", "--store", str(store)]) == 0
    assert states(store) == [UNDONE]


def test_a_choice_on_a_disk_that_is_not_connected_is_left_as_it_is(tmp_path: Path) -> None:
    root, store = tmp_path / "root", tmp_path / "store"
    chosen_pairs(root, store, count=1)
    with Store(store) as opened:
        (choice,) = opened.choices.all()
        opened.choices.begin([choice.id], "a run")
        opened.journal.plan(
            run="a run", method="quarantine", kept="/nowhere/a", kept_sha256="", tier="exact",
            files=[MovedFile(choice.photos[1].path, "/nowhere/q", "", 1, 0, 0)],
        )  # fmt: skip
        settle(opened)
        assert [one.state for one in opened.choices.all()] == ["begun"]
        (entry,) = opened.journal.entries((State.PLANNED,))
        opened.journal.set_state(entry, State.ABANDONED)
        settle(opened)
        assert [(one.state, one.run) for one in opened.choices.all()] == [(WAITING, "")]


def test_undo_of_a_run_takes_its_decisions_back_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", str(tmp_path / "store")]
    with Store(tmp_path / "store") as opened:
        for run, what in (("one", DIFFERENT), ("other", KEEP_ALL)):
            photos = [ChosenPhoto(f"/{run}/{number}.jpg", f"{run}{number}") for number in range(2)]
            (choice,) = opened.choices.add([(what, photos)])
            opened.choices.begin([choice.id], run)
            record(opened.decisions, [(what, photos)])
            record(opened.decisions, [(what, photos)])  # as a process does that goes on after a kill
            opened.choices.set_state([choice.id], DONE)
        assert len(opened.decisions.all()) == 2
    assert main(["undo", "--list", *store]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "one  different: /one/0.jpg, /one/1.jpg",
        "other  keep-all: /other/0.jpg, /other/1.jpg",
    ]
    assert main(["undo", *store]) == 0  # restores photos only
    assert main(["undo", "--run", "one", *store]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 decision taken back"
    with Store(tmp_path / "store") as opened:
        assert [one.what for one in opened.decisions.all()] == [KEEP_ALL]
        assert [one.state for one in opened.choices.all()] == [UNDONE, DONE]
        assert (opened.choices.runs(DIFFERENT), opened.choices.runs(KEEP_ALL)) == ({}, {"other": 1})
    assert main(["undo", "--run", "one", *store]) == 1
    # A decision that was forgotten has nothing left to take back.
    with Store(tmp_path / "store") as opened:
        opened.decisions.forget(["other0"])
        settle(opened)
        assert opened.choices.runs(KEEP_ALL) == {}


def test_undo_restores_one_run_or_what_is_named_the_newest_first(tmp_path: Path) -> None:
    photos = {name: [write(tmp_path / name / f"{number}.jpg", name.encode()) for number in range(3)] for name in "ab"}
    with Store(tmp_path / "store") as store:
        for run, files in photos.items():
            apply(planned(report(tuple(map(member, files))), [tmp_path]), store.journal, run=run)
        (_, a1, a2), (_, b1, b2) = ([str(path) for path in files] for files in photos.values())

        def restored(**chosen: Any) -> list[str]:
            outcomes = take_back(store, **chosen).outcomes
            assert all(outcome.message == "Restored." for outcome in outcomes)
            return [outcome.path for outcome in outcomes]

        last = store.journal.entries((State.MOVED,))[-1]
        assert restored(run="a", paths=[b1]) == restored(only=[]) == restored(run="a", only=[last.id]) == []
        assert restored(run="a", paths=[a1, b1, a1]) == [a1]
        assert restored(run="b") == [b2, b1]
        assert restored() == [a2]


def test_what_another_process_carries_out_is_neither_begun_nor_withdrawn(tmp_path: Path) -> None:
    with Store(tmp_path / "one") as store, closing(Choices(tmp_path / "one" / "choices.sqlite")) as other:
        photos = [ChosenPhoto(f"/{number}.jpg", f"{number}") for number in range(2)]
        first, second = (store.choices.add([(DIFFERENT, photos)])[0].id for _ in range(2))
        assert store.choices.begin([first, 99], "one") == {first}
        assert other.begin([first, second], "other") == {second}
        other.withdraw([first])
        assert [(one.run, one.state) for one in other.all()] == [("one", "begun"), ("other", "begun")]


def test_choices_of_an_earlier_version_are_upgraded_in_place(tmp_path: Path) -> None:
    root, store = tmp_path / "root", tmp_path / "store"
    found = chosen_pairs(root, store)
    with Store(store) as opened:
        first = next(opened.choices.all())
        opened.choices.begin([first.id], "an earlier run")
    with closing(sqlite3.connect(store / "choices.sqlite")) as connection, connection:
        connection.execute("ALTER TABLE choices DROP COLUMN state")
        connection.execute("PRAGMA user_version = 1")
    with Store(store) as opened:
        assert [choice.state for choice in opened.choices.all()] == [DONE, WAITING]
        assert take_back(opened) == ((), 0)
    apply_chosen(found, root, store)
    assert sorted(path.name for path in root.glob("*.jpg")) == ["0a.jpg", "0b.jpg", "1a.jpg"]
