"""Edits of a small place, which show what the kept photo does not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from clip_client.dedup.proof.prove import OTHER_CHROMA, OTHER_FRAME, OTHER_LUMA, OTHER_PIXELS, prove
from tests.fixtures.images import phone_files
from tests.fixtures.images.image_files import encoded
from tests.fixtures.images.scenes import noisy, picture_in, scene

SIZE = (400, 304)
PHOTO = noisy(scene(11, SIZE).point([50 + level * 3 // 5 for level in range(256)] * 3), 2, 11)
KEPT = encoded(PHOTO, "JPEG", quality=94)
SEEN = picture_in(KEPT)


def written(picture: Image.Image, quality: int | None) -> bytes:
    return encoded(picture, "PNG") if quality is None else encoded(picture, "JPEG", quality=quality)


def tinted(luma: float = 0, blue: float = 0, red: float = 0, place: Any = np.s_[96:160, 160:240]) -> Image.Image:
    """Add to Y, Cb and Cr in a place."""
    pixels = np.array(SEEN).astype(np.float64)
    pixels[place] += (luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue)
    assert pixels.min() >= 0
    assert pixels.max() <= 255
    return Image.fromarray(np.rint(pixels).astype(np.uint8))


def moved() -> Image.Image:
    picture = SEEN.copy()
    picture.paste(SEEN.crop((100, 100, 130, 130)), (104, 102))
    return picture


def shifted(by: float) -> Image.Image:
    matrix = np.array([[1, 0, by], [0, 1, 0]], np.float64)
    return Image.fromarray(cv2.warpAffine(np.asarray(SEEN), matrix, SIZE, borderMode=cv2.BORDER_REFLECT))


def shifted_row() -> Image.Image:
    pixels = np.array(SEEN)
    pixels[160:176] = np.roll(pixels[160:176], 8, axis=1)
    return Image.fromarray(pixels)


EDITS: dict[str, Callable[[], Image.Image]] = {
    "a lighter spot": lambda: tinted(24, place=np.s_[150:170, 200:220]),
    "an object moved by 4 px": moved,
    "a shift by half a pixel": lambda: shifted(0.5),
    "a shifted row of blocks": shifted_row,
    "another colour": lambda: tinted(blue=20),
}


@pytest.mark.parametrize("quality", [40, 75, 92, None])
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("scale", [1, 0.5])
def test_an_edit_of_a_place_is_found(edit: str, quality: int | None, scale: float) -> None:
    changed = EDITS[edit]()
    if scale != 1:
        changed = changed.resize((SIZE[0] // 2, SIZE[1] // 2), Image.Resampling.LANCZOS)
    proof = prove(KEPT, written(changed, quality))
    assert not proof.holds
    assert proof.reason in (OTHER_LUMA, OTHER_CHROMA, OTHER_PIXELS)
    assert proof.used > 1


@pytest.mark.parametrize("quality", [40, 60, 85])
@pytest.mark.parametrize(
    "edit",
    [lambda: SEEN.filter(ImageFilter.UnsharpMask(1, 60, 0)), lambda: noisy(SEEN, 6, 3)],
    ids=["sharpened", "noisy"],
)
def test_what_changes_the_whole_picture_is_found(edit: Callable[[], Image.Image], quality: int) -> None:
    """Each block alone may be what an unknown filter makes of the kept photo; all of them together may not."""
    small = edit().resize((SIZE[0] // 2, SIZE[1] // 2), Image.Resampling.LANCZOS)
    proof = prove(KEPT, written(small, quality))
    assert (proof.holds, proof.reason) == (False, OTHER_LUMA)


def page(number: str, size: int) -> Image.Image:
    picture = Image.new("RGB", (420, 200), (244, 241, 236))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(size)
    for row in range(200 // (2 * size)):
        text = f"row {row}: {row * 7919 % 9973} paid" if row != 2 else f"sum: {number} due"
        draw.text((20, 10 + 2 * size * row), text, fill=(35, 33, 38), font=font)
    return noisy(picture, 1.5, 4)


@pytest.mark.parametrize("size", [10, 14, 20])
@pytest.mark.parametrize("quality", [40, 60, 85])
def test_a_changed_digit_is_found(size: int, quality: int) -> None:
    kept = encoded(page("3441.34", size), "JPEG", quality=94)
    seen, other = np.array(picture_in(kept)), np.asarray(page("3441.84", size))
    changed = (np.abs(other.astype(int) - np.asarray(page("3441.34", size))).max(axis=2) > 3)[..., None]
    fake = Image.fromarray(np.where(changed, other, seen).astype(np.uint8))
    assert prove(kept, encoded(Image.fromarray(seen), "JPEG", quality=quality)).holds
    assert prove(kept, encoded(fake, "JPEG", quality=quality)).reason == OTHER_LUMA


def test_a_faint_note_between_lines_of_type_is_found_at_the_same_size() -> None:
    picture = Image.new("L", (420, 240), 250)
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(14)
    for row in range(12):
        text = f"row {row}: {row * 7919 % 9973} carried forward to page {row * 31} and summed again"
        draw.text((4, 2 + 19 * row), text, 10, font)
    noted = picture.copy()
    ImageDraw.Draw(noted).text((20, 66), "paid 125.00", 224, font)
    noted = Image.fromarray(np.minimum(np.asarray(noted), np.asarray(picture)))
    kept = encoded(picture, "PNG")
    assert prove(kept, encoded(picture, "JPEG", quality=60)).holds
    assert prove(kept, encoded(noted, "JPEG", quality=60)).reason == OTHER_LUMA


def coloured_word(ink: tuple[int, int, int]) -> Image.Image:
    """Black type on white, with one word in another ink."""
    picture = Image.new("RGB", (420, 200), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(21)
    for row in range(6):
        draw.text((20, 10 + 30 * row), f"row {row}: {row * 7919 % 9973} paid", fill="black", font=font)
    draw.text((260, 70), "overdue", fill=ink, font=font)
    return picture


@pytest.mark.parametrize("sampling", [0, 2])
def test_the_colour_of_a_word_is_not_hidden_by_black_type(sampling: int) -> None:
    grey, green = (
        encoded(coloured_word(ink), "JPEG", quality=92, subsampling=sampling) for ink in ((60, 60, 60), (20, 87, 23))
    )
    assert prove(grey, encoded(picture_in(grey), "JPEG", quality=75)).holds
    for kept, duplicate in ((grey, green), (green, grey)):
        assert prove(kept, duplicate).reason in (OTHER_LUMA, OTHER_CHROMA)


def test_the_steps_of_colours_are_their_own() -> None:
    """What the steps of luma would hide shows in the finer ones of colours, and the other way round."""
    coarse, fine = [20] * 64, [2] * 64
    for changed, tables, reason in (
        (tinted(red=5), [coarse, fine], OTHER_CHROMA),
        (tinted(luma=5), [fine, coarse], OTHER_LUMA),
        (tinted(red=5), [coarse, coarse, fine], OTHER_CHROMA),
        (tinted(blue=20), [[10] * 64] * 2, OTHER_CHROMA),  # only colours differ
    ):
        assert prove(KEPT, encoded(SEEN, "JPEG", qtables=tables, subsampling=0)).holds
        assert prove(KEPT, encoded(changed, "JPEG", qtables=tables, subsampling=0)).reason == reason


@pytest.mark.parametrize("way", ["PNG", "TIFF", "WEBP", "JPEG XL"])
def test_one_level_of_one_pixel_is_an_edit_of_a_lossless_file(way: str) -> None:
    def lossless(picture: Image.Image) -> bytes:
        if way == "JPEG XL":
            return phone_files.jxl(picture, lossless=True)
        return encoded(picture, way, **({"lossless": True} if way == "WEBP" else {}))

    changed = SEEN.copy()
    red, green, blue = SEEN.getpixel((33, 44))  # type: ignore[misc]
    changed.putpixel((33, 44), (red, green, blue ^ 1))
    assert prove(KEPT, lossless(changed)).reason == OTHER_PIXELS
    assert prove(KEPT, lossless(SEEN.transpose(Image.Transpose.ROTATE_90))).holds


def test_other_photos_crops_and_turns_by_a_degree_are_not_proved(photos: Path) -> None:
    other = encoded(scene(12, SIZE), "JPEG", quality=80)
    assert prove(KEPT, other).reason in (OTHER_FRAME, OTHER_LUMA)
    assert prove(KEPT, encoded(SEEN.crop((0, 0, 300, 304)), "JPEG", quality=80)).reason == OTHER_FRAME
    assert prove(KEPT, encoded(SEEN.crop((2, 2, 400, 304)), "JPEG", quality=80)).reason == OTHER_LUMA
    turned = SEEN.rotate(0.5, Image.Resampling.BICUBIC)
    assert prove(KEPT, encoded(turned, "JPEG", quality=80)).reason == OTHER_LUMA
    files = sorted(photos.iterdir())
    assert not any(
        prove(kept.read_bytes(), encoded(Image.open(copy).convert("RGB"), "JPEG", quality=60)).holds
        for kept, copy in pairwise(files)
    )
