"""A group around another kept photo says of each member what a search would say, or less."""

from __future__ import annotations

import math
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clip_client.dedup.aligned import Alignment
from clip_client.dedup.compare.chosen_groups import CHOSEN, keep_instead, rerank
from clip_client.dedup.compare.keep_rules import KeepRules
from clip_client.dedup.group import DuplicateGroup
from clip_client.dedup.judge.verdicts import as_proved
from clip_client.dedup.photo import ImageFeatures, Photo
from clip_client.dedup.types import (
    ALTERED,
    BURST,
    BY_DEFAULT,
    EDITED,
    EXACT,
    IF_CHOSEN,
    ON_REQUEST,
    RE_ENCODED,
    SAME_PIXELS,
    SIMILAR,
    Metadata,
)
from tests.fixtures.members import alignment
from tests.unit.dedup.compare.comparisons import grouped

SEARCHED, WANTED = (KeepRules([f"path={name}*.jpg" for name in order]) for order in ("abxcfe", "efcxba"))


def file(name: str, size_bytes: int, **features: Any) -> Photo:
    known = ImageFeatures(**{"width": 8, "height": 8, "format": "JPEG", **features})
    return Photo(path=name, sha256=name[0] * 64, size_bytes=size_bytes, mtime_ns=size_bytes, features=known)


def search(rules: KeepRules) -> DuplicateGroup:
    """Two pictures in five contents: a, b and c have the same pixels, as have x and e; and there are two files of x."""
    at_once = [Metadata(taken_ms=moment, has_sub_second=True) for moment in (5_000, 5_500)]
    files = [
        [file("a.jpg", 90, metadata=at_once[0]), file("a2.jpg", 90, metadata=at_once[0])],
        [file("b.jpg", 80, metadata=at_once[0])],
        [file("c.jpg", 10, metadata=at_once[0])],
        [file("x.jpg", 60, metadata=at_once[1]), file("x2.jpg", 60, metadata=at_once[1])],
        [file("e.jpg", 5, metadata=at_once[1])],
        [file("f.jpg", 7)],
    ]
    angles = np.array([0, 0, 0, 0.2, 0.2, 0.1])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    (group,) = grouped(files, vectors, rules, similar=0.9, pixels=[0, 0, 0, 3, 3, 5])
    return group


def facts(group: DuplicateGroup) -> dict[str, Any]:
    return {member.path: (member.tier, member.other_shot, member.copy_of, member.copy_tier) for member in group.members}


@pytest.mark.parametrize("rules", [WANTED, SEARCHED, KeepRules(["path=f.jpg", *WANTED.names])])
def test_rules_choose_as_a_search_would(rules: KeepRules) -> None:
    reranked, searched = rerank(search(SEARCHED), rules), search(rules)
    assert (reranked.keep, reranked.reason) == (searched.keep, searched.reason)
    assert facts(reranked) == facts(searched)


def test_what_a_person_keeps_is_first_whatever_the_rules_say() -> None:
    group = search(SEARCHED)
    chosen = keep_instead(group, "e.jpg")
    assert (chosen.keep, chosen.reason, chosen.tier) == ("e.jpg", CHOSEN, group.tier)
    assert sorted(member.path for member in chosen.members) == sorted(member.path for member in group.members)
    of = {member.path: member for member in chosen.members}
    assert (of["e.jpg"].tier, of["e.jpg"].matches, of["e.jpg"].similarity) == (EXACT, (), 1.0)
    assert [of[name].tier for name in ("x.jpg", "x2.jpg")] == [SAME_PIXELS] * 2
    # The other frame is no copy of this one, and its files are copies of their own best.
    assert [of[name].other_shot for name in ("a.jpg", "b.jpg")] == [BURST] * 2
    assert [(of[name].copy_of, of[name].copy_tier) for name in ("a.jpg", "a2.jpg", "b.jpg", "c.jpg")] == [
        ("", ""),
        ("a.jpg", EXACT),
        ("a.jpg", SAME_PIXELS),
        ("a.jpg", SAME_PIXELS),
    ]


def test_only_what_the_search_measured_is_known() -> None:
    group = search(SEARCHED)
    assert keep_instead(group, group.keep) == replace(group, reason=CHOSEN)
    of = {member.path: member for member in keep_instead(group, "f.jpg").members}
    assert of["a.jpg"].similarity == pytest.approx(np.cos(0.1))
    assert [math.isnan(of[name].similarity) for name in ("b.jpg", "x.jpg", "e.jpg")] == [True] * 3
    # The best file of the other picture is still the best of it.
    assert {name: of[name].copy_of for name in ("x.jpg", "x2.jpg", "e.jpg")} == {
        "x.jpg": "", "x2.jpg": "x.jpg", "e.jpg": "x.jpg",
    }  # fmt: skip


