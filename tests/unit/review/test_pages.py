"""The pages, the plan and the pictures: the real server, and requests as a browser sends them."""

import hashlib
import io
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from PIL import Image

from clip_client._storage.sqlite import StoreError
from clip_client.dedup import Store, scan
from clip_client.dedup.aligned import UNPROVED, UNTOLD
from clip_client.dedup.judge.verdicts import WAITS
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.store.journal import State
from clip_client.dedup.types import EDITED, SAME_PIXELS, SIMILAR
from clip_client.review.state.applying import Worker
from clip_client.review.state.previews import PreviewCache
from clip_client.review.state.session import Busy, Session
from tests.fixtures.albums import member, report, write
from tests.fixtures.images.camera_files import packet
from tests.fixtures.images.image_files import jpeg
from tests.fixtures.images.raw_files import dng
from tests.fixtures.members import aligned
from tests.fixtures.reviews import Review, of_report, review_of
from tests.unit.review.albums import ALL_NAMES, applied, done, found_in, names, session_of, states


def test_the_list_leads_to_the_first_undecided_group_and_counts_what_can_be_freed(review: Review, album: Path) -> None:
    page = review.get("/").text
    assert 'href="groups/1" data-key="Enter"' in page
    assert "1 photo, 4 B, can move safely" in page
    review.post("/groups/1/choice", {"what": "skip"})
    page = review.get("/").text
    assert 'href="groups/2" data-key="Enter"' in page
    assert "can move safely" not in page
    review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]})
    applied(review)
    assert [total["leaving_bytes"] for total in review.get("/state").json["totals"]] == [0, 0]
    assert "moved in 1 copy" in review.get("/groups/1").text
    write(album / "b.jpg", b"brought back by hand")
    assert "Nothing moved" in review.get("/groups/1").text


def test_a_photo_that_was_deleted_before_the_move_does_not_count_as_moved(
    review: Review, album: Path, tmp_path: Path
) -> None:
    """The moved photo counts also after a purge, when another choice lets the page read the choices again."""
    review.post("/groups/2/choice", {"what": "keep", "keep": 0, "move": [1, 2]})
    (album / "z.jpg").unlink()
    applied(review)
    assert names(album) == ALL_NAMES - {"y.jpg", "z.jpg"}
    assert "moved in 1 copy" in review.get("/groups/2").text
    with Store(tmp_path / "store") as store:
        (entry,) = store.journal.entries((State.MOVED,))
        store.journal.set_state(entry, State.PURGED)
    review.post("/groups/1/choice", {"what": "skip"})
    assert "moved in 1 copy" in review.get("/groups/2").text


def test_a_large_group_shows_its_first_photos_and_no_other_moves(album: Path, tmp_path: Path) -> None:
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
        review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]})
        assert moving() == {1}
        refused = review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1, 60, 119]})
        assert refused.status == 400
        assert refused.json["error"].startswith("photo 61 was not on the page")
        review.post("/groups/1/choice", {"what": "keep", "keep": 90, "move": [0, 119], "most": 240})
        assert shown("/groups/1") == [*range(60), 90]
        assert "1 of the others moves by this decision" in review.get("/groups/1").text
        review.post("/groups/1/choice", {"what": "keep", "keep": 1, "move": [0, 90]})
        assert moving() == {0, 90}
        write(paths[119].with_suffix(".jpg.xmp"), b"<x/>")
        assert list(review.get("/groups/1/plan?keep=1&move=0&move=119").json) == ["119"]
        applied(review)
        assert shown("/groups/1?most=2") == [0, 1]


