"""Choices are carried out and taken back through the journal; each test checks the files and the store."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clip_client.cli.main import main
from clip_client.dedup import Store
from clip_client.dedup.files.file_types import EDITED as EDITED_VERSION
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.store.decisions import KEEP_ALL
from clip_client.dedup.store.journal import State
from clip_client.dedup.types import EXACT, SIMILAR, Companion, LibraryPhoto
from clip_client.review.state import applying
from clip_client.review.state.applying import Job, Worker
from clip_client.review.state.found_groups import Filter, FoundGroup
from clip_client.review.state.session import FAILED, Busy, Session
from tests.fixtures.albums import files, member, report, searched, write
from tests.fixtures.crashes import Kills, contents, die_before
from tests.fixtures.photos_libraries import Photos, on_a_mac
from tests.fixtures.reviews import Review, of_report, review_of
from tests.fixtures.waiting import until
from tests.unit.review.albums import (
    ALL_NAMES,
    applied,
    apply_all,
    done,
    finished,
    found_in,
    names,
    plan_lines,
    session_of,
    states,
)

if TYPE_CHECKING:
    from clip_client.dedup.types import OnProgress

UNDONE = "The earlier decision about this group was undone"


@pytest.mark.parametrize("by", ["page", "command", "another server"])
def test_what_was_brought_back_is_open_until_a_person_decides_again(
    by: str, review: Review, album: Path, tmp_path: Path
) -> None:
    """The group is open on this page, in each later session, and for the next apply. A new decision counts as usual."""
    before = files(album)
    review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]})
    review.post("/groups/2/choice", {"what": "keep", "keep": 0, "move": [1, 2]})
    run = applied(review)
    with Store(tmp_path / "store") as store:
        moved = {(entry.tier, entry.is_chosen) for entry in store.journal.entries([State.MOVED])}
    assert moved == {(EXACT, True), (SIMILAR, True)}
    assert names(album) == {"a.jpg", "x.jpg"}
    assert states(review) == {EXACT: "applied", SIMILAR: "applied"}
    assert "3 photos moved to the quarantine" in review.get("/plan").text
    assert review.post("/groups/1/choice", {"what": "keep-all"}).status == 409, "it has been applied"
    assert run in review.get("/history").text
    assert UNDONE not in review.get("/groups/1").text
    if by == "page":
        assert done(review, f"/history/{run}/undo")["error"] == ""
        assert files(album) == before
    elif by == "command":
        assert main(["undo", "--store", str(tmp_path / "store")]) == 0
    else:
        with review_of(album, store=tmp_path / "store", search=of_report(found_in(album))) as second:
            done(second, f"/history/{run}/undo")
    with review_of(album, store=tmp_path / "store", search=of_report(found_in(album))) as later:
        for one in (review, later):
            assert states(one) == {EXACT: "open", SIMILAR: "open"}
            assert UNDONE in one.get("/groups/1").text
            assert done(one, "/plan")["total"] == 0
            assert one.post("/undo").status == 409, "it is no step that can be undone"
        assert names(album) == ALL_NAMES
        later.post("/groups/1/choice", {"what": "keep", "keep": 1, "move": [0]})
        assert UNDONE not in later.get("/groups/1").text
        later.post("/undo")
        assert (states(later)["exact"], UNDONE in later.get("/groups/1").text) == ("open", True)
        later.post("/groups/1/choice", {"what": "keep", "keep": 1, "move": [0]})
        applied(later)
    assert names(album) == ALL_NAMES - {"a.jpg"}


def test_a_second_server_loses_no_line_of_the_history_and_a_decision_is_listed_once(
    review: Review, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second server has planned the same decisions, and tries to apply them after the first server has done so."""
    review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]})
    review.post("/groups/2/choice", {"what": "different"})
    with review_of(album, store=tmp_path / "store", search=of_report(found_in(album))) as second:
        number = done(second, "/plan")["number"]
        found = list(second.session.groups.each(Filter(state="staged")))
        run = applied(review)
        assert second.post("/apply", {"plan": number}).status == 409
        with second.session.store.journal.exclusive():
            assert second.session.begin_run(found) == []
        second.post("/undo")
        for one in (review, second):
            page = one.get("/history").text
            assert (page.count("data-run="), f'data-run="{run}"' in page) == (1, True)
            assert "1 photo in the quarantine" in page
            assert "1 group of different photos" in page
    assert main(["decide", "list", "--store", str(tmp_path / "store")]) == 0
    said = capsys.readouterr().out
    assert (said.count("different"), f"  different, run {run}\n" in said) == (1, True)


def test_nobody_chooses_again_about_a_group_while_its_choice_is_carried_out(album: Path, tmp_path: Path) -> None:
    """A server that starts meanwhile leaves the choice alone."""
    with Store(tmp_path / "store") as store:
        session = session_of(store, album, of_report(found_in(album)))
        session.choose(2, "different")
        found = list(session.groups.each(Filter(state="staged")))
        with store.journal.exclusive():
            session.begin_run(found)
            with pytest.raises(Busy, match="has been applied"):
                session.choose(2, "keep-all")
            with review_of(album, store=tmp_path / "store", search=of_report(found_in(album))) as second:
                assert states(second)[SIMILAR] == "different"
        session.end_run()
        assert [choice.state for choice in store.choices.all()] == ["waiting"]
        session.choose(2, "keep-all")


