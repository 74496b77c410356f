"""A person's choice moves a photo whatever its tier is; nothing else moves. It counts once, until the next choice."""

import os
from pathlib import Path
from typing import Any

import pytest

from clip_client.cli.main import main
from clip_client.dedup import DuplicateReport, Store
from clip_client.dedup.actions.apply import apply, recover
from clip_client.dedup.actions.chosen_runs import declare, notice_put_back, take_back
from clip_client.dedup.compare.chosen_groups import chosen_photos
from clip_client.dedup.store.choices import DONE, KEEP, UNDONE, WAITING, ChosenPhoto
from clip_client.dedup.store.decisions import DIFFERENT, KEEP_ALL
from clip_client.dedup.store.journal import JournalEntry, MovedFile, State
from clip_client.dedup.types import BURST, SIMILAR
from tests.fixtures.albums import carried_out, link_what_moved, member, planned, report, write
from tests.fixtures.commands import Said
from tests.fixtures.crashes import Kills, fork_and_kill


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def a_group(folder: Path, **last: Any) -> DuplicateReport:
    """Return three different photos that look alike; ``last`` is about the third."""
    paths = [write(folder / f"{name}.jpg", name.encode()) for name in "abc"]
    others = [{"tier": SIMILAR, "similarity": 0.9}, {"tier": SIMILAR, "similarity": 0.9, **last}]
    return report(tuple(member(path, **more) for path, more in zip(paths, [{}, *others], strict=True)))


def chosen_pairs(root: Path, store: Path, count: int = 2) -> DuplicateReport:
    """Make pairs of copies, and choose that the second one of each moves."""
    pairs = [[write(root / f"{number}{name}.jpg", b"%d" % number) for name in "ab"] for number in range(count)]
    with Store(store) as opened:
        for pair in pairs:
            first, second = (ChosenPhoto(str(path), member(path).sha256) for path in pair)
            opened.choices.add([(KEEP, [first, second._replace(moves=True)])])
    return report(*(tuple(map(member, pair)) for pair in pairs))


def command(store: Path, *words: object, code: int = 0) -> None:
    assert main([*map(str, words), "--store", str(store)]) == code


def act(found: DuplicateReport, root: Path, store: Path, *, is_chosen: bool = True, **options: Any) -> list[str]:
    """Apply what is chosen, or what moves by its tier; return what is said."""
    with Store(store) as opened:
        return carried_out(found, [root], opened, is_chosen=is_chosen, **{"apply": True, **options})


def left(folder: Path) -> str:
    return " ".join(sorted(path.stem for path in folder.glob("*.jpg")))


def found_now(found: DuplicateReport) -> DuplicateReport:
    """Return the groups that another search finds: those of which all photos are there."""
    return report(*(one.members for one in found.groups if all(os.path.exists(each.path) for each in one.members)))


def states(store: Path) -> list[str]:
    """The states of the choices, after the next process has looked what became of them."""
    with Store(store) as opened:
        with opened.journal.exclusive():
            recover(opened.journal)
        notice_put_back(opened)
        return [choice.state for choice in opened.choices.all()]


def test_the_last_choice_about_a_group_moves_and_nothing_else_does(root: Path, store: Path, said: Said) -> None:
    found = a_group(root, other_shot=BURST)
    a, b, c = (root / f"{name}.jpg" for name in "abc")
    for choice in ([a, b], [c, b]):
        command(store, "decide", "keep", *choice)
    act(found, root, store)
    with Store(store) as opened:
        (entry,) = opened.journal.entries(["moved"])
        assert (entry.tier, entry.is_chosen, entry.kept) == (SIMILAR, True, str(c))
        assert [choice.run for choice in opened.choices.all()] == ["", entry.run]
    assert left(root) == "a c"
    command(store, "undo")
    assert states(store) == [UNDONE, UNDONE]
    lines = act(found, root, store)
    assert (left(root), lines[-1]) == ("a b c", "0 photos moved")
    assert f"stays: {b}: Its choice was undone; to move it, choose again." in lines
    assert f"keep, run {entry.run}, undone" in "".join(said("decide", "list", "--store", store))
    command(store, "decide", "keep", b, c)  # c is a frame of a burst, and a person wants it to move
    act(found, root, store)
    assert left(root) == "a b"
    assert states(store) == [UNDONE, UNDONE, DONE]


def test_a_choice_about_other_bytes_or_taken_back_moves_nothing(root: Path, store: Path) -> None:
    a_group(root)
    a, b, c = (root / f"{name}.jpg" for name in "abc")
    command(store, "decide", "keep", a, b)
    write(b, b"saved by another program")
    found = report(tuple(map(member, (a, b, c))))
    act(found, root, store)
    assert left(root) == "a b c"
    command(store, "decide", "keep", a, c)
    command(store, "decide", "forget", c)
    act(found, root, store)
    assert left(root) == "a b c"


