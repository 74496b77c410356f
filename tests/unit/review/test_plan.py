"""What would move and what would stay, and which plans are not carried out."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

from clip_client.dedup import Store
from clip_client.dedup.store.sqlite import StoreError
from clip_client.dedup.types import SAME_PIXELS, SIMILAR, Metadata
from clip_client.review.state.applying import Worker
from clip_client.review.state.session import Busy, Session
from tests.fixtures.albums import member, report, write
from tests.fixtures.reviews import Review, of_report, review_of
from tests.unit.review.albums import ALL_NAMES, done, found_in, names

if TYPE_CHECKING:
    from pathlib import Path


def test_the_plan_shows_the_size_of_a_photo_that_stays(album: Path, tmp_path: Path) -> None:
    kept, stays = write(album / "kept.jpg", b"kept"), write(album / "large.jpg", bytes(123_000))
    found = report((member(kept), member(stays, tier=SIMILAR, embedded="film", embedded_digest="1")))
    with review_of(album, store=tmp_path / "store", search=of_report(found)) as review:
        review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]})
        done(review, "/plan")
        plan = review.get("/plan").text
    assert "1 photo would stay; the list says why" in plan
    assert plan.count("123 kB") == 2, "of the photo, and of all that stay"


def test_a_group_says_what_apply_would_refuse(review: Review, album: Path) -> None:
    by_default = re.findall(r'by-default">(.*?)</td>', review.get("/groups/2").text)
    assert by_default[:2] == ["keeps it", "leaves it. It moves only with --act-on similar."]
    assert "another frame of a burst" in by_default[2]
    assert review.get("/groups/2/plan?keep=0&move=1&move=2").json == {}
    write(album / "y.jpg.xmp", b"<x/>")
    (refused,) = review.get("/groups/2/plan?keep=0&move=1").json.items()
    assert (refused[0], "sidecar" in refused[1]) == ("1", True)
    assert review.get("/groups/2/plan?keep=3&move=1").status == 400


def test_a_plan_of_other_choices_is_not_applied(review: Review, album: Path) -> None:
    review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]})
    number = done(review, "/plan")["number"]
    review.post("/groups/2/choice", {"what": "keep", "keep": 0, "move": [1]})
    answer = review.post("/apply", {"plan": number})
    assert (answer.status, answer.json["error"][:24]) == (409, "the choices have changed")
    assert review.post("/apply", {"plan": number + 1}).status == 409
    assert review.post("/apply", {"plan": str(number)}).status == 400
    assert names(album) == ALL_NAMES


def test_a_plan_that_could_not_be_finished_is_not_applied(album: Path, tmp_path: Path) -> None:
    class OnAFullDisk(Session):
        def judged(self, *_: Any, **__: Any) -> Any:
            raise StoreError("the disk is full")

    with Store(tmp_path / "store") as store:
        session = OnAFullDisk(store, [str(album)])
        asyncio.run(session.search(of_report(found_in(album))))
        session.choose(1, "keep", keep=0, move=[1])
        worker = Worker(session)
        worker.plan(merge_metadata=False)
        worker.join()
        assert worker.job is not None
        assert worker.job.error == "the disk is full"
        with pytest.raises(Busy, match="no such plan"):
            worker.apply(worker.job.number)


def test_what_only_a_copy_says_is_written_beside_the_kept_photo_if_a_person_wants_it(
    album: Path, tmp_path: Path
) -> None:
    said = (Metadata(lens="50 mm"), Metadata(lens="50 mm", rating=4))
    pair = [
        member(write(album / f"{rating}.jpg", b"%d" % rating), tier=SAME_PIXELS, metadata=metadata)
        for rating, metadata in enumerate(said)
    ]
    with review_of(album, store=tmp_path / "store", search=of_report(report(tuple(pair)))) as review:
        review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]})
        done(review, "/plan")
        assert "1 photo would stay" in review.get("/plan").text
        number = done(review, "/plan", {"merge_metadata": True})["number"]
        assert "1 photo would move" in review.get("/plan").text
        assert done(review, "/apply", {"plan": number})["error"] == ""
    assert {path.name for path in album.iterdir() if path.is_file()} == {"0.jpg", "0.jpg.xmp"}