def test_what_cannot_move_stays_with_its_reason_and_its_choice_waits(review: Review, album: Path) -> None:
    write(album / "b.jpg.xmp", b"<x/>")
    review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]})
    review.post("/groups/2/choice", {"what": "keep", "keep": 0, "move": [1]})
    write(album / "y.jpg", b"changed since the search")
    applied(review)
    assert names(album) == ALL_NAMES
    page = review.get("/plan").text
    assert "It has a sidecar beside it, which the kept photo lacks." in page
    assert "It has changed since it was compared." in page
    assert states(review) == {"exact": "keep", SIMILAR: "keep"}


@pytest.mark.parametrize("missing", ["the disk", "the photo"])
def test_the_choice_about_a_photo_that_is_not_there_waits_and_says_so(
    missing: str, review: Review, album: Path
) -> None:
    review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]})
    place = album if missing == "the disk" else album / "b.jpg"
    away = place.rename(place.with_name("away"))
    applied(review)
    assert "It is not there: it has gone, or its disk is not connected." in review.get("/plan").text
    assert states(review)[EXACT] == "keep"
    away.rename(place)
    applied(review)
    assert (names(album), states(review)[EXACT]) == (ALL_NAMES - {"b.jpg"}, "applied")


@pytest.mark.parametrize("what", ["keep", "open"])
def test_a_run_carries_out_what_was_planned_and_no_choice_that_is_made_meanwhile(
    what: str, album: Path, tmp_path: Path
) -> None:
    pairs = [[write(album / f"{number:02}{name}.jpg", b"%02d" % number) for name in "ab"] for number in range(52)]
    found = report(*(tuple(member(path) for path in pair) for pair in pairs))
    last = len(pairs)

    class AnotherTab(Session):
        """A person who chooses about the last group when the first batch of groups has begun to move."""

        def begin_run(self, groups: Iterable[FoundGroup]) -> list[FoundGroup]:
            batch = super().begin_run(groups)
            if len(batch) > 2:
                self.choose(last, what, keep=1, move=[0] if what == "keep" else ())
            return batch

    with Store(tmp_path / "store") as store:
        session = session_of(store, album, of_report(found), AnotherTab)
        for number in range(1, last + (what != "keep")):
            session.choose(number, "keep", keep=0, move=[1])
        apply_all(session)
        group = session.groups.get(last)
        assert group is not None
        assert group.state == what
    assert names(album) == {"51a.jpg", "51b.jpg", *(f"{number:02}a.jpg" for number in range(51))}