def test_a_chosen_photo_that_stays_is_listed_with_the_reason(root: Path, store: Path, tmp_path: Path) -> None:
    found = a_group(root)
    a, b = root / "a.jpg", root / "b.jpg"
    other, gone = (write(root / name, name.encode()) for name in ("other.jpg", "gone.jpg"))
    elsewhere = [write(tmp_path / "elsewhere" / name, name.encode()) for name in ("1.jpg", "2.jpg")]
    for choice in ([a, b], [a, other], [other, gone], elsewhere):
        command(store, "decide", "keep", *choice)
    gone.unlink()
    command(store, "decide", "keep", a, other)
    assert act(found, root, store, apply=False, dry_run=True) == [
        f"stays: {b}: A later choice about its group holds.",
        f"stays: {other}: The search does not find it in one group with {a}, or a chosen photo has changed.",
        "--apply would move nothing",
    ]


@pytest.mark.parametrize("rules", ["pixels", "pixels, act-on=similar"])
def test_what_rules_chose_moves_only_by_proof_although_an_earlier_version_let_them_name_a_tier(
    rules: str, root: Path, store: Path
) -> None:
    """The store holds a choice that moves all; c is a frame of a burst, which only a look at it can move."""
    found = a_group(root, other_shot=BURST)
    with Store(store) as opened:
        opened.choices.add([("keep", chosen_photos(found.groups[0], {1, 2}))], rules=rules)
    act(found, root, store)
    assert left(root) == "a b c"


# What became of choices, also after a kill.


def test_after_a_kill_each_choice_is_done_or_waits(kills: Kills) -> None:
    seen = set()
    for folder in kills.every(3):
        root, store = folder / "root", folder / "store"
        found = chosen_pairs(root, store)
        kills.kill(act, found, root, store)
        after = states(store)
        seen.add(tuple(after))
        moved = [not (root / f"{number}b.jpg").exists() for number in range(2)]
        assert after == [DONE if is_moved else WAITING for is_moved in moved], f"killed before step {kills.step}"
        act(found_now(found), root, store)
        assert left(root) == "0a 1a"
        # What is taken back stays back, although the process that takes it back is killed, too.
        fork_and_kill(command, store, "undo", before_step=kills.step)
        command(store, "undo")
        act(found, root, store)
        assert left(root) == "0a 0b 1a 1b", f"killed before step {kills.step}"
        assert states(store) == [UNDONE, UNDONE]
    assert seen == {(WAITING, WAITING), (DONE, WAITING), (DONE, DONE)}


def test_an_undo_that_is_killed_lets_nothing_move_that_it_brought_back(kills: Kills) -> None:
    """The choice still waits: ``--apply`` moved the photo by its tier, so the journal does not name the choice."""
    for folder in kills.every(3):
        root, store = folder / "root", folder / "store"
        found = chosen_pairs(root, store, count=1)
        act(found, root, store, is_chosen=False)
        assert states(store) == [WAITING]
        kills.kill(command, store, "undo", root / "0b.jpg")
        is_back = (root / "0b.jpg").exists()
        act(found_now(found), root, store)
        assert (root / "0b.jpg").exists() or not is_back, f"killed before step {kills.step}"


def test_photos_that_a_person_put_back_wait_for_a_new_choice(root: Path, store: Path) -> None:
    found = chosen_pairs(root, store)
    act(found, root, store)
    write(root / "0b.jpg", b"0")
    assert states(store) == [UNDONE, DONE]
    act(found, root, store)
    assert left(root) == "0a 0b 1a"


def test_a_choice_that_hard_links_carried_out_is_done(root: Path, store: Path) -> None:
    """The link has the path of the copy, so the path does not tell that the copy is back."""
    act(chosen_pairs(root, store, count=1), root, store)
    link_what_moved(store / "history.sqlite")
    assert os.path.samefile(root / "0a.jpg", root / "0b.jpg")
    assert states(store) == [DONE]
    with Store(store) as opened:
        (entry,) = opened.journal.entries((State.MOVED,))
        opened.journal.set_state(entry, State.PURGED)
        assert states(store) == [DONE]
        opened.journal.set_state(entry, State.MOVED)
    command(store, "undo")
    assert states(store) == [UNDONE]


def test_a_choice_waits_until_its_photo_has_moved_and_is_not_withdrawn_meanwhile(root: Path, store: Path) -> None:
    """The process that moves the photo was killed, and the disk is not connected."""
    chosen_pairs(root, store, count=1)
    with Store(store) as opened:
        (choice,) = opened.choices.all()
        file = MovedFile(choice.photos[1].path, "/nowhere/q", "", 1, 0, 0)
        facts = JournalEntry(run="a run", kept="/nowhere/a", choice=choice.id, files=(file,))
        entry = opened.journal.plan(facts)
        opened.choices.withdraw([choice.id])
        assert states(store) == [WAITING]
        entry = opened.journal.set_state(entry, State.MOVED)
        opened.choices.withdraw([choice.id])
        assert [(one.state, one.run) for one in opened.choices.all()] == [(DONE, "a run")]
        opened.journal.set_state(entry, State.RESTORED)
        assert [one.state for one in opened.choices.all()] == [UNDONE]
        opened.choices.withdraw([choice.id])
        assert states(store) == []