def test_proofs_hold_on_in_their_direction_and_say_of_other_pairs_only_that_they_are_the_same_shot() -> None:
    """Three files of one second: y and z are crops of x, and z is a copy of y. W only looks like x."""
    second = Metadata(taken_ms=1_000, camera="c")
    widths = {"x.jpg": 9, "y.jpg": 8, "z.jpg": 8}
    files = [[file(name, 9, metadata=second, width=width)] for name, width in widths.items()] + [[file("w.jpg", 9)]]
    proved = {(0, 1): alignment(EDITED), (0, 2): alignment(EDITED), (1, 2): alignment(RE_ENCODED)}
    (group,) = grouped(
        files, [(1, 0)] * 4, KeepRules(["path=x.jpg"]), similar=0.9, align=lambda kept, row: proved.get((kept, row))
    )
    original, looks_alike = (EDITED, "", IF_CHOSEN), (SIMILAR, "", ON_REQUEST)
    for kept, known in (
        ("y.jpg", {"x.jpg": original, "z.jpg": (RE_ENCODED, "", BY_DEFAULT), "w.jpg": (SIMILAR, "", IF_CHOSEN)}),
        ("z.jpg", {"x.jpg": original, "y.jpg": (RE_ENCODED, "x.jpg", ON_REQUEST), "w.jpg": (SIMILAR, "", IF_CHOSEN)}),
        (
            "w.jpg",
            {"x.jpg": looks_alike, "y.jpg": (SIMILAR, "x.jpg", ON_REQUEST), "z.jpg": (SIMILAR, "y.jpg", BY_DEFAULT)},
        ),
    ):
        chosen = keep_instead(group, kept)
        others = chosen.members[1:]
        assert {
            one.path: (one.tier, one.copy_of, as_proved(one, chosen, is_trained=True).moves) for one in others
        } == known
        assert {one.other_shot for one in others} == {""}
        if kept != "w.jpg":
            x = next(one for one in others if one.path == "x.jpg")
            said = as_proved(x, chosen, is_trained=True).reason
            assert said == "The kept photo is its edited copy, so it moves only by your choice."
            lacking = replace(chosen, proofs={pair: alignment(EDITED, lost=("colour",)) for pair in chosen.proofs})
            assert as_proved(x, lacking, is_trained=True).reason.startswith("It differs from the kept photo")
    of_x = replace(group, proofs={pair: one for pair, one in group.proofs.items() if one.tier == EDITED})
    assert {one.path: one.tier for one in keep_instead(of_x, "y.jpg").members}["z.jpg"] == ALTERED
    without = keep_instead(replace(group, proofs={}), "y.jpg")
    moves = {one.path: as_proved(one, without, is_trained=True).moves for one in without.members[1:]}
    assert moves == {"x.jpg": ON_REQUEST, "z.jpg": IF_CHOSEN, "w.jpg": IF_CHOSEN}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    pictures=st.lists(st.integers(0, 3), min_size=3, max_size=7),
    proved=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8),
    wanted=st.permutations(range(7)),
)
def test_whatever_is_kept_copies_lead_to_it_by_proofs(
    pictures: list[int], proved: set[tuple[int, int]], wanted: list[int]
) -> None:
    """``pictures`` has the picture of each file; ``proved`` pairs of pictures, of which the second is a copy."""
    files = [[file(f"{'abcdefg'[row]}.jpg", 90 - row)] for row in range(len(pictures))]

    def align(kept: int, row: int) -> Alignment | None:
        return alignment(EDITED) if (pictures[kept], pictures[row]) in proved else None

    pixels = [pictures.index(picture) for picture in pictures]
    found = grouped(files, [(1, 0)] * len(files), SEARCHED, similar=0.9, pixels=pixels, align=align)
    of_picture = {file[0].path: picture for file, picture in zip(files, pictures, strict=True)}
    order = KeepRules([f"path={'abcdefg'[row]}.jpg" for row in wanted])
    for group in found:
        for other in (group, rerank(group, order), *(keep_instead(group, one.path) for one in group.members)):
            better = {member.path: member.copy_of for member in other.members if member.copy_of}
            TopologicalSorter({path: [one] for path, one in better.items()}).prepare()  # raises for a circle
            assert other.keep not in better
            for member in other.members:
                picture = of_picture[member.path]
                if member.copy_alignment is not None:
                    assert (of_picture[member.copy_of], picture) in proved
                elif member.copy_of:
                    assert of_picture[member.copy_of] == picture
                assert member.alignment is None or (of_picture[other.keep], picture) in proved
