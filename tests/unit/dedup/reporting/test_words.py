"""What a copy is called, what was found in words, and where on a copy the region is that differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clip_client.dedup import Match, Member
from clip_client.dedup.aligned import ENLARGED, PUT_INTO, Alignment
from clip_client.dedup.reporting.words import found_in_words, in_words, region_on
from clip_client.dedup.types import ALTERED, BURST, EDITED, EXACT, RE_ENCODED, SAFE_TIERS, SAME_PIXELS, SIMILAR
from tests.fixtures import members
from tests.fixtures.members import alignment

if TYPE_CHECKING:
    from collections.abc import Sequence


def photo(path: str = "a.jpg", **more: Any) -> Member:
    return members.member(path, **{"width": 200, "height": 100, **more})


def copy(found: Alignment, **more: Any) -> Member:
    match = Match(test="alignment", value=1, threshold=1, alignment=found)
    return photo("b.jpg", tier=found.tier, matches=(match,), **more)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tier": EXACT}, "identical, byte for byte"),
        ({"tier": SAME_PIXELS, "path": "b.JPEG"}, "same pixels, other metadata"),
        ({"tier": SAME_PIXELS, "path": "b.png"}, "same pixels, other format"),
        ({"tier": SIMILAR, "width": 0, "height": 0}, "looks similar"),
        ({"tier": SIMILAR, "width": 67, "height": 33}, "looks similar, resized"),
        ({"tier": SIMILAR, "width": 100, "height": 200}, "looks similar, rotated"),
        ({"tier": SIMILAR, "width": 100, "height": 100}, "looks similar, cropped"),
        ({"tier": SIMILAR}, "looks similar"),
        ({"tier": SIMILAR, "other_shot": BURST}, "another frame of a burst"),
        ({"tier": SIMILAR, "other_shot": BURST, "copy_of": "c\n.jpg", "copy_tier": EXACT}, "identical to c\\n.jpg"),
        # Another photo was kept when this one was aligned.
        ({"tier": EDITED}, "same picture, edited"),
    ],
)
def test_plain_words(given: dict[str, Any], words: str) -> None:
    assert in_words(photo(**{"path": "b.jpg", **given}), photo("a.jpg", tier=EXACT)) == words


HALF = "half the size"
ALIGNED = [
    (alignment(RE_ENCODED), "same picture, re-encoded"),
    (alignment(RE_ENCODED, HALF), "same picture, re-encoded at half the size"),
    (alignment(EDITED, "cropped to 84%", "brighter"), "same picture, cropped to 84%, brighter"),
    (alignment(ALTERED, region=(0.8, 0.1, 0.1, 0.1), region_share=0.03), "a region differs (3% at the top right)"),
    (
        alignment(ALTERED, HALF, region=(0.4, 0.4, 0.2, 0.2), region_share=0.04),
        "a region differs (4% in the middle), half the size",
    ),
    (alignment(ALTERED, region=(0, 0.4, 0.1, 0.2), region_share=0.02), "a region differs (2% at the left)"),
]


@pytest.mark.parametrize(("found", "words"), ALIGNED)
def test_an_alignment_in_words(found: Alignment, words: str) -> None:
    assert in_words(copy(found), photo()) == words
    closer = photo(tier=SIMILAR, copy_of="c.jpg", copy_tier=found.tier, copy_alignment=found)
    assert in_words(closer, photo()) == f"{words}; compared with c.jpg"


@pytest.mark.parametrize(
    ("one", "by_default", "with_act_on"),
    [
        (photo("b.jpg", tier=EXACT), "", ""),
        (copy(alignment(RE_ENCODED)), "", ""),
        (copy(alignment(EDITED)), "It moves only with --act-on edited.", ""),
        (photo("b.jpg", tier=SIMILAR), "It moves only with --act-on similar.", ""),
        (copy(alignment(EDITED, lost=("colour",))),) + ("It shows what the kept photo lacks: colour.",) * 2,
        (copy(alignment(RE_ENCODED, doubts=(ENLARGED,))),) + (f"The kept photo may be made from it: {ENLARGED}.",) * 2,
        (copy(alignment(EDITED), copy_of="a.jpg", copy_tier=EXACT), "", ""),
        (copy(alignment(ALTERED), copy_of="a.jpg", copy_tier=EXACT), "", ""),
    ],
)
def test_the_page_says_which_copies_stay(one: Member, by_default: str, with_act_on: str) -> None:
    group = members.group(photo(), one)
    assert group.members[1].verdict.why_it_stays(SAFE_TIERS) == by_default
    assert group.members[1].verdict.why_it_stays([*SAFE_TIERS, EDITED, SIMILAR]) == with_act_on
    # With other tiers selected, even a certain copy waits.
    certain = members.group(photo(), photo("b.jpg", tier=EXACT))
    assert certain.members[1].verdict.why_it_stays([EDITED]) == "It moves only with --act-on exact."
    assert certain.members[0].verdict.why_it_stays(SAFE_TIERS) == ""


def test_what_was_found_is_counted_by_verdict() -> None:
    def said(*found: Member, tiers: Sequence[str] = SAFE_TIERS) -> str:
        return found_in_words(members.report(members.group(photo(), *found)), tiers)

    certain, edited = photo("b.jpg", tier=EXACT), copy(alignment(EDITED))
    doubted = copy(alignment(EDITED, doubts=(PUT_INTO,)))
    assert said(certain, certain, edited) == "2 photos, 2.0 kB, can move safely; 1 edited copy waits for you"
    assert said(certain, edited, edited) == "1 photo, 1.0 kB, can move safely; 2 edited copies wait for you"
    assert said(certain, doubted) == "1 photo, 1.0 kB, can move safely"
    assert said(edited, doubted) == "1 edited copy waits for you"
    assert said(doubted, photo("c.jpg", other_shot=BURST)) == "no copies, but 2 photos to look at"
    assert said(certain, edited, tiers=[EDITED]) == "1 photo, 1.0 kB, can move"


def test_the_region_is_shown_where_it_lies_on_the_copy() -> None:
    region = (0.5, 0.5, 0.1, 0.2)
    same = alignment(ALTERED, region=region, region_share=0.02)
    assert region_on(copy(same), photo()) == pytest.approx(region)
    # The right half of the kept photo, at half the size.
    half = alignment(ALTERED, region=region, region_share=0.02, transform=(2, 0, 100, 0, 2, 0))
    assert region_on(copy(half, width=50, height=50), photo()) == pytest.approx((0, 0.5, 0.2, 0.2))
    # The left half, which does not show the region.
    left = alignment(ALTERED, region=(0.6, 0.5, 0.1, 0.1), region_share=0.01)
    assert region_on(copy(left, width=100), photo()) is None
    # Rotated by 90 degrees to the right: kept x = duplicate y, kept y = height - duplicate x.
    turned = alignment(ALTERED, region=region, region_share=0.02, transform=(0, 1, 0, -1, 0, 100))
    assert region_on(copy(turned, width=100, height=200), photo()) == pytest.approx((0.3, 0.5, 0.2, 0.1))
    assert region_on(copy(alignment(EDITED)), photo()) is None
    assert region_on(photo(), photo()) is None
