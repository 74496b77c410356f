"""What a comparison at full size sees that small pictures hide, and which of two files is proved to hold more."""

from __future__ import annotations

import io
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageCms, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps

from clip_client.dedup.aligned import ENLARGED, MADE_LATER, UNPROVED, UNTOLD
from clip_client.dedup.alignment.full_size_check import check_at_full_size, confirmed, full_photo
from clip_client.dedup.compare.proofs import prove_again
from clip_client.dedup.types import ALTERED, EDITED, RE_ENCODED, SAME_PIXELS
from preprocess_ensemble.imaging.decode import decode
from tests.fixtures.images import phone_files
from tests.fixtures.images.embedded_files import MP4
from tests.fixtures.images.scenes import cropped, noisy, resized, scene
from tests.fixtures.members import alignment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from clip_client.dedup.aligned import Alignment

    Change = Callable[[Image.Image], Image.Image]

SIZE = (480, 360)


def jpeg(picture: Image.Image, quality: int, **options: Any) -> bytes:
    return written(picture, "JPEG", quality=quality, **options)


def written(picture: Image.Image, image_format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, image_format, **options)
    return file.getvalue()


def read(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


@cache
def photo(seed: int = 0) -> Image.Image:
    """A scene with the grain of a camera."""
    grain = np.random.default_rng(seed).normal(0, 6, (SIZE[1], SIZE[0], 3))
    soft = cv2.GaussianBlur(grain, (0, 0), 0.7)
    return Image.fromarray(np.clip(np.asarray(scene(seed, SIZE)) + soft, 0, 255).astype(np.uint8))


@cache
def camera_file(seed: int = 0) -> bytes:
    return jpeg(photo(seed), 92)


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


def checked(kept: bytes, duplicate: bytes, transform: Any = None, **options: Any) -> Alignment:
    """Check two files, the whole of the one on the whole of the other unless a ``transform`` says how they lie."""
    whole, copy = full_photo(kept), full_photo(duplicate)
    assert whole is not None
    assert copy is not None
    across, down = (one / other for one, other in zip(whole.pixels.shape[1::-1], copy.pixels.shape[1::-1], strict=True))
    found = alignment(RE_ENCODED, transform=transform or (across, 0, 0, 0, down, 0))
    return check_at_full_size(whole, copy, found, **options)


def bilateral(picture: Image.Image) -> Image.Image:
    return Image.fromarray(cv2.bilateralFilter(np.asarray(picture), 7, 25, 25))


def sharpened(picture: Image.Image) -> Image.Image:
    return picture.filter(ImageFilter.UnsharpMask(2, 80, 0))


ENCODED: dict[str, Callable[[Image.Image], bytes]] = {
    "quality 85": lambda picture: jpeg(picture, 85),
    "quality 50": lambda picture: jpeg(picture, 50),
    "quality 25": lambda picture: jpeg(picture, 25),
    "half": lambda picture: jpeg(resized(picture, 0.5), 80),
    "three quarters": lambda picture: jpeg(picture.resize((360, 270), Image.Resampling.LANCZOS), 85),
    "WebP": lambda picture: written(picture, "WEBP", quality=70),
    "a little smaller": lambda picture: jpeg(resized(picture, 0.96), 70),
}
SOFT = jpeg(scene(0, SIZE).filter(ImageFilter.GaussianBlur(1.5)), 92)
"""A photo that has no finer detail than a smaller copy of it."""


@pytest.mark.parametrize(
    ("source", "way"),
    [*((camera_file(), way) for way in ENCODED), (SOFT, "three quarters"), (SOFT, "a little smaller")],
    ids=[*ENCODED, "soft, three quarters", "soft, a little smaller"],
)
def test_a_copy_moves_for_the_file_that_it_was_made_from(source: bytes, way: str) -> None:
    found = checked(source, ENCODED[way](read(source)))
    assert (found.tier, found.doubts, found.region) == (RE_ENCODED, (), None)


@pytest.mark.parametrize("way", ["quality 50", "half"])
@pytest.mark.parametrize("kind", ["page", "photo of a page"])
def test_a_page_moves_for_its_scan_but_not_if_digits_differ(kind: str, way: str) -> None:
    def shown(changed: int) -> Image.Image:
        return page(changed) if kind == "page" else photographed(page(changed), 1)

    kept = jpeg(shown(0), 92)
    assert checked(kept, ENCODED[way](read(kept))).doubts == ()
    for changed in (1, 12):
        found = checked(kept, ENCODED[way](shown(changed)))
        assert found.tier == ALTERED
    if kind == "photo of a page":  # and its noise, too
        assert checked(kept, ENCODED[way](photographed(page(1), 2))).tier == ALTERED


def test_the_region_is_where_the_digit_is() -> None:
    found = checked(jpeg(page(), 92), jpeg(page(1), 85))
    assert found.region is not None
    left, top, width, height = found.region
    assert left < 340 / 640 < left + width
    assert top < 20 / 480 < top + height
    assert found.region_share < 0.05


def brighter_spot(picture: Image.Image) -> Image.Image:
    changed = picture.copy()
    spot = changed.crop((200, 150, 220, 170))
    changed.paste(spot.point([min(255, level + 24) for level in range(256)] * 3), (200, 150))
    return changed


def spot_in_another_colour(picture: Image.Image) -> Image.Image:
    planes = np.array(picture.convert("YCbCr"))
    planes[150:180, 200:230, 1] += 30
    return Image.fromarray(planes, "YCbCr").convert("RGB")


@pytest.mark.parametrize(
    ("change", "way"),
    [*((brighter_spot, way) for way in ("quality 85", "quality 25", "half", "WebP")), (spot_in_another_colour, "WebP")],
)
def test_a_small_spot_makes_a_photo_altered(change: Change, way: str) -> None:
    assert checked(camera_file(), ENCODED[way](change(read(camera_file())))).tier == ALTERED


def test_the_other_half_of_a_focus_stack_is_altered() -> None:
    sharp, soft = photo(), photo().filter(ImageFilter.GaussianBlur(2))
    stack = [sharp.copy(), sharp.copy()]
    stack[0].paste(soft.crop((0, 0, 240, 360)), (0, 0))
    stack[1].paste(soft.crop((240, 0, 480, 360)), (240, 0))
    near, far = (jpeg(one, 92) for one in stack)
    assert checked(near, far).tier == ALTERED
    assert checked(near, jpeg(sharp, 85)).tier == ALTERED  # merged of both


PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


LOSSLESS: dict[str, Callable[[Image.Image], bytes]] = {
    "TIFF": lambda picture: written(picture, "TIFF"),
    "WebP": lambda picture: written(picture, "WEBP", lossless=True),
    "WebP with a profile": lambda picture: written(picture, "WEBP", lossless=True, icc_profile=PROFILE),
    "JPEG XL": lambda picture: phone_files.jxl(picture, lossless=True),
}


@pytest.mark.parametrize("way", LOSSLESS)
def test_two_lossless_files_that_differ_in_a_pixel_are_altered(way: str) -> None:
    changed = photo().copy()
    changed.putpixel((100, 200), (0, 0, 0))
    found = checked(written(photo(), "PNG"), LOSSLESS[way](changed))
    assert found.tier == ALTERED
    assert found.region == pytest.approx((100 / 480, 200 / 360, 1 / 480, 1 / 360))


WORSE: dict[str, tuple[Callable[[Image.Image], bytes], tuple[str, ...]]] = {
    "smoothed": (lambda picture: jpeg(bilateral(picture), 98), (UNTOLD,)),
    "quality 25, then 100": (lambda picture: jpeg(read(jpeg(picture, 25)), 100), (MADE_LATER,)),
    "quality 40, then PNG": (lambda picture: written(read(jpeg(picture, 40)), "PNG"), (MADE_LATER,)),
    "WebP, then 98": (lambda picture: jpeg(read(written(picture, "WEBP", quality=40)), 98), (UNTOLD,)),
    "saved again": (lambda picture: jpeg(picture, 95), (UNTOLD, MADE_LATER)),
    "more contrast": (lambda picture: jpeg(ImageEnhance.Contrast(picture).enhance(1.05), 96), (UNTOLD,)),
    "weaker colours": (lambda picture: jpeg(ImageEnhance.Color(picture).enhance(0.95), 96), (UNTOLD,)),
    "grain, then PNG": (lambda picture: written(noisy(picture, 3, 1), "PNG"), (UNTOLD,)),
    "grain, then 95": (lambda picture: jpeg(noisy(picture, 4, 1), 95), (UNTOLD,)),
    "mirrored back": (lambda picture: jpeg(ImageOps.mirror(picture), 95), (UNTOLD,)),
}


@pytest.mark.long
@pytest.mark.parametrize("source", ["JPEG", "PNG", "WebP"])
@pytest.mark.parametrize("worse", WORSE)
def test_an_original_does_not_move_for_what_was_made_from_it(worse: str, source: str) -> None:
    make, doubts = WORSE[worse]
    original = {"JPEG": jpeg(photo(), 90), "PNG": written(photo(), "PNG"), "WebP": written(photo(), "WEBP", quality=85)}
    transform = (-1, 0, SIZE[0], 0, 1, 0) if worse == "mirrored back" else None
    found = checked(make(read(original[source])), original[source], transform)
    assert found.tier == ALTERED or found.doubts in [(doubt,) for doubt in (*doubts, MADE_LATER)]


@pytest.mark.parametrize(("closeness", "doubts"), [(0.0, ()), (0.25, (UNTOLD,))])
def test_a_source_lies_evenly_between_the_steps_of_its_copy(closeness: float, doubts: tuple[str, ...]) -> None:
    """What a weak filter made of a JPEG is within half a step of it, as a source is, but more of it is close by."""
    copy = jpeg(photo().convert("L").convert("RGB"), 50)
    luma = np.asarray(read(copy), np.float32)[..., 0]
    steps = np.array(Image.open(io.BytesIO(copy)).quantization[0], np.float32).reshape(8, 8)  # type: ignore[attr-defined]
    random = np.random.default_rng(3)
    off = random.uniform(-0.5, 0.5, luma.shape)
    off *= np.where(random.random(luma.shape) < closeness, random.random(luma.shape), 1)
    rows = [
        np.hstack([cv2.idct(block) for block in np.hsplit(row, 60)])
        for row in np.vsplit(off * np.tile(steps, (45, 60)), 45)
    ]
    source = np.clip(np.rint(luma + np.vstack(rows)), 0, 255).astype(np.uint8)
    assert checked(written(Image.fromarray(source).convert("RGB"), "PNG"), copy).doubts == doubts


def test_a_sharpened_photo_is_no_source_whatever_its_size() -> None:
    for larger in (1, 1.5):
        found = checked(jpeg(resized(sharpened(read(camera_file())), larger), 96), camera_file())
        assert found.tier == ALTERED or found.doubts in [(UNTOLD,), (ENLARGED,)]


@pytest.mark.parametrize("quality", [40, 60, 75])
def test_a_compressed_copy_is_no_source(quality: int) -> None:
    found = checked(jpeg(read(camera_file()), quality), camera_file())
    assert found.tier == ALTERED or found.doubts == (MADE_LATER,)


def test_fine_colours_do_not_move_for_a_file_that_stores_them_at_half_size() -> None:
    picture = photo().copy()
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(12)
    draw.rectangle((20, 20, 460, 200), fill=(60, 60, 60))
    for row in range(10):
        draw.text((30, 24 + 17 * row), "0123456789 abcdefghijklm 9876543210", fill=(200, 0, 0), font=font)
    fine, halved = jpeg(picture, 90, subsampling=0), jpeg(picture, 97, subsampling=2)
    assert checked(halved, fine).doubts == (UNTOLD,)
    assert checked(fine, jpeg(read(fine), 80, subsampling=0)).doubts == ()
    assert checked(halved, jpeg(read(halved), 80, subsampling=0)).doubts == ()  # it has no more than its source


def test_colours_at_full_size_do_not_move_for_a_file_made_beside_them() -> None:
    smooth = Image.fromarray(np.random.default_rng(7).integers(60, 200, (45, 60, 3), dtype=np.uint8)).resize(SIZE)
    half, across, full = (jpeg(smooth, 85, subsampling=sampling) for sampling in (2, 1, 0))
    for duplicate in (full, across):
        assert checked(half, duplicate).doubts == (UNTOLD,)


@pytest.mark.parametrize("kind", ["AVIF", "HEIC", "WEBP"])
def test_colours_at_full_size_do_not_move_for_a_phone_file_with_half_of_them(kind: str) -> None:
    smooth = Image.fromarray(np.random.default_rng(7).integers(60, 200, (45, 60, 3), dtype=np.uint8)).resize(SIZE)
    half = phone_files.heic(smooth, quality=95) if kind == "HEIC" else written(smooth, kind, quality=95)
    assert checked(half, jpeg(smooth, 92, subsampling=0)).doubts == (UNTOLD,)
    source = decode(half).convert("RGB")
    assert checked(half, jpeg(source, 75, subsampling=0)).doubts == ()  # it has no more than its source


def test_repeated_pixels_are_no_finer_detail() -> None:
    repeated = photo().resize((960, 720), Image.Resampling.NEAREST)
    for kept in (written(repeated, "PNG"), jpeg(repeated, 95)):
        assert checked(kept, written(photo(), "PNG")).doubts == (ENLARGED,)


def test_nothing_tells_the_source_of_a_copy_in_other_tones() -> None:
    darker = jpeg(ImageEnhance.Brightness(read(camera_file())).enhance(0.85), 95)
    assert checked(darker, camera_file()).doubts == (UNTOLD,)


@pytest.mark.parametrize(
    "enlarge",
    [
        lambda picture: picture.resize((720, 540), Image.Resampling.BILINEAR),
        lambda picture: ImageEnhance.Contrast(resized(picture, 2)).enhance(1.3),
    ],
    ids=["half as large again", "twice the size with more contrast"],
)
def test_a_photo_does_not_move_for_an_enlarged_copy_of_it(enlarge: Change) -> None:
    found = checked(jpeg(enlarge(read(camera_file())), 95), camera_file())
    assert found.tier == ALTERED or found.doubts == (ENLARGED,)  # a soft one lacks detail


def test_a_crop_is_laid_on_its_photo_although_the_small_pictures_are_off_by_pixels() -> None:
    whole = read(camera_file())
    crop = jpeg(whole.crop((40, 24, 440, 330)), 80)
    for off in (0, 1.5, -2):
        found = checked(camera_file(), crop, (1.001, 0, 40 + off, 0, 0.999, 24 - off))
        assert (found.tier, found.doubts) == (RE_ENCODED, ())
    changed = whole.copy()
    changed.paste(changed.crop((300, 100, 320, 120)), (200, 150))
    assert checked(camera_file(), jpeg(changed.crop((40, 24, 440, 330)), 80), (1, 0, 41, 0, 1, 23)).tier == ALTERED


TURNS = {
    Image.Transpose.FLIP_LEFT_RIGHT: (-1, 0, 480, 0, 1, 0),
    Image.Transpose.FLIP_TOP_BOTTOM: (1, 0, 0, 0, -1, 360),
    Image.Transpose.ROTATE_180: (-1, 0, 480, 0, -1, 360),
    Image.Transpose.ROTATE_90: (0, -1, 480, 1, 0, 0),
    Image.Transpose.ROTATE_270: (0, 1, 0, -1, 0, 360),
    Image.Transpose.TRANSPOSE: (0, 1, 0, 1, 0, 0),
    Image.Transpose.TRANSVERSE: (0, -1, 480, -1, 0, 360),
}


@pytest.mark.parametrize("turn", TURNS)
def test_a_turned_copy_moves_for_its_source_only(turn: Image.Transpose) -> None:
    copy = jpeg(read(camera_file()).transpose(turn), 75)
    assert checked(camera_file(), copy, TURNS[turn]).doubts == ()
    back = cv2.invertAffineTransform(np.reshape(TURNS[turn], (2, 3)).astype(np.float64))
    found = checked(copy, camera_file(), tuple(back.ravel()))
    assert found.tier == ALTERED or found.doubts == (UNTOLD,)


@pytest.mark.parametrize("orientation", range(2, 9))
def test_the_blocks_of_a_file_are_found_whatever_its_orientation(orientation: int) -> None:
    stored = photo().crop((0, 0, 475, 357))
    exif = Image.Exif()
    exif[0x0112] = orientation
    original = jpeg(stored, 85, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(original))).convert("RGB")
    assert checked(original, jpeg(upright, 60)).doubts == ()
    assert checked(jpeg(upright, 95), original).doubts in [(UNTOLD,), (MADE_LATER,)]


