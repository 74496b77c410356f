"""Rules choose for many groups: only proven copies move, and all of it is one step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from clip_client.dedup import Store
from clip_client.dedup.types import ALTERED, EXACT, RE_ENCODED, SIMILAR
from tests.fixtures.albums import member, report, write
from tests.fixtures.reviews import Review, of_report, review_of
from tests.unit.review.albums import LOOKS_ALIKE, applied, found_in, names, states

if TYPE_CHECKING:
    from pathlib import Path


def counted(review: Review, rules: list[str], **wanted: str) -> str:
    return review.get(f"/rules/count?{urlencode([*wanted.items(), *(('rule', rule) for rule in rules)])}").text


def test_rules_choose_another_photo_and_leave_what_was_not_compared_with_it(review: Review, album: Path) -> None:
    rules = ["path=*/[by].jpg"]
    assert "<strong>2 groups</strong>: at most 2 photos" in counted(review, rules)
    assert review.post("/rules/choose", {"rules": rules}).status == 200
    assert states(review) == {EXACT: "keep", SIMILAR: "keep"}
    applied(review)
    # z is a frame of a burst.
    assert names(album) == {"b.jpg", "y.jpg", "z.jpg"}


def test_without_rules_those_of_the_search_choose_and_one_step_takes_it_back(review: Review, tmp_path: Path) -> None:
    assert review.post("/rules/choose").status == 200
    with Store(tmp_path / "store") as store:
        choices = list(store.choices.all())
    assert [[photo.moves for photo in one.photos] for one in choices] == [[False, True], [False, True, False]]
    assert {choice.rules for choice in choices} == {"suggestion"}
    review.post("/undo")
    assert set(states(review).values()) == {"open"}


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ({"tier": EXACT}, {EXACT}),
        ({"text": "Y.JPG"}, {SIMILAR}),
        ({"state": "skip"}, {SIMILAR}),
        ({"text": "nowhere"}, set()),
    ],
)
def test_a_filter_limits_what_is_chosen(wanted: dict[str, str], chosen: set[str], review: Review) -> None:
    if "state" in wanted:
        review.post("/groups/2/choice", {"what": "skip"})
    groups = "1 group" if chosen else "0 groups"
    assert f"<strong>{groups}</strong>" in counted(review, [], **wanted)
    review.post("/rules/choose", wanted)
    assert {tier for tier, state in states(review).items() if state == "keep"} == chosen


def test_what_is_counted_is_what_is_chosen(album: Path, tmp_path: Path) -> None:
    """Groups of which rules keep another photo: copies, photos that look alike, and a copy of one of them."""
    paths = [write(album / f"{name}.jpg", name[0].encode(), index) for index, name in enumerate(("x", "y", "z", "y2"))]
    alike = [
        replace(member(path, tier=SIMILAR, matches=LOOKS_ALIKE if place else ()), size_bytes=9 - place)
        for place, path in enumerate(paths)
    ]
    alike[3] = replace(alike[3], copy_of=str(paths[1]), copy_tier=EXACT)
    groups = [*(group.members for group in found_in(tmp_path / "other").groups), tuple(alike)]
    with review_of(tmp_path, store=tmp_path / "store", search=of_report(report(*groups))) as review:
        for rules in ([], ["pixels"], ["smallest"], ["newest"], ["path=*/[byz].jpg", "name"], ["not-path=*/[ax].jpg"]):
            count = counted(review, rules)
            review.post("/rules/choose", {"rules": rules})
            with Store(tmp_path / "store") as store:
                chosen = [[photo.path for photo in one.photos if photo.moves] for one in store.choices.all()]
            moving = [path for paths in chosen for path in paths]
            assert f"<strong>{len(chosen)} groups</strong>: at most {len(moving)} photos" in count, rules
            review.post("/undo")


def test_what_a_person_chose_is_not_chosen_again(review: Review) -> None:
    review.post("/groups/1/choice", {"what": "keep-all"})
    review.post("/rules/choose")
    assert states(review) == {EXACT: "keep-all", SIMILAR: "keep"}


def test_with_random_weights_rules_choose_certain_copies_only(album: Path, tmp_path: Path) -> None:
    found = report(*(group.members for group in found_in(album).groups), model="m/random:0@00000000")
    with review_of(album, store=tmp_path / "store", search=of_report(found)) as review:
        answer = review.post("/rules/choose", {"tier": SIMILAR})
        assert (answer.status, "random" in answer.json["error"]) == (400, True)
        for rules in ([], ["path=*/[by].jpg"]):
            count = counted(review, rules)
            assert "<strong>1 group</strong>: at most 1 photo" in count
            assert "1 group only looks alike to the model" in count
            assert review.post("/rules/choose", {"rules": rules}).status == 200
            assert states(review) == {EXACT: "keep", SIMILAR: "open"}
            review.post("/undo")


def test_rules_leave_altered_photos_and_those_that_were_never_compared(album: Path, tmp_path: Path) -> None:
    paths = [write(album / f"{name}.jpg", name.encode()) for name in "xyz"]
    altered = (member(paths[0]), member(paths[1], tier=ALTERED, matches=LOOKS_ALIKE))
    with review_of(album, store=tmp_path / "store", search=of_report(report(altered))) as review:
        assert "1 group would stay open" in counted(review, [])
    alike = (member(paths[0]), *(member(path, tier=SIMILAR, matches=LOOKS_ALIKE) for path in paths[1:]))
    with review_of(album, store=tmp_path / "store", search=of_report(report(alike))) as review:
        review.post("/rules/choose", {"rules": ["path=*/z.jpg"]})
        found = review.session.groups.get(1)
        assert found is not None
        assert [photo.path[-5:] for photo in found.chosen if photo.moves] == ["x.jpg"]


def test_what_apply_would_refuse_moves_only_if_a_person_looked_at_it(album: Path, tmp_path: Path) -> None:
    paths = [write(album / f"{name}.jpg", name.encode()) for name in "xy"]
    larger = member(paths[1], tier=RE_ENCODED, width=16, height=16, matches=LOOKS_ALIKE)
    with review_of(album, store=tmp_path / "store", search=of_report(report((member(paths[0]), larger)))) as review:
        review.post("/rules/choose")
        applied(review)
        assert names(album) == {"x.jpg", "y.jpg"}
        assert "more pixels" in review.get("/plan").text
        review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]})
        applied(review)
    assert names(album) == {"x.jpg"}


@pytest.mark.parametrize("rules", [["no such rule"], ["pixels=3"], [1]])
def test_a_rule_that_does_not_exist_is_refused(rules: list[Any], review: Review) -> None:
    assert review.post("/rules/choose", {"rules": rules}).status == 400
    assert set(states(review).values()) == {"open"}


def test_saved_rules_are_those_of_the_command_line(review: Review, tmp_path: Path) -> None:
    assert review.post("/rules/save", {"name": "mine", "rules": ["folder=/p", "pixels", "format="]}).status == 200
    assert review.post("/rules/save", {"name": "bad", "rules": ["nothing"]}).status == 400
    assert review.post("/rules/save", {"name": "../x", "rules": ["pixels"]}).status == 400
    with Store(tmp_path / "store") as store:
        assert store.settings.keep_rules() == {"mine": ("folder=/p", "pixels")}
    assert "mine" in review.get("/rules").text
    review.post("/rules/save", {"name": "mine"})
    with Store(tmp_path / "store") as store:
        assert store.settings.keep_rules() == {}
