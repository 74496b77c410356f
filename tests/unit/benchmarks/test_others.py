"""Copies that the tools of a web site made: which names say that a file is a copy, and what counts as a loss."""

import subprocess
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest
from PIL import Image, ImageEnhance
from skimage import data

from benchmarks.experiments.dedup.others import judged, resized, sized, versions

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
