"""The accuracy benchmarks' meaning of harm and loss, and the truth of their cases, which is what the pictures show."""

import subprocess
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from math import comb
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from skimage import data

from benchmarks.experiments.dedup.accuracy import counted, harm_of, removed_by_hash, summary, upper_bound
from benchmarks.experiments.dedup.others import judged, resized, sized, versions
from benchmarks.fixtures.copies import edits
from benchmarks.fixtures.copies.case import Case, decoded, is_visible
from benchmarks.fixtures.copies.edits import CHILDREN, child
from benchmarks.fixtures.copies.generator import KINDS, write
from benchmarks.fixtures.copies.photos import Draw, camera_files
from benchmarks.fixtures.copies.tools import available

ORIGINAL, COPY, CROP = Path("original.jpg"), Path("copy.jpg"), Path("crop.jpg")


def case(*shown_by: tuple[int, ...], nearly: tuple[int, ...] = ()) -> Case:
    files = (ORIGINAL, COPY, CROP)[: len(shown_by)]
    return Case(kind="k", files=files, shown_by=shown_by, nearly_shown_by=(nearly, *((),) * (len(files) - 1)))


def draw(number: int = 0, seed: int = 1) -> Draw:
    return Draw(np.random.default_rng((seed, number)), number)


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
    counts = counted(pair, {ORIGINAL}, {COPY}, is_found=True)
    assert {name for name, count in counts.items() if count} == {
        "cases", "can_harm", "moved_default", "harmful_default", "moved_hash",
    }  # fmt: skip
    assert counted(pair, set(), set(), is_found=True)["only_found"] == 1
    assert counted(case((1,), (0,)), set(), set(), is_found=True)["can_harm"] == 0


@pytest.mark.parametrize(("events", "trials"), [(0, 1), (0, 300), (1, 10), (3, 100)])
def test_a_share_at_the_bound_gives_so_few_events_in_one_of_twenty_tries(events: int, trials: int) -> None:
    share = upper_bound(events, trials)
    odds = (comb(trials, some) * share**some * (1 - share) ** (trials - some) for some in range(events + 1))
    assert sum(odds) == pytest.approx(0.05)
    assert (upper_bound(trials, trials), upper_bound(0, 0)) == (1, 1)


def test_a_group_sums_its_classes_and_the_recall_is_that_of_copies() -> None:
    copies, fakes = {"cases": 4, "moved_default": 3, "can_harm": 4}, {"cases": 2, "can_harm": 2, "harmful_default": 1}
    found = [(kind, {**fakes, "harmful_cases": [0]}) for kind in ("spot: small", "spot: large")]
    result = summary([("copy: OpenCV", copies), ("copy: OpenCV", copies), *found])
    assert result["recall_of_copies"] == 0.75
    classes = result["classes"]
    assert [*classes] == ["copy: OpenCV", "spot: small", "spot: large", "all: copy", "all", "all: spot"]
    assert (classes["all"]["cases"], classes["all: spot"]["harmful_default"]) == (12, 2)
    assert classes["all: spot"]["bound_default"] == upper_bound(2, 4)


def test_a_hash_removes_all_that_are_alike_but_the_first_by_name(tmp_path: Path) -> None:
    photo = draw().photo(400)
    for name, picture in (("b.png", photo), ("a.jpg", photo.resize((200, 150))), ("c.png", photo.rotate(180))):
        picture.save(tmp_path / name)
    (tmp_path / "d.heic").write_bytes(b"unreadable")
    assert removed_by_hash(list(tmp_path.iterdir())) == {tmp_path / "b.png"}


def test_a_case_depends_on_its_seed_and_number_alone(tmp_path: Path) -> None:
    numbers = iter(range(9))

    def files(seed: int, number: int) -> list[bytes]:
        written = write(tmp_path / str(next(numbers)), "spot: from 22 px and 26 levels", seed, number, [])
        return [path.read_bytes() for path in written.files]

    assert files(1, 0) == files(1, 0) != files(2, 0)
    assert files(1, 0) != files(1, 1)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith(("below", "equal", "frames", "child"))])
def test_a_fake_is_shown_by_no_other_file_and_a_reduced_one_at_most_by_the_first(kind: str) -> None:
    made = KINDS[kind][1](draw(1))
    assert made[0].shown_by == ()
    assert set(made[1].shown_by) <= {0}
    assert not any(file.nearly_shown_by for file in made)


@pytest.mark.parametrize("name", [*available()])
def test_a_true_copy_is_shown_by_its_photo_in_one_of_the_eight_turns(name: str) -> None:
    photo, copy = available()[name](draw(1))
    assert (photo.shown_by, copy.shown_by) == ((), (0,))
    first, second = (np.asarray(decoded(file.data).convert("L").resize((32, 32)), float) for file in (photo, copy))
    turns = [np.rot90(side, number) for side in (first, first.T) for number in range(4)]
    assert max(np.corrcoef(turn.ravel(), second.ravel())[0, 1] for turn in turns) > 0.96


