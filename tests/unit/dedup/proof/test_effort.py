"""What a proof does not look at, because it cannot change the answer."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from clip_client.dedup.proof import choice
from clip_client.dedup.proof import prove as proving
from clip_client.dedup.proof.choice import likeliest_way
from clip_client.dedup.proof.frame import Frame, frames
from clip_client.dedup.proof.gate import Checked, PhotoFile
from clip_client.dedup.proof.law import all_blocks, beyond_all, fine_detail, worst_block
from clip_client.dedup.proof.lay import FILTERS, LINEAR_LIGHT, Layable, Way, Window
from clip_client.dedup.proof.planes import as_stored, to_luma
from clip_client.dedup.proof.prove import OTHER_LUMA, prove
from tests.fixtures.albums import then
from tests.fixtures.images.image_files import encoded
from tests.fixtures.images.scenes import noisy, picture_in, scene

SIZE = (900, 696)
PHOTO = noisy(scene(5, SIZE), 8, 5)
KEPT = encoded(PHOTO, "JPEG", quality=93)
SEEN = picture_in(KEPT)
NEXT_FRAME = noisy(scene(5, SIZE), 8, 6)
"""The same scene with other noise."""


@pytest.mark.parametrize("size", [SIZE, (600, 464)])
def test_a_photo_that_differs_everywhere_is_refused_by_a_part_of_its_luma(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    monkeypatch.setattr(proving, "worst_block", then(worst_block, lambda kept, *_: looked_at.append(kept.size)))
    monkeypatch.setattr(Checked, "stored_chroma", lambda _: pytest.fail("luma says enough"))
    frame = encoded(NEXT_FRAME.resize(size, Image.Resampling.LANCZOS), "JPEG", quality=85)
    assert prove(KEPT, frame).reason == OTHER_LUMA
    assert len(looked_at) == 2, "both readings of the kept photo"
    assert max(looked_at) < size[0] * size[1] / 3


@pytest.mark.parametrize("place", [(4, 4), (440, 344), (880, 676)])
@pytest.mark.parametrize("size", [SIZE, (450, 348)])
def test_a_spot_is_found_wherever_it_is(size: tuple[int, int], place: tuple[int, int]) -> None:
    spotted = SEEN.copy()
    spotted.paste((10, 10, 10), (*place, place[0] + 12, place[1] + 12))
    copy = encoded(spotted.resize(size, Image.Resampling.LANCZOS), "JPEG", quality=85)
    assert prove(KEPT, copy).reason == OTHER_LUMA


@pytest.mark.parametrize("size", [(450, 348), (601, 464), (333, 258)])
@pytest.mark.parametrize("name", [*FILTERS, *LINEAR_LIGHT])
def test_a_window_is_laid_as_the_whole_is(name: str, size: tuple[int, int]) -> None:
    """Otherwise a window could not refuse a photo."""
    photo = Layable(np.asarray(SEEN), size)
    way = Way(name, frames(SIZE, size)[0])
    if photo.can(way):
        whole = photo.part(way, Window(0, 0, *size))
        for window in (Window(0, 0, 160, 160), Window(160, 80, 320, 240)):
            differs = np.abs(photo.part(way, window).astype(int) - window.of(whole))
            assert differs.max() <= 1
            assert differs.mean() < 0.005


def test_a_box_is_laid_as_a_whole_because_its_windows_may_have_other_pixels() -> None:
    """At 7 pixels for 6, the edge of a box falls on the middle of pixels."""
    photo = noisy(scene(5, (1400, 700)), 8, 5)
    copy = encoded(photo.resize((1200, 600), Image.Resampling.BOX), "JPEG", quality=85)
    assert prove(encoded(photo, "PNG"), copy).holds


@pytest.mark.parametrize("name", ["bilinear", "hamming", "bicubic", "lanczos"])
def test_no_part_refuses_what_the_whole_would_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if windows are looked at although the filter fits."""
    monkeypatch.setattr(choice, "_POOR", -1.0)
    monkeypatch.setattr(choice, "_BUSIEST", 24)
    for width, height in ((601, 464), (450, 348), (840, 650)):
        copy = encoded(SEEN.resize((width, height), Image.Resampling[name.upper()]), "JPEG", quality=90)
        proof = prove(KEPT, copy)
        assert (proof.holds, proof.reason) == (True, "")


def test_a_part_refuses_only_by_blocks_whose_limits_it_knows() -> None:
    """The fine detail of a block is also that of its neighbours, which may lie outside of the part."""
    luma = np.asarray(SEEN.convert("L"))
    part, whole = fine_detail(luma[160:320, 160:320]), fine_detail(luma)[20:40, 20:40]
    is_known = np.isfinite(proving._without_edge(part))
    assert is_known.sum() == 16 * 16
    assert np.array_equal(part[is_known], whole[is_known])
    assert not np.array_equal(part[1:-1, 1:-1], whole[1:-1, 1:-1])


@pytest.mark.parametrize("size", [(450, 348), (600, 465), (450, 346)])
@pytest.mark.parametrize("name", ["box", "bilinear", "bicubic", "lanczos"])
def test_the_way_that_leaves_the_least_is_chosen_of_all(name: str, size: tuple[int, int]) -> None:
    copy = encoded(SEEN.resize(size, Image.Resampling[name.upper()]), "JPEG", quality=70)
    stored, luma = as_stored(PhotoFile(copy).as_duplicate), to_luma(np.asarray(SEEN))
    photo, whole = Layable(luma, size), Window(0, 0, *size)
    ways = [way for frame in frames(SIZE, size) for one in FILTERS if photo.can(way := Way(one, frame))]

    def beyond(way: Way) -> float:
        laid = all_blocks(photo.part(way, whole))
        return float(beyond_all(laid, all_blocks(stored.luma), stored.steps[0], stored.side).sum())

    assert likeliest_way(luma, None, stored)[0] == min(ways, key=beyond) == Way(name, Frame(0, 0, *SIZE))


def test_a_nearly_square_photo_that_may_lie_on_its_side_does_not_stop_the_search() -> None:
    """Rings, stored on their side: the turn back to the stored photo cannot be told from the other one."""
    across, down = (np.arange(side) - (side - 1) / 2 for side in (400, 396))
    levels = 128 + 100 * np.sin(np.hypot(across, down[:, None]) / 10)
    rings = Image.fromarray(np.repeat(np.rint(levels).astype(np.uint8)[..., None], 3, axis=2))
    exif = Image.Exif()
    exif[0x0112] = 6
    kept = encoded(rings, "JPEG", quality=80, exif=exif)
    upright = picture_in(kept).transpose(Image.Transpose.ROTATE_270)
    assert prove(kept, encoded(upright, "JPEG", quality=60)).holds