def test_a_choice_that_is_taken_back_after_the_plan_moves_nothing(root: Path, store: Path) -> None:
    found = chosen_pairs(root, store)
    with Store(store) as opened:
        first, second = opened.choices.all()
        of = {choice.photos[1].path: choice.id for choice in (first, second)}
        opened.choices.withdraw([first.id])
        outcomes = apply(planned(found, [root]), opened.journal, choices=of)
        assert [(one.done, one.message) for one in outcomes[:1]] == [(False, "Its choice was undone.")]
        assert [(one.id, one.state) for one in opened.choices.all()] == [(second.id, DONE)]
    assert left(root) == "0a 0b 1a"


def test_undo_of_a_run_takes_its_decisions_back_too(store: Path, said: Said) -> None:
    def undo(*words: str, code: int = 0) -> list[str]:
        return said("undo", *words, "--store", store, code=code)

    with Store(store) as opened:
        for run, what in (("one", DIFFERENT), ("other", KEEP_ALL)):
            photos = [ChosenPhoto(f"/{run}/{number}.jpg", f"{run}{number}") for number in range(2)]
            choices = opened.choices.add([(what, photos)])
            for _ in range(2):  # as a second process does that has planned the same
                declare(opened, choices, run)
        assert len(opened.decisions.all()) == 2
    assert undo("--list") == [
        f"one  1 decision; undo with: clip-client undo --run one --store {store}",
        f"other  1 decision; undo with: clip-client undo --run other --store {store}",
        "",
        "one  different: /one/0.jpg, /one/1.jpg",
        "other  keep-all: /other/0.jpg, /other/1.jpg",
    ]
    # Without a run, it restores photos only.
    assert "2 decisions of these runs still apply; clip-client undo --list shows them" in undo()
    for named in (["/one"], ["--run", "one", "/one/0.jpg"]):
        assert [line.split()[0] for line in undo("--list", *named) if line] == ["one", "one"]
        assert undo(*named, code=1)[0] == "0 photos restored"
    assert "1 decision undone" in undo("--run", "one")
    with Store(store) as opened:
        assert [one.what for one in opened.decisions.all()] == [KEEP_ALL]
        assert [one.state for one in opened.choices.all()] == [UNDONE, DONE]
        assert (opened.choices.runs(DIFFERENT), opened.choices.runs(KEEP_ALL)) == ({}, {"other": 1})
    assert [line.split()[0] for line in undo("--list") if line] == ["other", "other"]
    undo("--run", "one", code=1)
    # A decision that was forgotten has nothing left to take back.
    with Store(store) as opened:
        opened.decisions.forget(["other0"])
        assert opened.choices.runs(KEEP_ALL) == {}


def test_undo_restores_one_run_or_single_entries_the_newest_first(root: Path, store: Path) -> None:
    photos = {name: [write(root / name / f"{number}.jpg", name.encode()) for number in range(3)] for name in "ab"}
    with Store(store) as opened:
        for run, of_run in photos.items():
            apply(planned(report(tuple(map(member, of_run))), [root]), opened.journal, run=run)
        (_, a1, a2), (_, b1, b2) = ([str(path) for path in of_run] for of_run in photos.values())

        def restored(**chosen: Any) -> list[str]:
            outcomes, _ = take_back(opened, **chosen)
            assert all(outcome.message == "Restored." for outcome in outcomes)
            return [outcome.path for outcome in outcomes]

        ids = {entry.files[0].original: entry.id for entry in opened.journal.entries((State.MOVED,))}
        assert restored(only=[]) == restored(run="a", only=[ids[b1]]) == []
        assert restored(run="a", only=[ids[a1], ids[b1]]) == [a1]
        assert restored(run="b") == [b2, b1]
        assert restored() == [a2]


def test_a_decision_and_its_choice_are_recorded_together(kills: Kills) -> None:
    seen = set()
    for folder in kills.every(1):
        store = folder / "store"
        with Store(store) as opened:
            choices = opened.choices.add([(KEEP_ALL, [ChosenPhoto(f"/{one}.jpg", one) for one in "ab"])])
        kills.kill(lambda place, these: declare(Store(place), these, "a run"), store, choices)
        with Store(store) as opened:
            seen.add((*states(store), len(opened.decisions.all())))
    assert seen == {(WAITING, 0), (DONE, 1)}


def test_only_what_another_process_does_with_choices_counts_as_a_change(store: Path) -> None:
    photos = [ChosenPhoto(f"/{one}.jpg", one) for one in "ab"]
    with Store(store) as opened, Store(store) as other:
        choices = opened.choices
        assert not choices.changed_elsewhere()
        other.journal.new_run()
        assert not choices.changed_elsewhere()
        choices.add([(KEEP_ALL, photos)])
        assert not choices.changed_elsewhere()
        declare(other, list(other.choices.all()), "a run")
        assert choices.changed_elsewhere()
        other.choices.add([(KEEP_ALL, photos)])
        assert choices.changed_elsewhere()
        assert not choices.changed_elsewhere()