@pytest.mark.parametrize(
    ("way", "doubts"), [("quality 50", ()), ("half", ()), ("quality 25", (UNPROVED,)), ("WebP", (UNPROVED,))]
)
def test_a_copy_is_confirmed_by_the_law(way: str, doubts: tuple[str, ...]) -> None:
    kept, copy = full_photo(camera_file()), full_photo(ENCODED[way](read(camera_file())))
    assert kept is not None
    assert copy is not None
    whole = alignment(RE_ENCODED)
    assert confirmed(kept, copy, whole).doubts == doubts
    # The law is asked about nothing else.
    crop, doubted = alignment(EDITED), alignment(RE_ENCODED, doubts=(UNTOLD,))
    assert (confirmed(kept, copy, crop), confirmed(kept, copy, doubted)) == (crop, doubted)


def test_a_photo_does_not_move_for_one_that_its_steps_call_later() -> None:
    small = jpeg(resized(read(camera_file()), 0.5), 60)
    enlarged = jpeg(read(small).resize(SIZE, Image.Resampling.BICUBIC), 95)
    kept, copy = full_photo(enlarged), full_photo(small)
    assert kept is not None
    assert copy is not None
    assert confirmed(kept, copy, alignment(RE_ENCODED)).doubts == (MADE_LATER,)