def test_an_address_that_leads_nowhere_is_answered_to_a_person_in_a_page(review: Review) -> None:
    opened = {"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    answer = review.request("GET", f"{review.secret}/groups/999", **opened)
    assert answer.status == 404
    assert "<h1>There is no such group</h1>" in answer.text
    assert review.get("/groups/999").json == {"error": "there is no such group"}


def test_a_page_made_at_the_end_of_the_search_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    read_version: Callable[[Session], int] = vars(Session)["version"].fget

    async def search(_on_progress: object) -> DuplicateReport:
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


# What would move and what would stay, and which plans are not carried out.


def test_the_plan_says_how_large_what_stays_is_and_why_photos_move_only_by_choice(album: Path, tmp_path: Path) -> None:
    """Beside what moves, no reason says that it stays; a photo with the same pixels as another has its reason."""
    kept, untold, same, unproved = (write(album / f"{number}.jpg", b"%d" % number) for number in range(4))
    stays = write(album / "large.jpg", bytes(123_000))
    found = report(
        (
            member(kept),
            member(untold, tier=EDITED, matches=aligned(EDITED, doubts=(UNTOLD,))),
            member(same, tier=SIMILAR, copy_of=str(untold), copy_tier=SAME_PIXELS),
            member(unproved, tier=EDITED, matches=aligned(EDITED, doubts=(UNPROVED,))),
            member(stays, tier=SIMILAR, embedded="film", embedded_digest="1"),
        )
    )
    with review_of(album, store=tmp_path / "store", search=of_report(found)) as review:
        review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1, 2, 3, 4]})
        done(review, "/plan")
        plan = review.get("/plan").text
    assert "1 photo would stay; the list says why" in plan
    assert plan.count("123 kB") == 2, "of the photo, and of all that stay"
    untold_reason = "Which of the two shows more cannot be told, so neither moves unasked."
    assert re.findall(r'<span class="mark">(.*?)</span>', plan) == [
        untold_reason,
        "The kept photo is not proved to show all of this photo, so neither moves unasked.",
        untold_reason,
    ]


def test_a_group_says_what_apply_would_refuse(review: Review, album: Path) -> None:
    by_default = re.findall(r'by-default">(.*?)</td>', review.get("/groups/2").text)
    assert by_default[:2] == ["keeps it", f"leaves it. {WAITS.format('similar')}"]
    assert "another frame of a burst" in by_default[2]
    cards = re.findall(r'<p class="mark">(.*?)</p>', review.get("/groups/2").text)
    assert cards[0] == WAITS.format("similar"), "a card says why its photo waits"
    assert review.get("/groups/2/plan?keep=0&move=1&move=2").json == {}
    # X and y look alike; y and z were never compared.
    (unknown,) = review.get("/groups/2/plan?keep=1&move=0&move=2").json.items()
    assert (unknown[0], unknown[1][:43]) == ("2", "It was not compared with the kept photo, so")
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
        def with_verdicts(self, *_: Any, **__: Any) -> Any:
            raise StoreError("the disk is full")

    with Store(tmp_path / "store") as store:
        session = session_of(store, album, of_report(found_in(album)), OnAFullDisk)
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
    pair = [
        member(write(album / f"{rating}.jpg", jpeg(xmp=packet(f'xmp:Rating="{rating}">'))), tier=SAME_PIXELS)
        for rating in range(2)
    ]
    with review_of(album, store=tmp_path / "store", search=of_report(report(tuple(pair)))) as review:
        review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]})
        assert done(review, "/plan")["what"] == "planning"
        assert "1 photo would stay" in review.get("/plan").text
        number = done(review, "/plan", {"merge_metadata": True})["number"]
        assert "1 photo would move" in review.get("/plan").text
        assert done(review, "/apply", {"plan": number})["error"] == ""
    assert {path.name for path in album.iterdir() if path.is_file()} == {"0.jpg", "0.jpg.xmp"}


# Pictures of photos: whole, upright, never enlarged, and only of what was searched.


