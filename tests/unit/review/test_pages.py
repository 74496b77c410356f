"""What the pages show, and what a choice leaves in the store: the real server, and requests as a browser sends them."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

from anyio import to_thread

from clip_client.dedup import Store
from clip_client.review.state.session import Session
from tests.fixtures.albums import member, report, write
from tests.fixtures.reviews import Review, of_report, review_of
from tests.unit.review.albums import applied, found_in, states

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from clip_client.dedup.report import DuplicateReport
    from clip_client.dedup.types import OnProgress


def test_the_list_shows_every_group_and_a_group_shows_every_photo(review: Review) -> None:
    page = review.get("/")
    assert page.text.count("data-group=") == 2
    assert review.get("/groups/2").text.count("data-place=") == 3
    assert review.get("/groups/3").status == 404


def test_enter_opens_the_first_undecided_group(review: Review) -> None:
    assert 'href="groups/1" data-key="Enter"' in review.get("/").text
    review.post("/groups/1/choice", {"what": "skip"})
    assert 'href="groups/2" data-key="Enter"' in review.get("/").text


def test_a_large_group_shows_its_first_photos_and_the_others_move_as_suggested(album: Path, tmp_path: Path) -> None:
    paths = [write(album / "many" / f"{number:03}.jpg", b"copy") for number in range(120)]
    found = report(tuple(map(member, paths)))
    with review_of(album, store=tmp_path / "store", search=of_report(found)) as review:

        def shown(path: str) -> list[int]:
            return list(map(int, re.findall(r'data-place="(\d+)"', review.get(path).text)))

        def moving() -> set[int]:
            group = review.session.groups.get(1)
            assert group is not None
            return group.keep_and_moving[1]

        assert shown("/groups/1") == [*range(60)]
        assert shown("/groups/1?most=240") == [*range(120)]
        review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1], "seen": 60})
        assert moving() == {1, *range(60, 120)}
        review.post("/groups/1/choice", {"what": "keep", "keep": 90, "move": [0, 119]})
        assert shown("/groups/1") == [*range(60), 90]
        review.post("/groups/1/choice", {"what": "keep", "keep": 1, "move": [0, 90], "seen": 60})
        assert moving() == {0, 90, 119}
        write(paths[119].with_suffix(".jpg.xmp"), b"<x/>")
        assert list(review.get("/groups/1/plan?keep=1&move=0&seen=60").json) == ["119"]
        applied(review)
        assert shown("/groups/1?most=2") == [0, 1]


def test_an_address_that_leads_nowhere_is_answered_to_a_person_in_a_page(review: Review) -> None:
    opened = {"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    answer = review.request("GET", f"{review.secret}/groups/999", **opened)
    assert answer.status == 404
    assert "<h1>There is no such group</h1>" in answer.text
    assert review.get("/groups/999").json == {"error": "there is no such group"}


def test_a_choice_is_in_the_store_and_in_the_next_session(review: Review, album: Path, tmp_path: Path) -> None:
    answer = review.post("/groups/2/choice", {"what": "keep", "keep": 2, "move": [0]})
    assert answer.status == 200
    with Store(tmp_path / "store") as store:
        (choice,) = store.choices.all()
        assert (choice.what, choice.run) == ("keep", "")
        assert [photo.moves for photo in choice.photos] == [False, True, False]
    with review_of(album, store=tmp_path / "store", search=of_report(found_in(album))) as second:
        assert states(second) == {"exact": "open", "similar": "keep"}


def test_a_page_made_at_the_end_of_the_search_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    read_version: Callable[[Session], int] = vars(Session)["version"].fget

    async def search(_on_progress: OnProgress) -> DuplicateReport:
        await to_thread.run_sync(may_end.wait)
        return report()

    def version_after_the_end(session: Session) -> int:
        if not may_end.is_set():
            before = read_version(session)
            may_end.set()
            while read_version(session) == before:
                time.sleep(0.001)
        return read_version(session)

    with review_of(tmp_path, store=tmp_path / "store", search=search, waits=False) as running:
        assert running.post("/plan").status == 409, "the search has not finished"
        monkeypatch.setattr(Session, "version", property(version_after_the_end))
        page = running.get("/").text
        is_old = f'data-version="{running.session.version}"' not in page
        assert is_old or "Looking for duplicates" not in page
