"""Copies by libjpeg's fast transform, which TurboJPEG uses below quality 96, and edits that were saved with it."""

from __future__ import annotations

import io
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from clip_client.dedup.proof.law import all_blocks, as_encoded, coefficients, worst_block
from clip_client.dedup.proof.prove import DUPLICATE, OTHER_CHROMA, OTHER_LUMA, prove
from clip_client.dedup.proof.prove import KEPT as KEPT_ONE
from clip_client.dedup.proof.steps import fast_coefficients
from tests.fixtures.images.image_files import encoded
from tests.fixtures.images.scenes import noisy, picture_in

simplejpeg = pytest.importorskip("simplejpeg")  # which benchmarks bring, but not the lowest versions

QUALITIES = (60, 85, 95)


def waves() -> Image.Image:
    """Return strong waves of 6 to 20 pixels, each colour a little different: the errors are shares of them."""
    random = np.random.default_rng(3)
    shared, *own = (cv2.GaussianBlur(random.normal(0, 1, (240, 320)).astype(np.float32), (0, 0), 2) for _ in range(4))
    levels = [np.clip(128 + 75 * shared / shared.std() + 12 * one / one.std(), 12, 243) for one in own]
    return noisy(Image.fromarray(np.rint(np.dstack(levels)).astype(np.uint8)), 1, 3)


KEPT = encoded(waves(), "JPEG", quality=94, subsampling=0)
SEEN = picture_in(KEPT)


def fast(picture: Image.Image, quality: int, sampling: str = "420") -> bytes:
    return bytes(simplejpeg.encode_jpeg(np.asarray(picture), quality, "RGB", sampling, fastdct=True))


def fast_grey(picture: Image.Image, quality: int) -> bytes:
    levels = np.asarray(picture.convert("L"))[..., None]
    return bytes(simplejpeg.encode_jpeg(levels, quality, "GRAY", "Gray", fastdct=True))


def grey(data: bytes) -> tuple[Any, Any]:
    """Return the luma (H, W) of a JPEG, and its steps (64,)."""
    with Image.open(io.BytesIO(data)) as image:
        steps = np.array(image.quantization[0], np.float32)  # type: ignore[attr-defined]
        image.draft("L", image.size)
        return np.asarray(image), steps


@pytest.mark.parametrize("quality", [40, 60, 75, 85])
def test_the_transform_gives_what_libjpeg_stores(quality: int) -> None:
    luma, steps = grey(fast_grey(SEEN, quality))
    kept, stored = all_blocks(np.asarray(SEEN.convert("L"))), all_blocks(luma)
    is_whole = ((stored > 0) & (stored < 255)).all(axis=1)
    assert is_whole.sum() > 300
    found = np.rint(coefficients(stored[is_whole] - 128) / steps)
    made = fast_coefficients(kept[is_whole], steps) / steps
    # A tie is rounded away from zero.
    assert np.array_equal(found, np.sign(made) * np.floor(np.abs(made) + 0.5))
    assert (found != np.rint(coefficients(kept[is_whole] - 128) / steps)).any(axis=1).mean() > 0.2, "an exact one"


@pytest.mark.parametrize("sampling", ["444", "422", "420"])
@pytest.mark.parametrize("quality", QUALITIES)
def test_its_copies_hold(quality: int, sampling: str) -> None:
    assert prove(KEPT, fast(SEEN, quality, sampling)).holds
    half = SEEN.resize((160, 120), Image.Resampling.LANCZOS)
    assert prove(KEPT, fast(half, min(quality, 85), sampling)).holds


def changed_steps(data: bytes) -> bytes:
    """Write a grey JPEG again, with other steps of coefficients that are 0, and the coefficients that it has."""
    luma, steps = grey(data)
    return encoded(Image.fromarray(luma), "JPEG", qtables=[[*steps[:63].astype(int).tolist(), int(steps[63]) + 1]])


def test_it_is_tried_only_for_the_steps_of_turbojpeg() -> None:
    kept = encoded(SEEN.convert("L"), "PNG")
    copy = fast_grey(SEEN, 95)
    assert prove(kept, copy).holds
    assert prove(kept, changed_steps(copy)).reason == OTHER_LUMA


def test_one_transform_must_explain_all_blocks() -> None:
    """What neither transform makes of the whole photo was not made of it."""
    shown = SEEN.convert("L")
    (first, steps), (second, _) = grey(fast_grey(SEEN, 95)), grey(encoded(shown, "JPEG", quality=95))
    limits = np.full((first.shape[0] // 8, first.shape[1] // 8), 12, np.float32)
    assert worst_block(np.asarray(shown), first, steps, limits) < 1
    assert worst_block(np.asarray(shown), second, steps, limits) < 1
    assert worst_block(np.asarray(shown), np.hstack([first[:, :160], second[:, 160:]]), steps, limits) > 1


def test_the_transform_is_that_which_leaves_less_beyond_the_steps() -> None:
    kept = coefficients(all_blocks(np.asarray(SEEN.convert("L"))) - 128)
    for data, is_fast in ((fast_grey(SEEN, 90), True), (encoded(SEEN.convert("L"), "JPEG", quality=90), False)):
        luma, steps = grey(data)
        found = as_encoded(kept, coefficients(all_blocks(luma) - 128), steps)
        assert (found is not kept) is is_fast


def spot() -> Image.Image:
    pixels = np.array(SEEN).astype(np.int16)
    pixels[110:122, 150:162] += 20
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def word() -> Image.Image:
    picture = SEEN.copy()
    ImageDraw.Draw(picture).text((140, 100), "8", (90, 90, 90), ImageFont.load_default(14))
    return picture


def coloured() -> Image.Image:
    pixels = np.array(SEEN).astype(np.int16)
    pixels[96:144, 128:192] += (0, -8, 40)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("edit", [spot, word, coloured, lambda: noisy(SEEN, 8, 5)])
@pytest.mark.parametrize("quality", QUALITIES)
def test_edits_are_found(quality: int, edit: Any) -> None:
    assert prove(KEPT, fast(edit(), quality)).reason in (OTHER_LUMA, OTHER_CHROMA)


@pytest.mark.parametrize("quality", [82, 86, 88])
def test_the_source_of_what_the_fast_transform_wrote_is_known(quality: int) -> None:
    """Its errors must not be taken for values of the copy's own, which would make the copy the source."""
    original = encoded(waves(), "JPEG", quality=85)
    copy = fast(picture_in(original), quality)
    assert prove(original, copy).source == KEPT_ONE
    assert prove(copy, original).source in (DUPLICATE, "")
