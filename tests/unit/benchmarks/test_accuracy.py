"""What the accuracy benchmark calls harm, and that the truth of its cases is what their pictures show."""

from __future__ import annotations

import json
from collections import Counter
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from benchmarks.experiments.dedup.accuracy import summary
from benchmarks.experiments.dedup.applied import Applied
from benchmarks.experiments.dedup.harm import counted, harm_of, removed_by_hash, upper_bound
from benchmarks.fixtures.copies import documents, edits, holdout, holdout_tools, shots
from benchmarks.fixtures.copies.case import Case, Made, decoded, exif_of, is_visible
from benchmarks.fixtures.copies.generator import KINDS, write_cases
from benchmarks.fixtures.copies.photos import NAMES, Draw, display_p3

if TYPE_CHECKING:
    from collections.abc import Callable

ORIGINAL, COPY, CROP = Path("original.jpg"), Path("copy.jpg"), Path("crop.jpg")


def case(*shown_by: tuple[int, ...], nearly: tuple[int, ...] = ()) -> Case:
    files = (ORIGINAL, COPY, CROP)[: len(shown_by)]
    return Case(kind="k", files=files, shown_by=shown_by, nearly_shown_by=(nearly, *((),) * (len(files) - 1)))


def draw(number: int = 0, seed: int = 1) -> Draw:
    return Draw(np.random.default_rng((seed, number)), number, np.random.default_rng(seed).permutation(len(NAMES)))


@pytest.mark.parametrize(
    ("moved", "harmful"),
    [
        ((COPY, CROP), ()),
        ((ORIGINAL,), (ORIGINAL,)),  # its copies have less
        ((COPY, ORIGINAL), (ORIGINAL, COPY)),  # the crop shows neither
        ((), ()),
    ],
)
def test_a_move_is_harmful_if_no_file_that_stays_shows_the_moved_one(
    moved: tuple[Path, ...], harmful: tuple[Path, ...]
) -> None:
    family = case((), (0,), (0, 1))
    assert harm_of(family, moved).harmful == harmful


def test_equal_files_may_not_all_leave_and_what_is_below_the_limits_is_counted_apart() -> None:
    assert harm_of(case((1,), (0,)), [ORIGINAL]).harmful == ()
    assert harm_of(case((1,), (0,)), [ORIGINAL, COPY]).harmful == (ORIGINAL, COPY)
    faint = harm_of(case((), (0,), nearly=(1,)), [ORIGINAL])
    assert (faint.harmful, faint.below) == ((), (ORIGINAL,))


def test_a_case_counts_once_for_what_moved_and_for_what_was_only_shown() -> None:
    pair = case((), (0,))
    plan = Applied(by_default=frozenset(), on_request=frozenset({ORIGINAL}), groups=(frozenset({ORIGINAL, COPY}),))
    counts = counted(pair, plan, removed=[COPY])
    assert {name for name, count in counts.items() if count} == {
        "cases", "can_harm", "moved_request", "harmful_request", "moved_hash",
    }  # fmt: skip
    nothing = Applied(by_default=frozenset(), on_request=frozenset(), groups=plan.groups)
    assert counted(pair, nothing, removed=())["only_found"] == 1
    assert counted(case((1,), (0,)), nothing, removed=())["can_harm"] == 0


@pytest.mark.parametrize(("events", "trials"), [(0, 1), (0, 300), (1, 10), (3, 100)])
def test_a_share_at_the_bound_gives_so_few_events_in_one_of_twenty_tries(events: int, trials: int) -> None:
    share = upper_bound(events, trials)
    odds = (comb(trials, some) * share**some * (1 - share) ** (trials - some) for some in range(events + 1))
    assert sum(odds) == pytest.approx(0.05)


def test_without_events_the_bound_is_the_rule_of_three_and_without_trials_it_says_nothing() -> None:
    assert upper_bound(0, 1000) == pytest.approx(3 / 1000, rel=0.01)
    assert (upper_bound(4, 4), upper_bound(0, 0)) == (1, 1)


def test_the_total_holds_all_sets_and_the_recall_only_copies() -> None:
    copies, edit = Counter(cases=4, moved_default=3, can_harm=4), Counter(cases=2, can_harm=2, harmful_request=1)
    classes = {"copy: smaller": copies, "edit: crop": edit}
    result = summary({"seed 1": {"classes": classes}, "seed 2": {"classes": classes}, "holdout": {"classes": classes}})
    assert result["seeds"]["recall_of_copies"] == 0.75
    total = result["seeds"]["classes"]["all"]
    assert (total["cases"], total["can_harm"], total["harmful_request"]) == (12, 12, 2)
    assert total["bound_default"] == upper_bound(0, 12)
    assert result["holdout"]["classes"]["all"]["cases"] == 6


def test_a_hash_removes_all_that_are_alike_but_the_first_by_name(tmp_path: Path) -> None:
    photo = draw().photo(400)
    for name, picture in (("b.png", photo), ("a.jpg", photo.resize((200, 150))), ("c.png", photo.rotate(180))):
        picture.save(tmp_path / name)
    (tmp_path / "d.heic").write_bytes(b"unreadable")
    assert removed_by_hash(list(tmp_path.iterdir())) == {tmp_path / "b.png"}


