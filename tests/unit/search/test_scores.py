from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from clip_client.search import PhotoIndex
from clip_client.search.scores import NEUTRAL, NeutralTexts, first_fall
from tests.fixtures.search_store import VECTOR_ID, Words

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

DIMENSION = 64


@pytest.mark.parametrize("matches", [3, 10, 50])
def test_scores_fall_off_after_the_matches(matches: int) -> None:
    generator = np.random.default_rng(matches)
    scores = [*(0.32 + 0.005 * generator.random(matches)), *(0.15 + 0.02 * generator.normal(size=5000))]
    assert first_fall(sorted(scores, reverse=True)) == matches


def test_scores_that_only_thin_out_fall_off_nowhere() -> None:
    falls = [first_fall(np.sort(np.random.default_rng(seed).normal(size=5000))[::-1].tolist()) for seed in range(100)]
    assert sum(fall is not None for fall in falls) <= 10
    assert first_fall([0.3, 0.2]) is None
    assert first_fall([0.3] * 50) is None


def photos_and_texts(signal: float, share: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Photos with a direction in common, of which a share also has that of the text."""
    generator = np.random.default_rng(3)
    common, concept = np.eye(DIMENSION)[:2]
    noise = generator.normal(size=(2000, DIMENSION)) / np.sqrt(DIMENSION)
    shows = generator.random((2000, 1)) < share
    photos = common + 0.5 * noise + signal * shows * concept
    text = 0.3 * common + concept
    return photos.astype(np.float32), text.astype(np.float32)


@pytest.mark.parametrize(("share", "is_unclear"), [(0.0, True), (0.001, False), (0.5, False), (1.0, False)])
async def test_a_query_that_scores_like_meaningless_texts_is_unclear(share: float, *, is_unclear: bool) -> None:
    photos, text = photos_and_texts(0.6, share)
    index = PhotoIndex.from_arrays([str(number) for number in range(len(photos))], photos, vector_id=VECTOR_ID)
    neutral = await NeutralTexts.of(Words(DIMENSION), index)
    quiet = text * 0.0 + np.random.default_rng(8).normal(size=DIMENSION).astype(np.float32)
    assert neutral.is_unclear(quiet if share == 0.0 else text, index) is is_unclear


async def test_the_neutral_texts_are_embedded_once(tmp_path: Path) -> None:
    index = PhotoIndex.from_arrays(["a"], np.ones((1, 4)), vector_id=VECTOR_ID)
    index.save(tmp_path)
    clip = Words(4)
    first = await NeutralTexts.of(clip, index)
    again = await NeutralTexts.of(clip, PhotoIndex.open(tmp_path))
    assert len(clip.embedded) == len(NEUTRAL)
    np.testing.assert_array_equal(first.vectors, again.vectors)