def test_files_are_proved_from_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "original": camera_file(),
        "copy": jpeg(read(camera_file()), 70),
        "coarse": jpeg(read(camera_file()), 30),
        "crop": jpeg(cropped(read(camera_file()), 0.1, 0.1, 0, 0.05), 85),
        "page": jpeg(page(), 92),
        "digit": jpeg(page(1), 85),
        "still": written(page(), "BMP"),
        "film behind": written(page(), "BMP") + MP4,
        "cut out": written(Image.merge("RGBA", (*page().split(), ImageOps.invert(page().convert("L")))), "PNG"),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)

    def proved(kept: str, moved: str) -> str:
        return prove_again(str(tmp_path / kept), str(tmp_path / moved))

    assert [proved("original", name) for name in ("copy", "crop", "page")] == [RE_ENCODED, EDITED, ""]
    assert proved("film behind", "still") == SAME_PIXELS
    pairs = (("copy", "original"), ("original", "coarse"), ("page", "digit"), ("page", "gone"), ("gone", "page"))
    for kept, unproved in (*pairs, ("still", "film behind"), ("still", "cut out")):
        assert proved(kept, unproved) == ""
    monkeypatch.setitem(sys.modules, "clip_client.dedup.alignment.aligner", None)
    assert proved("original", "copy") == "", "without OpenCV"
