"""What an aligned copy is called, and where on it the region is that differs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clip_client.dedup import DuplicateGroup, Match, Member
from clip_client.dedup.aligned import ENLARGED, Alignment
from clip_client.dedup.reporting.words import in_words, region_on, why_it_stays
from clip_client.dedup.types import ALTERED, EDITED, EXACT, RE_ENCODED, SIMILAR


def photo(**more: Any) -> Member:
    given: dict[str, Any] = {"path": "a.jpg", "similarity": 1.0, "width": 200, "height": 100, "size_bytes": 1, **more}
    return Member(sha256="0" * 64, **given)


def alignment(tier: str, *changes: str, **more: Any) -> Alignment:
    given: dict[str, Any] = {
        "lost": (), "transform": (1, 0, 0, 0, 1, 0), "residual": 0.0, "region": None, "region_share": 0.0, **more,
    }  # fmt: skip
    return Alignment(tier=tier, changes=changes, **given)


def copy(found: Alignment, **more: Any) -> Member:
    match = Match(test="alignment", value=1, threshold=1, alignment=found)
    return photo(path="b.jpg", tier=found.tier, matches=(match,), **more)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (alignment(RE_ENCODED), "same picture, re-encoded"),
        (alignment(RE_ENCODED, "half the size"), "same picture, re-encoded at half the size"),
        (alignment(EDITED, "cropped to 84%", "brighter"), "same picture, cropped to 84%, brighter"),
        (
            alignment(ALTERED, region=(0.8, 0.1, 0.1, 0.1), region_share=0.03),
            "a region differs (3% at the top right)",
        ),
        (
            alignment(ALTERED, "half the size", region=(0.4, 0.4, 0.2, 0.2), region_share=0.04),
            "a region differs (4% in the middle), half the size",
        ),
        (alignment(ALTERED, region=(0, 0.4, 0.1, 0.2), region_share=0.02), "a region differs (2% at the left)"),
    ],
)
def test_an_alignment_in_words(found: Alignment, words: str) -> None:
    assert in_words(copy(found), photo()) == words
    closer = photo(tier=SIMILAR, copy_of="c.jpg", copy_tier=found.tier, copy_alignment=found)
    assert in_words(closer, photo()) == f"{words}; compared with c.jpg"


def test_a_tier_without_its_alignment_after_another_photo_was_kept() -> None:
    assert in_words(photo(tier=EDITED), photo(tier=EXACT)) == "same picture, edited"


LARGER = "It has more pixels than the kept photo, although probably no finer detail."


@pytest.mark.parametrize(
    ("one", "by_default", "with_act_on"),
    [
        (photo(tier=EXACT), "", ""),
        (copy(alignment(RE_ENCODED)), "", ""),
        (copy(alignment(EDITED)), "It moves only with --act-on edited.", ""),
        (photo(tier=SIMILAR), "It moves only with --act-on similar.", ""),
        (copy(alignment(EDITED, lost=("colour",))),) + ("It shows what the kept photo lacks: colour.",) * 2,
        (copy(alignment(RE_ENCODED, lost=("2 times the resolution",)), doubt=ENLARGED), LARGER, LARGER),
        (copy(alignment(RE_ENCODED, doubts=(ENLARGED,))),) + (f"The kept photo may be made from it: {ENLARGED}.",) * 2,
        (copy(alignment(EDITED), copy_of="a.jpg", copy_tier=EXACT), "", ""),
        (copy(alignment(ALTERED), copy_of="a.jpg", copy_tier=EDITED), "It moves only with --act-on edited.", ""),
    ],
)
def test_the_page_says_which_copies_stay(one: Member, by_default: str, with_act_on: str) -> None:
    group = DuplicateGroup(tier=one.tier, min_similarity=1.0, members=(photo(), one))
    assert why_it_stays(one, group, moves_certain_only=True) == by_default
    assert why_it_stays(one, group, moves_certain_only=False) == with_act_on
    by_camera = replace(group, members=(photo(is_original=True), one))
    assert "may be made from it" not in why_it_stays(one, by_camera, moves_certain_only=True)


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
