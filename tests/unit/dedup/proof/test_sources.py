"""Photos that were made from the one that would move for them, pages whose digits differ, and files at their paths."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps

from clip_client.dedup.compare.proofs import prove_again
from clip_client.dedup.proof.prove import DUPLICATE, KEPT, OTHER_LUMA, prove
from clip_client.dedup.types import EXACT, RE_ENCODED, SAME_PIXELS
from tests.fixtures.images.embedded_files import MP4
from tests.fixtures.images.image_files import encoded, oriented
from tests.fixtures.images.scenes import cropped, noisy, picture_in, resized, scene

SIZE = (480, 360)


def jpeg(picture: Image.Image, quality: int, **options: Any) -> bytes:
    return encoded(picture, "JPEG", quality=quality, **options)


GRAIN = cv2.GaussianBlur(np.random.default_rng(0).normal(0, 6, (SIZE[1], SIZE[0], 3)), (0, 0), 0.7)
PHOTO = Image.fromarray(np.clip(np.asarray(scene(0, SIZE)) + GRAIN, 0, 255).astype(np.uint8))
CAMERA = jpeg(PHOTO, 92)
SEEN = picture_in(CAMERA)


def moves(kept: bytes, duplicate: bytes) -> bool:
    proof = prove(kept, duplicate)
    return proof.holds and proof.source != DUPLICATE


def page(changed: int = 0) -> Image.Image:
    """A table of numbers; ``changed`` digits differ from those of the page without changes."""
    random = np.random.default_rng(7)
    picture = Image.new("RGB", (640, 480), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(16)
    for row in range(19):
        for column in range(6):
            number = int(random.integers(1000, 9999))
            if (row * 6 + column) % 7 == 3 and changed > (row * 6 + column) // 7:
                number += 7 if number % 10 < 3 else -1
            draw.text((20 + 100 * column, 12 + 24 * row), f"{number / 100:.2f}", fill=(20, 20, 20), font=font)
    return picture


def photographed(picture: Image.Image, seed: int) -> Image.Image:
    """The page in perspective, under uneven light, with noise of its own."""
    width, height = picture.size
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    moved = corners + np.array([[15, 8], [-6, 14], [-18, -9], [10, -12]], np.float32)
    there = cv2.warpPerspective(np.asarray(picture), cv2.getPerspectiveTransform(corners, moved), picture.size)
    light = np.linspace(0.6, 0.95, width, dtype=np.float32)[None, :, None]
    soft = cv2.GaussianBlur(there.astype(np.float32) * light, (0, 0), 0.6)
    return noisy(Image.fromarray(soft.astype(np.uint8)), 3, seed)


@pytest.mark.parametrize("scale", [1, 0.5])
@pytest.mark.parametrize("kind", ["page", "photo of a page"])
def test_a_page_moves_for_its_scan_but_not_if_digits_differ(kind: str, scale: float) -> None:
    def copied(picture: Image.Image) -> bytes:
        return jpeg(resized(picture, scale), 60)

    def shown(changed: int) -> Image.Image:
        return page(changed) if kind == "page" else photographed(page(changed), 1)

    kept = jpeg(shown(0), 92)
    assert moves(kept, copied(picture_in(kept)))
    for changed in (1, 12):
        assert prove(kept, copied(shown(changed))).reason == OTHER_LUMA
    if kind == "photo of a page":  # and its noise, too
        assert prove(kept, copied(photographed(page(1), 2))).reason == OTHER_LUMA


def test_neither_half_of_a_focus_stack_moves_for_the_other() -> None:
    soft = PHOTO.filter(ImageFilter.GaussianBlur(2))
    near, far = PHOTO.copy(), PHOTO.copy()
    near.paste(soft.crop((0, 0, 240, 360)), (0, 0))
    far.paste(soft.crop((240, 0, 480, 360)), (240, 0))
    assert not moves(jpeg(near, 92), jpeg(far, 92))
    assert not moves(jpeg(near, 92), jpeg(PHOTO, 85)), "merged of both"


def softer_colours(picture: Image.Image) -> Image.Image:
    luma, *colours = picture.convert("YCbCr").split()
    return Image.merge("YCbCr", (luma, *(one.filter(ImageFilter.GaussianBlur(1)) for one in colours))).convert("RGB")


def another_hue(picture: Image.Image) -> Image.Image:
    hue, *others = picture.convert("HSV").split()
    return Image.merge("HSV", (hue.point(lambda level: (level + 1) % 256), *others)).convert("RGB")


WORSE: dict[str, Callable[[Image.Image], bytes]] = {
    "smoothed": lambda picture: jpeg(Image.fromarray(cv2.bilateralFilter(np.asarray(picture), 7, 25, 25)), 98),
    "blurred by half a pixel": lambda picture: jpeg(picture.filter(ImageFilter.GaussianBlur(0.5)), 98),
    "sharpened": lambda picture: jpeg(picture.filter(ImageFilter.UnsharpMask(2, 80, 0)), 96),
    "sharpened and larger": lambda picture: jpeg(resized(picture.filter(ImageFilter.UnsharpMask(2, 80, 0)), 1.5), 96),
    "quality 75": lambda picture: jpeg(picture, 75),
    "quality 25, then 100": lambda picture: jpeg(picture_in(jpeg(picture, 25)), 100),
    "quality 40, then PNG": lambda picture: encoded(picture_in(jpeg(picture, 40)), "PNG"),
    "WebP, then 98": lambda picture: jpeg(picture_in(encoded(picture, "WEBP", quality=40)), 98),
    "more contrast": lambda picture: jpeg(ImageEnhance.Contrast(picture).enhance(1.05), 96),
    "darker": lambda picture: jpeg(ImageEnhance.Brightness(picture).enhance(0.85), 95),
    "weaker colours": lambda picture: jpeg(ImageEnhance.Color(picture).enhance(0.95), 96),
    "stronger colours": lambda picture: jpeg(ImageEnhance.Color(picture).enhance(1.04), 98),
    "softer colours": lambda picture: jpeg(softer_colours(picture), 98),
    "another hue": lambda picture: jpeg(another_hue(picture), 98),
    "compressed off the grid": lambda one: jpeg(ImageOps.crop(picture_in(jpeg(ImageOps.expand(one, 4), 70)), 4), 98),
    "grain, then PNG": lambda picture: encoded(noisy(picture, 3, 1), "PNG"),
    "turned": lambda picture: jpeg(picture.transpose(Image.Transpose.ROTATE_90), 75),
    "larger": lambda picture: jpeg(picture.resize((720, 540), Image.Resampling.BILINEAR), 95),
    "larger, more contrast": lambda picture: jpeg(ImageEnhance.Contrast(resized(picture, 2)).enhance(1.3), 95),
}


@pytest.mark.parametrize("worse", WORSE)
def test_an_original_does_not_move_for_what_was_made_from_it(worse: str) -> None:
    assert not moves(WORSE[worse](SEEN), CAMERA)


@pytest.mark.parametrize("orientation", [1, *range(2, 9)])
def test_a_copy_saved_with_finer_steps_is_known_by_the_steps_of_its_source(orientation: int) -> None:
    original = jpeg(PHOTO.crop((0, 0, 475, 357)), 85, exif=oriented(orientation))
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(original))).convert("RGB")
    assert prove(original, jpeg(upright, 60)).source == KEPT
    later = jpeg(upright, 95)
    assert (prove(later, original).source, prove(original, later).source) == (DUPLICATE, KEPT)


@pytest.mark.parametrize("filter_", [Image.Resampling.NEAREST, Image.Resampling.BICUBIC])
@pytest.mark.parametrize("kept_as", ["PNG", "JPEG"])
def test_a_lossless_photo_does_not_move_for_an_enlarged_copy_of_it(filter_: Image.Resampling, kept_as: str) -> None:
    """Its steps are too fine to tell; but the enlarged copy shows no more than what an enlargement makes of it."""
    original = encoded(PHOTO, "PNG")
    enlarged = encoded(PHOTO.resize((960, 720), filter_), kept_as, **({"quality": 95} if kept_as == "JPEG" else {}))
    assert not moves(enlarged, original)
    assert kept_as == "JPEG" or prove(enlarged, original).source == DUPLICATE
    assert moves(original, enlarged)
    assert moves(original, encoded(resized(PHOTO, 0.5), "PNG")), "a photo that shows more"


def test_fine_colours_do_not_move_for_a_file_that_stores_them_at_half_size() -> None:
    picture = PHOTO.copy()
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(12)
    draw.rectangle((20, 20, 460, 200), fill=(60, 60, 60))
    for row in range(10):
        draw.text((30, 24 + 17 * row), "0123456789 abcdefghijklm 9876543210", fill=(200, 0, 0), font=font)
    fine, halved = jpeg(picture, 90, subsampling=0), jpeg(picture, 97, subsampling=2)
    assert not moves(halved, fine)
    assert moves(fine, jpeg(picture_in(fine), 80, subsampling=0))


def test_files_are_proved_from_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "original": CAMERA,
        "copy": jpeg(SEEN, 70),
        "coarse": jpeg(SEEN, 30),
        "crop": jpeg(cropped(SEEN, 0.1, 0.1, 0, 0.05), 85),
        "page": jpeg(page(), 92),
        "digit": jpeg(page(1), 85),
        "text": b"text",
        "other text": b"other text",
        "empty": b"",
        "still": encoded(page(), "BMP"),
        "another pixel": encoded(page(), "BMP")[:-1] + b"\0",
        "film behind": encoded(page(), "BMP") + MP4,
        "cut out": encoded(Image.merge("RGBA", (*page().split(), ImageOps.invert(page().convert("L")))), "PNG"),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)

    def proved(kept: str, moved: str) -> str:
        return prove_again(str(tmp_path / kept), str(tmp_path / moved))

    assert proved("original", "copy") == RE_ENCODED
    assert proved("film behind", "still") == SAME_PIXELS
    assert proved("text", "text") == EXACT
    pairs = (("copy", "original"), ("original", "coarse"), ("page", "digit"), ("page", "gone"), ("gone", "page"))
    others = (("original", "crop"), ("text", "other text"), ("empty", "empty"))
    of_still = (("still", other) for other in ("film behind", "cut out", "another pixel"))
    for kept, unproved in (*pairs, *others, *of_still):
        assert proved(kept, unproved) == ""
    monkeypatch.setitem(sys.modules, "clip_client.dedup.proof.prove", None)
    assert proved("original", "copy") == "", "without OpenCV"