def saved(path: Path, width: int, height: int) -> str:
    """Save a photo; return the SHA-256 of its file."""
    Image.new("RGB", (width, height), "blue").save(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def drawn(jpeg: bytes | None) -> Image.Image:
    assert jpeg is not None
    return Image.open(io.BytesIO(jpeg))


@pytest.fixture
def previews(tmp_path: Path) -> PreviewCache:
    return PreviewCache(tmp_path / "previews")


def test_sizes_are_limits_and_nothing_is_enlarged(previews: PreviewCache, tmp_path: Path) -> None:
    sha256 = saved(tmp_path / "a.png", 4000, 1000)
    sizes = [drawn(previews.jpeg(sha256, [str(tmp_path / "a.png")], size)).size for size in ("small", "large", "full")]
    assert sizes == [(480, 120), (1600, 400), (4000, 1000)]
    icon = saved(tmp_path / "icon.png", 16, 12)
    assert drawn(previews.jpeg(icon, [str(tmp_path / "icon.png")], "full")).size == (16, 12)
    # A RAW file shows its preview.
    path = write(tmp_path / "a.dng", dng(Image.new("RGB", (320, 240)), orientation=6))
    raw = hashlib.sha256(path.read_bytes()).hexdigest()
    assert drawn(previews.jpeg(raw, [str(path)], "full")).size == (240, 320)


def test_a_file_that_was_replaced_is_not_shown_even_by_a_link(previews: PreviewCache, tmp_path: Path) -> None:
    sha256 = saved(tmp_path / "a.png", 8, 8)
    saved(tmp_path / "secret.png", 9, 9)
    os.remove(tmp_path / "a.png")
    assert previews.jpeg(sha256, [str(tmp_path / "a.png")], "small") is None
    os.symlink(tmp_path / "secret.png", tmp_path / "a.png")
    assert previews.jpeg(sha256, [str(tmp_path / "a.png")], "small") is None
    (tmp_path / "broken.png").write_bytes(b"no picture")
    broken = hashlib.sha256(b"no picture").hexdigest()
    assert previews.jpeg(broken, [str(tmp_path / "broken.png")], "small") is None


def test_a_picture_is_drawn_once_and_another_copy_will_do(previews: PreviewCache, tmp_path: Path) -> None:
    sha256 = saved(tmp_path / "a.png", 8, 8)
    first = previews.jpeg(sha256, [str(tmp_path / "missing.png"), str(tmp_path / "a.png")], "small")
    os.remove(tmp_path / "a.png")
    assert previews.jpeg(sha256, [], "small") == first
    # No search takes them for photos.
    assert scan(tmp_path).files == ()


def test_the_least_used_pictures_make_room(tmp_path: Path) -> None:
    contents = [saved(tmp_path / f"{number}.png", 50 + number, 50) for number in range(8)]
    one = len(PreviewCache(tmp_path / "one").jpeg(contents[0], [str(tmp_path / "0.png")], "small") or b"")
    folder = tmp_path / "previews"
    for number, sha256 in enumerate(contents):
        # Another process each time, so the sizes are those on the disk.
        previews = PreviewCache(folder, most_bytes=6 * one)
        previews.jpeg(sha256, [str(tmp_path / f"{number}.png")], "small")
        previews.jpeg(contents[0], [], "small")
        for age, file in enumerate(sorted(folder.glob("*.jpg"), key=lambda path: path.stat().st_mtime_ns)):
            os.utime(file, ns=(0, 10**9 * (age + 1)))
    kept = {path.name.partition("-")[0] for path in folder.glob("*.jpg")}
    assert sum(path.stat().st_size for path in folder.glob("*.jpg")) <= 6 * one
    assert {contents[0], contents[7]} <= kept
    assert contents[1] not in kept


def test_the_address_of_a_picture_names_its_content(review: Review, album: Path) -> None:
    saved(album / "x.jpg", 8, 8)
    for path in ("/photos/0/small", f"/photos/{'0' * 64}/small", f"/photos/{hashlib.sha256(b'x').hexdigest()}/huge"):
        assert review.get(path).status == 404
    # x.jpg was other bytes when it was searched.
    assert review.get(f"/photos/{hashlib.sha256(b'x').hexdigest()}/small").status == 404
    assert "Changed" in review.get("/groups/2").text or "changed" in review.get("/groups/2").text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"what": "keep", "keep": 0, "move": []}, "move at least one other"),
        ({"what": "keep", "keep": 1, "move": [1]}, "move at least one other"),
        ({"what": "keep", "keep": 0, "move": [2]}, "group 1 has 2 photos"),
        ({"what": "keep", "keep": -1, "move": [0]}, "group 1 has 2 photos"),
        ({"what": "keep", "keep": 0, "move": ["1"]}, "wrong type"),
        ({"what": "delete"}, "a choice must be one of"),
        ({"what": "different"}, "files with the same bytes are one photo"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(body: Any, reason: str, review: Review) -> None:
    answer = review.post("/groups/1/choice", body)
    assert (answer.status, reason in answer.json["error"]) == (400, True)
    assert set(states(review).values()) == {"open"}
