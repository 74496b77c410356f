"""Rules choose for many groups what ``dedup --apply`` would move, and nothing else, as one step."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from clip_client.dedup import Store
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES, KeepRules
from clip_client.dedup.store.journal import State
from clip_client.dedup.types import ALTERED, EDITED, EXACT, SIMILAR, LibraryPhoto
from tests.fixtures.albums import member, report, write
from tests.fixtures.images.image_files import jpeg
from tests.fixtures.members import aligned
from tests.fixtures.reviews import Review, of_report, review_of
from tests.unit.review.albums import LOOKS_ALIKE, applied, done, found_in, names, states
from tests.unit.review.albums import moving as planned_moves


def counted(review: Review, rules: list[str], **wanted: str) -> str:
    return review.get(f"/rules/count?{urlencode([*wanted.items(), *(('rule', rule) for rule in rules)])}").text


def test_rules_choose_another_photo_and_move_what_dedup_would(review: Review, album: Path, tmp_path: Path) -> None:
    rules = ["path=*/[by].jpg"]
    said = "<strong>1 group</strong>: 1 photo, 4 B would move. In 1 group the rules keep another"
    assert said in counted(review, rules)
    assert review.post("/rules/choose", {"rules": rules}).status == 200
    assert states(review) == {EXACT: "keep", SIMILAR: "open"}
    applied(review)
    assert names(album) == {"b.jpg", "x.jpg", "y.jpg", "z.jpg"}
    with Store(tmp_path / "store") as store:
        (entry,) = store.journal.entries([State.MOVED])
    assert (entry.tier, entry.is_chosen) == (EXACT, False), "nobody has looked at it"


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ({"tier": EXACT}, {EXACT}),
        ({"tier": SIMILAR}, set()),
        ({"text": "B.JPG"}, {EXACT}),
        ({"state": "skip"}, {EXACT}),
        ({"text": "nowhere"}, set()),
    ],
)
def test_a_filter_limits_what_is_chosen(wanted: dict[str, str], chosen: set[str], review: Review) -> None:
    if "state" in wanted:
        review.post("/groups/1/choice", {"what": "skip"})
    groups = "1 group" if chosen else "0 groups"
    assert f"<strong>{groups}</strong>" in counted(review, [], **wanted)
    review.post("/rules/choose", wanted)
    assert {tier for tier, state in states(review).items() if state == "keep"} == chosen


def test_what_is_counted_is_what_is_chosen_and_what_moves(album: Path, tmp_path: Path) -> None:
    """Groups of which rules keep another photo: copies, photos that look alike, a copy of one, one in a library."""
    paths = [write(album / f"{name}.jpg", name[0].encode(), index) for index, name in enumerate(("x", "y", "z", "y2"))]
    alike = [
        member(path, tier=SIMILAR, matches=LOOKS_ALIKE if place else (), width=9 - place)
        for place, path in enumerate(paths)
    ]
    alike[3] = replace(alike[3], copy_of=str(paths[1]), copy_tier=EXACT)
    inside = write(album / "lib" / "1.jpg", b"x")
    known = LibraryPhoto(path=str(inside), library=str(album / "lib"), uuid="1", name="1.jpg", taken_ns=None)
    alike.append(member(inside, in_library=known))
    groups = [*(group.members for group in found_in(tmp_path / "other").groups), tuple(alike)]
    tries: tuple[list[str], ...] = (
        [],
        ["pixels"],
        ["oldest"],
        ["newest"],
        ["path=*/[byz].jpg", "name"],
        ["not-path=*/[ax].jpg"],
    )
    with review_of(tmp_path, store=tmp_path / "store", search=of_report(report(*groups))) as review:
        for rules in tries:
            count = counted(review, rules)
            review.post("/rules/choose", {"rules": rules})
            with Store(tmp_path / "store") as store:
                choices = list(store.choices.all())
            assert {one.rules for one in choices} == {", ".join(rules) or "suggestion"}
            chosen = [[photo.path for photo in one.photos if photo.moves] for one in choices]
            moving = {path for paths in chosen for path in paths}
            said = re.search(r"<strong>(\d) groups?</strong>: (\d) photo", count)
            assert said, count
            assert [int(number) for number in said.groups()] == [len(chosen), len(moving)], rules
            done(review, "/plan")
            assert planned_moves(review) == moving, rules
            review.post("/undo")


def test_what_a_person_chose_is_not_chosen_again(review: Review) -> None:
    review.post("/groups/1/choice", {"what": "keep-all"})
    review.post("/rules/choose")
    assert states(review) == {EXACT: "keep-all", SIMILAR: "open"}


def test_a_group_is_found_by_the_copies_that_it_holds(album: Path, tmp_path: Path) -> None:
    """A group is as certain as its least certain member: a link leads to those with edited copies."""
    kept, crop, altered = (write(album / f"{name}.jpg", jpeg(quality=90 - i)) for i, name in enumerate("kca"))
    edited = member(crop, tier=EDITED, matches=aligned(EDITED, "cropped to 80%"))
    found = report((member(kept), edited, member(altered, tier=ALTERED, matches=aligned(ALTERED))))
    with review_of(album, store=tmp_path / "store", search=of_report(found)) as review:
        rules = review.get("/rules").text
        assert 'href="./?holds=edited"' in rules
        shown = [review.get(f"/?{query}").text.count("data-group=") for query in ("holds=edited", "tier=edited")]
        assert shown == [1, 0]


@pytest.mark.parametrize("rules", [["no such rule"], ["pixels=3"], [1]])
def test_a_rule_that_does_not_exist_is_refused(rules: list[Any], review: Review) -> None:
    assert review.post("/rules/choose", {"rules": rules}).status == 400
    assert set(states(review).values()) == {"open"}


def test_the_page_offers_every_rule_and_uses_the_default_ones_in_their_order(review: Review) -> None:
    """Another rule would be left out of saved rules without a word."""
    page = review.get("/rules").text
    with pytest.raises(ValueError, match="there is no keep rule") as caught:
        KeepRules(["nothing"])
    known = str(caught.value).partition("the rules are ")[2].split(", ")
    offered = re.findall(r'data-rule="([^"]+)"', page)
    assert {*offered} == {re.sub("=.+", "=", rule) for rule in known}
    assert tuple(re.findall(r'data-rule="([^"]+)"(?=[^\n]* checked>)', page)) == DEFAULT_RULES


def test_saved_rules_are_those_of_the_command_line(review: Review, tmp_path: Path) -> None:
    rules = ["folder=/p", "path=*/x=", "pixels"]
    assert review.post("/rules/save", {"name": "mine", "rules": rules}).status == 200
    assert review.post("/rules/save", {"name": "bad", "rules": ["nothing"]}).status == 400
    assert review.post("/rules/save", {"name": "../x", "rules": ["pixels"]}).status == 400
    with Store(tmp_path / "store") as store:
        assert store.settings.keep_rules() == {"mine": tuple(rules)}
    assert "mine" in review.get("/rules").text
    review.post("/rules/save", {"name": "mine"})
    with Store(tmp_path / "store") as store:
        assert store.settings.keep_rules() == {}