def test_a_spot_counts_from_20_pixels_and_24_levels() -> None:
    grey = np.full((90, 90, 3), 100, np.uint8)
    for side, levels, expected in ((20, 24, True), (20, 23, False), (14, 40, False)):
        spotted = grey.copy()
        spotted[30 : 30 + side, 40 : 40 + side, 1] += levels
        assert is_visible(Image.fromarray(grey), Image.fromarray(spotted)) is expected


def test_an_edit_that_nobody_sees_is_below_the_limits() -> None:
    unseen = edits.in_one_place(draw(), lambda image, draw, unit: image)
    assert [file.nearly_shown_by for file in unseen] == [(1,), (0,)]
    seen = edits.in_one_place(draw(), edits.spot)
    assert [file.nearly_shown_by for file in seen] == [(), ()]


def test_a_watermark_changes_levels_by_at_most_8_percent() -> None:
    image = draw().photo(600)
    marked = edits.watermarked(image, draw(), 1)
    difference = np.abs(np.asarray(image, np.int16) - np.asarray(marked, np.int16))
    assert 3 < difference.max() <= 0.08 * 255 + 1


def test_original_files_are_used_as_the_camera_wrote_them(tmp_path: Path) -> None:
    draw().photo(700).save(tmp_path / "camera.jpg", quality=90)
    (tmp_path / "broken.jpg").write_bytes((tmp_path / "camera.jpg").read_bytes()[:2000])
    originals = camera_files(tmp_path)
    assert originals == [tmp_path / "camera.jpg"]
    taken = Draw(np.random.default_rng(1), 0, originals).camera_file(has_exif=True)
    assert taken.data == originals[0].read_bytes()


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_photo_is_shown_by_a_child_only_if_nobody_sees_a_loss(kind: str) -> None:
    cases = [child(draw(number), kind) for number in range(6)]
    assert {(photo.shown_by, made.shown_by) for photo, made in cases} == {((), (0,))}
    with_exif = [b"Exif" in photo.data[:64] for photo, _ in cases]
    assert {True, False} == {*with_exif}
    is_alike = [bool(photo.nearly_shown_by) for photo, _ in cases]
    assert is_alike == [kind in ("saved again", "enlarged") and not has_exif for has_exif in with_exif]


PHOTO = Image.fromarray(data.coffee())  # 600 x 400


SIZED = {"a.jpg": (600, 400), "a-300x200.jpg": (300, 200), "a-150x150.jpg": (150, 150)}
RESIZED = {"a.jpg": (600, 400), "resized/a.jpg": (300, 200)}
LIGHTER = {"a.jpg": (600, 400), "b.jpg": (300, 200)}, {"a.jpg": (600, 400)}


@pytest.mark.parametrize(
    ("prepare", "commits", "copy", "source"),
    [
        (sized, (SIZED,), "a-300x200.jpg", "a.jpg"),  # to 150 x 150, a theme cuts
        (resized, (RESIZED,), "resized_a.jpg", "a.jpg"),
        (versions, LIGHTER, "*_a.jpg", "*_a.jpg"),
    ],
)
def test_the_copies_of_a_site_move_for_their_source(
    tmp_path: Path,
    prepare: Callable[[Path, Path], dict[str, str]],
    commits: Sequence[dict[str, tuple[int, int]]],
    copy: str,
    source: str,
) -> None:
    folder, site, photo = tmp_path / "folder", tmp_path / "site", PHOTO
    folder.mkdir()
    subprocess.run(["git", "init", "-q", site], check=True)
    for number, files in enumerate(commits):
        for name, size in files.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            photo.resize(size).save(site / name, quality=90 - 20 * number)
        with Image.open(site / "a.jpg") as stored:
            photo = stored.convert("RGB")
        for words in ("add .", "-c user.name=a -c user.email=a commit -qm a"):
            subprocess.run(["git", "-C", site, *words.split()], check=True)
    pairs = prepare(site, folder)
    ((found, original),) = pairs.items()
    assert fnmatch(found, copy)
    assert fnmatch(original, source)
    counts = {"files": len(list(folder.iterdir())), "copies": 1, "moved": 1, "losses": []}
    assert judged(folder, pairs) == counts


def test_a_move_for_another_photo_and_a_moved_source_are_losses(tmp_path: Path) -> None:
    PHOTO.save(tmp_path / "a.jpg", quality=90)
    PHOTO.resize((300, 200)).save(tmp_path / "b.jpg", quality=80)
    ImageEnhance.Brightness(PHOTO).enhance(1.3).save(tmp_path / "c.jpg", quality=90)
    assert judged(tmp_path, {"b.jpg": "c.jpg"})["losses"] == [("b.jpg", "a.jpg")]
    assert judged(tmp_path, {"a.jpg": "b.jpg"})["losses"] == [("b.jpg", "a.jpg")]
