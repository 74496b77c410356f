"""The accuracy benchmark's meaning of harm, and the truth of its cases, which is what their pictures show."""

from __future__ import annotations

from collections import Counter
from math import comb
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.experiments.dedup.accuracy import Applied, counted, harm_of, removed_by_hash, summary, upper_bound
from benchmarks.fixtures.copies import edits
from benchmarks.fixtures.copies.case import Case, decoded, is_visible
from benchmarks.fixtures.copies.generator import KINDS
from benchmarks.fixtures.copies.photos import NAMES, Draw

ORIGINAL, COPY, CROP = Path("original.jpg"), Path("copy.jpg"), Path("crop.jpg")


def case(*shown_by: tuple[int, ...], nearly: tuple[int, ...] = ()) -> Case:
    files = (ORIGINAL, COPY, CROP)[: len(shown_by)]
    return Case(kind="k", files=files, shown_by=shown_by, nearly_shown_by=(nearly, *((),) * (len(files) - 1)))


def draw(number: int = 0, seed: int = 1) -> Draw:
    return Draw(np.random.default_rng((seed, number)), number, np.random.default_rng(seed).permutation(len(NAMES)))


FAMILY, EQUAL = case((), (0,), (0, 1)), case((1,), (0,))


@pytest.mark.parametrize(
    ("files", "moved", "harmful", "below"),
    [
        (FAMILY, (COPY, CROP), [], []),
        (FAMILY, (ORIGINAL,), [ORIGINAL], []),  # its copies have less
        (FAMILY, (COPY, ORIGINAL), [ORIGINAL, COPY], []),  # the crop shows neither
        (EQUAL, (ORIGINAL,), [], []),
        (EQUAL, (ORIGINAL, COPY), [ORIGINAL, COPY], []),
        (case((), (0,), nearly=(1,)), (ORIGINAL,), [], [ORIGINAL]),
    ],
)
def test_a_move_is_harmful_if_no_file_that_stays_shows_the_moved_one(
    files: Case, moved: tuple[Path, ...], harmful: list[Path], below: list[Path]
) -> None:
    assert harm_of(files, moved) == (harmful, below)


def test_a_case_counts_once_for_what_moved_and_for_what_was_only_shown() -> None:
    pair = case((), (0,))
    plan = Applied(moved=frozenset({ORIGINAL}), groups=(frozenset({ORIGINAL, COPY}),))
    counts = counted(pair, plan, removed=[COPY])
    assert {name for name, count in counts.items() if count} == {
        "cases", "can_harm", "moved_default", "harmful_default", "moved_hash",
    }  # fmt: skip
    nothing = Applied(moved=frozenset(), groups=plan.groups)
    assert counted(pair, nothing, removed=())["only_found"] == 1
    assert counted(case((1,), (0,)), nothing, removed=())["can_harm"] == 0


@pytest.mark.parametrize(("events", "trials"), [(0, 1), (0, 300), (1, 10), (3, 100)])
def test_a_share_at_the_bound_gives_so_few_events_in_one_of_twenty_tries(events: int, trials: int) -> None:
    share = upper_bound(events, trials)
    odds = (comb(trials, some) * share**some * (1 - share) ** (trials - some) for some in range(events + 1))
    assert sum(odds) == pytest.approx(0.05)
    assert (upper_bound(trials, trials), upper_bound(0, 0)) == (1, 1)


def test_the_total_holds_all_sets_and_the_recall_only_copies() -> None:
    copies, edit = Counter(cases=4, moved_default=3, can_harm=4), Counter(cases=2, can_harm=2, harmful_default=1)
    classes = {"copy: smaller": copies, "edit: crop": edit}
    result = summary({"seed 1": {"classes": classes}, "seed 2": {"classes": classes}, "holdout": {"classes": classes}})
    assert result["seeds"]["recall_of_copies"] == 0.75
    total = result["seeds"]["classes"]["all"]
    assert (total["cases"], total["can_harm"], total["harmful_default"]) == (12, 12, 2)
    assert total["bound_default"] == upper_bound(2, 12)
    assert result["holdout"]["classes"]["all"]["cases"] == 6


def test_a_hash_removes_all_that_are_alike_but_the_first_by_name(tmp_path: Path) -> None:
    photo = draw().photo(400)
    for name, picture in (("b.png", photo), ("a.jpg", photo.resize((200, 150))), ("c.png", photo.rotate(180))):
        picture.save(tmp_path / name)
    (tmp_path / "d.heic").write_bytes(b"unreadable")
    assert removed_by_hash(list(tmp_path.iterdir())) == {tmp_path / "b.png"}


def test_a_seed_is_a_set() -> None:
    make = KINDS["equal bytes"][1]
    assert make(draw()) == make(draw()) != make(draw(seed=2))


@pytest.mark.parametrize(
    ("kind", "shown_by"),
    [
        ("equal bytes", [(1,), (0,)]),
        ("edit: family of five", [(), (0,), (0,), (0,), (0,)]),
        ("text, emoji, watermark on top", [(), ()]),
        ("exposure bracket", [(), (), ()]),
        ("table, number", [(), ()]),
    ],
)
def test_what_was_made_of_a_photo_is_shown_by_it_and_never_the_other_way(
    kind: str, shown_by: list[tuple[int, ...]]
) -> None:
    made = KINDS[kind][1](draw(1))
    assert [file.shown_by for file in made] == shown_by
    assert not any(file.nearly_shown_by for file in made)


def test_a_spot_counts_from_20_pixels_and_24_levels() -> None:
    grey = np.full((90, 90, 3), 100, np.uint8)
    for side, levels, expected in ((20, 24, True), (20, 23, False), (14, 40, False)):
        spotted = grey.copy()
        spotted[30 : 30 + side, 40 : 40 + side, 1] += levels
        assert is_visible(Image.fromarray(grey), Image.fromarray(spotted)) is expected
    for spot, is_below in ((48, False), (12, True)):
        one, other = edits.erased(draw(2), 1000, spot)
        assert [bool(file.nearly_shown_by) for file in (one, other)] == [is_below] * 2
        pictures = [np.asarray(decoded(file.data), np.int16) for file in (one, other)]
        changed = np.argwhere(np.abs(pictures[0] - pictures[1]).max(axis=2) > 0)
        assert np.ptp(changed, axis=0).max() == spot - 1  # written without loss