def test_two_requests_start_one_mover(review: Review, album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both arrive before either has begun: the first one waits, where it begins, for the second to get there, too."""
    review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]})
    number = done(review, "/plan")["number"]
    beginning: list[int] = []
    both = threading.Event()

    class SlowJob(Job):
        def __init__(self, **values: Any) -> None:
            super().__init__(**values)
            beginning.append(self.number)
            if len(beginning) == 2:
                both.set()
            both.wait(0.5)  # in vain, because only one request may get here

    monkeypatch.setattr(applying, "Job", SlowJob)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: review.post("/apply", {"plan": number}), range(2)))
    assert sorted(answer.status for answer in answers) == [200, 409]
    assert beginning == [number + 1]
    finished(review)
    assert names(album) == ALL_NAMES - {"b.jpg"}


def test_nothing_is_planned_or_taken_back_while_photos_move(
    review: Review, album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]})
    run = applied(review)
    review.post("/groups/2/choice", {"what": "keep", "keep": 0, "move": [1]})
    number = done(review, "/plan")["number"]
    goes_on = threading.Event()
    begin_run = review.session.begin_run

    def wait_and_begin(groups: Iterable[FoundGroup]) -> list[FoundGroup]:
        assert goes_on.wait(60)
        return begin_run(groups)

    monkeypatch.setattr(review.session, "begin_run", wait_and_begin)
    assert review.post("/apply", {"plan": number}).status == 200
    for path, body in (("/apply", {"plan": number}), ("/plan", {}), (f"/history/{run}/undo", {})):
        answer = review.post(path, body)
        assert (path, answer.status, "error" in answer.json) == (path, 409, True)
    goes_on.set()
    finished(review)
    assert names(album) == ALL_NAMES - {"b.jpg", "y.jpg"}


def test_the_last_step_is_taken_back_first_and_what_it_replaced_holds_again(review: Review) -> None:
    for keep, move in ((0, 1), (1, 0)):
        review.post("/groups/1/choice", {"what": "keep", "keep": keep, "move": [move]})
    review.post("/groups/2/choice", {"what": "skip"})
    assert states(review) == {"exact": "keep", SIMILAR: "skip"}
    review.post("/undo")
    assert states(review) == {"exact": "keep", SIMILAR: "open"}
    review.post("/undo")
    found = review.session.groups.get(1)
    assert found is not None
    assert [os.path.basename(photo.path) for photo in found.choice.photos] == ["a.jpg", "b.jpg"]
    review.post("/undo")
    assert review.post("/undo").status == 409
    assert set(states(review).values()) == {"open"}


def library_copies(folder: Path) -> DuplicateReport:
    """A photo, and two copies of it in a library of Apple Photos, of which one has an edited version."""
    library = folder / "lib"
    copies = []
    edited = Companion(path=str(library / "2.heic"), kind=EDITED_VERSION)
    for name, beside in (("1", ()), ("2", (edited,))):
        path = str(write(library / f"{name}.jpg", b"copy"))
        known = LibraryPhoto(path=path, library=str(library), uuid=name, name=name, taken_ns=None, companions=beside)
        copies.append(member(Path(path), in_library=known, companions=beside))
    return report((member(write(folder / "a.jpg", b"copy")), *copies))


@pytest.mark.parametrize("has_photos", [True, False])
def test_a_photo_of_apple_photos_goes_into_the_album_and_its_choice_is_applied(
    has_photos: bool, album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_photos:
        on_a_mac(monkeypatch, Photos(["1"]))
    with review_of(album, store=tmp_path / "store", search=of_report(library_copies(album))) as review:
        review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1, 2]})
        applied(review)
        assert states(review) == {EXACT: "applied" if has_photos else "keep"}
        titles = {title: [group for group, _ in lines] for title, lines in plan_lines(review).items()}
        assert titles == {"These stay": [1], "Moved" if has_photos else "Could not move": [1]}


def test_a_server_that_ends_stops_before_the_next_groups_and_their_choices_wait(review: Review, album: Path) -> None:
    review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]})
    number = done(review, "/plan")["number"]
    review.session.stop()
    assert "the server stopped" in done(review, "/apply", {"plan": number})["error"]
    assert names(album) == ALL_NAMES
    assert states(review)[EXACT] == "keep"


async def test_a_server_that_ends_stops_the_search(album: Path, tmp_path: Path) -> None:
    def search_folders(on_progress: OnProgress) -> DuplicateReport:
        while True:
            on_progress("looking for photos", 1, None)

    async def search(on_progress: OnProgress) -> DuplicateReport:
        return await asyncio.to_thread(search_folders, on_progress)

    with Store(tmp_path / "store") as store:
        session = Session(store, [str(album)])
        searching = asyncio.create_task(session.search(search))
        await until(lambda: session.progress)
        session.stop()
        await searching
    assert (session.phase, "the server stopped" in session.error) == (FAILED, True)


# A server that is killed.

STRIDE = 5
"""The process is killed before each of these steps, out of about 80."""


def apply_killed(root: Path, place: Path, found: DuplicateReport, step: int) -> None:
    with Store(place) as store:
        session = session_of(store, root, of_report(found))
        die_before(step)
        apply_all(session)


def test_a_kill_while_choices_are_applied_loses_nothing_and_the_next_session_continues(kills: Kills) -> None:
    moved_before = set()

    async def search(_on_progress: OnProgress) -> DuplicateReport:
        return await asyncio.to_thread(searched, root)

    for folder in kills.every(STRIDE):
        root, place = folder / "root", folder / "store"
        for number in range(3):
            for name in ("a", "b"):
                write(root / f"{number}{name}.nef", b"copy %d" % number)
        before, photos, found = files(root), contents(root), searched(root)
        with Store(place) as store:
            session = session_of(store, root, of_report(found))
            session.choose(1, "keep", keep=0, move=[1])
            session.choose(2, KEEP_ALL)
            session.choose(3, "keep", keep=1, move=[0])
        kills.kill(apply_killed, root, place, found, kills.step, before_step=sys.maxsize)
        assert contents(root) == photos
        with Store(place) as store:
            unfinished = store.journal.entries([State.PLANNED])
            session = session_of(store, root, search)
            assert bool(session.notice) == bool(unfinished)
            # What was moved before the kill is gone from the search; the other choices wait as they were.
            moved = {entry.files[0].original for entry in store.journal.entries(["moved"])}
            moved_before.add(len(moved))
            waiting = {photo.path for choice in store.choices.all() if not choice.run for photo in choice.photos}
            assert waiting.isdisjoint(moved)
            apply_all(session)
            runs = sorted(store.journal.runs(), reverse=True)
            assert sorted(path.name for path in root.glob("*.nef")) == ["0a.nef", "1a.nef", "1b.nef", "2b.nef"]
            assert [one.what for one in store.decisions.all()] == [KEEP_ALL]
            assert all(choice.run for choice in store.choices.all())
            worker = Worker(session)
            for run in runs:
                worker.restore(run)
                worker.join()
        assert files(root) == before, f"killed before step {kills.step}"
    assert kills.step > 5 * STRIDE
    assert moved_before == {0, 1, 2}