def test_a_seed_is_a_set(tmp_path: Path) -> None:
    written = {}
    for name, seed in (("one", 5), ("again", 5), ("other", 6)):
        cases = write_cases(tmp_path / name, seed, most=1, kinds=["table", "equal bytes"], processes=1)
        written[name] = {path.relative_to(tmp_path / name): path.read_bytes() for one in cases for path in one.files}
    assert written["one"] == written["again"]
    assert not set(written["one"].values()) & set(written["other"].values())
    (same, table) = json.loads((tmp_path / "one/cases.json").read_text())
    (first, truth), (second, _) = same["files"].items()
    assert truth == {"shown_by": [second], "nearly_shown_by": []}
    assert (tmp_path / "one" / first).read_bytes() == (tmp_path / "one" / second).read_bytes()
    assert [truth["shown_by"] for truth in table["files"].values()] == [[], []]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "12" not in kind])
def test_what_was_made_of_a_photo_is_shown_by_it_and_never_the_other_way(kind: str) -> None:
    made = KINDS[kind][1](draw(1))
    shown, nearly = [file.shown_by for file in made], [file.nearly_shown_by for file in made]
    if kind in ("equal bytes", "equal pixels"):
        assert shown == [(1,), (0,)]
    elif kind.startswith(("copy", "edit", "HEIC", "profile", "lossless", "16 bits", "metadata")):
        assert shown == [(), *[(0,)] * (len(made) - 1)]
        assert nearly == [()] * len(made)
    else:
        assert shown == [()] * len(made)
        others = [tuple(other for other in range(len(made)) if other != one) for one in range(len(made))]
        assert nearly == (others if kind.startswith("below") else [()] * len(made))


@pytest.mark.parametrize(
    "make",
    [
        lambda: documents.page(draw(1), 150, 11),
        lambda: documents.page(draw(1), 150, 12, word=True),
        lambda: documents.table(draw(0), 19),
        lambda: documents.photo_of_page(draw(1)),
    ],
)
def test_pages_differ_in_one_place(make: Callable[[], list[Made]]) -> None:
    one, other = (np.asarray(decoded(file.data), np.int16) for file in make())
    differs = np.abs(one - other).max(axis=2) > 90
    rows = np.flatnonzero(differs.any(axis=1))
    assert 3 <= len(rows)
    assert rows[-1] - rows[0] < 32  # one line of type of up to 27 pixels


def test_a_character_counts_from_14_pixels_in_the_smaller_file() -> None:
    first = documents.a_table(draw(), 19)
    images = [documents.drawn(sheet) for sheet in (first, documents.another(first, draw()))]
    smaller = draw(3)  # the second file at three quarters
    for type_px, is_below in ((19, False), (18, True)):
        made = documents.saved(smaller, images, type_px)
        assert [bool(file.nearly_shown_by) for file in made] == [is_below] * 2
        assert decoded(made[1].data).width == round(images[0].width * 0.75)


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


def test_each_shot_of_a_focus_stack_is_sharp_where_another_one_is_soft() -> None:
    one, other = (np.asarray(decoded(file.data), np.float32).mean(axis=2) for file in shots.focus_stack(draw(1), 1200))
    detail = [np.abs(np.diff(shot)[:, :-1] - np.diff(shot)[:, 1:]) for shot in (one, other)]
    middle, width = detail[0].shape[0] // 2, detail[0].shape[1] // 2
    gains = [float(first.mean() / second.mean()) for first, second in (
        (detail[0][:middle], detail[1][:middle]), (detail[0][-middle:], detail[1][-middle:]),
        (detail[0][:, :width], detail[1][:, :width]), (detail[0][:, -width:], detail[1][:, -width:]),
    )]  # fmt: skip
    assert max(gains) > 1.2
    assert min(gains) < 1 / 1.2


def test_an_export_of_heic_loses_the_profile_or_the_metadata_only_where_it_is_said() -> None:
    pytest.importorskip("pillow_heif")
    for number, has_exif, has_profile in ((0, True, True), (4, False, False)):
        heic, export = shots.export_of_heic(draw(number))
        assert display_p3() in heic.data
        assert bool(exif_of(export.data)) is has_exif
        assert (b"ICC_PROFILE" in export.data) is has_profile


def test_a_photo_has_all_that_a_camera_writes_or_nothing() -> None:
    image = draw().photo(600)
    full, none = (draw().original(image, with_exif=with_exif) for with_exif in (True, False))
    assert {0x010F, 0x0110, 0x0132} <= set(exif_of(full.data))
    details = exif_of(full.data).get_ifd(0x8769)
    assert {0x829A, 0x829D, 0x8827, 0x9003, 0xA434} <= set(details)
    assert (details[0xA002], details[0xA003]) == image.size
    assert not exif_of(none.data)


@pytest.mark.skipif(bool(holdout_tools.missing_tools()), reason="the tools of the holdout are not installed")
def test_the_holdout_says_the_same_of_its_cases(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    draw().photo(800).save(photos / "one.png")
    for kind in (
        "edit: losslessly turned",
        "edit: other tools, larger file",
        "page of 150 dpi, digit",
        "table, number",
    ):
        folder = tmp_path / kind
        folder.mkdir()
        made = holdout.KINDS[kind][1](holdout_tools.Shop(folder, kind, 0, photos))
        expected = [(), (0,)] if kind.startswith("edit") else [(), ()]
        assert [file.shown_by for file in made] == expected
        if not kind.startswith("edit"):
            one, other = (np.asarray(decoded(file.data), np.int16) for file in made)
            assert one.std() > 20, "nothing was written on the page"
            places = np.argwhere(np.abs(one - other).max(axis=2) > 60)
            assert 2 < np.ptp(places, axis=0).max() < 30
