"""True copies, each of a kind that a law without one of its parts would refuse."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from clip_client.dedup.proof.prove import OTHER_LUMA, prove
from tests.fixtures.images.image_files import encoded, oriented
from tests.fixtures.images.scenes import noisy, picture_in, scene
from tests.unit.dedup.proof.conftest import Trellis

LANCZOS = Image.Resampling.LANCZOS
PHOTO = noisy(scene(5, (403, 301)), 3, 5)
KEPT = encoded(PHOTO, "JPEG", quality=93)
SEEN = picture_in(KEPT)


def jpeg(picture: Image.Image | np.ndarray[Any, Any], quality: int = 75, **options: Any) -> bytes:
    return encoded(
        picture if isinstance(picture, Image.Image) else Image.fromarray(picture), "JPEG", quality=quality, **options
    )


def in_light(size: tuple[int, int]) -> Image.Image:
    """Resize light in place of levels, by the curve of sRGB."""
    level = np.asarray(SEEN) / 255
    light = np.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4).astype(np.float32)
    small = np.stack([np.asarray(Image.fromarray(light[..., i]).resize(size, LANCZOS)) for i in range(3)], axis=-1)
    small = np.clip(small, 0, 1)
    level = np.where(small <= 0.0031308, small * 12.92, 1.055 * small ** (1 / 2.4) - 0.055)
    return Image.fromarray(np.rint(level * 255).astype(np.uint8))


ENCODED: dict[str, Callable[[], bytes]] = {
    "quality 40": lambda: jpeg(SEEN, 40),
    "quality 95": lambda: jpeg(SEEN, 95),
    "colours at full size": lambda: jpeg(SEEN, 60, subsampling=0),
    "colours at half width": lambda: jpeg(SEEN, 60, subsampling=1),
    "progressive": lambda: jpeg(SEEN, 60, progressive=True),
    "one table for all colours": lambda: jpeg(SEEN, qtables=[[8 + i // 4 for i in range(64)]]),
    "coarse luma and fine colours": lambda: jpeg(SEEN, qtables=[[20] * 64, [3] * 64], subsampling=0),
    "by OpenCV": lambda: cv2.imencode(".jpg", np.asarray(SEEN)[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 70])[1].tobytes(),
    "a TIFF": lambda: encoded(SEEN, "TIFF"),
    "turned by its pixels": lambda: jpeg(SEEN.transpose(Image.Transpose.TRANSVERSE)),
    "turned by EXIF": lambda: jpeg(SEEN.transpose(Image.Transpose.ROTATE_90), exif=oriented(6)),
    "smaller and turned": lambda: jpeg(SEEN.resize((201, 150), LANCZOS).transpose(Image.Transpose.ROTATE_270)),
    "box": lambda: jpeg(SEEN.resize((200, 149), Image.Resampling.BOX)),
    "bicubic": lambda: jpeg(SEEN.resize((310, 232), Image.Resampling.BICUBIC)),
    "a thumbnail": lambda: jpeg(SEEN.resize((96, 72), LANCZOS)),
    "less than a block": lambda: jpeg(SEEN.resize((7, 5), LANCZOS)),
    "a small PNG": lambda: encoded(SEEN.resize((201, 150), LANCZOS), "PNG"),
    "enlarged": lambda: jpeg(SEEN.resize((605, 452), Image.Resampling.BICUBIC), 85),
    "OpenCV's area": lambda: jpeg(cv2.resize(np.asarray(SEEN), (250, 187), interpolation=cv2.INTER_AREA)),
    "OpenCV's cubic": lambda: jpeg(cv2.resize(np.asarray(SEEN), (300, 224), interpolation=cv2.INTER_CUBIC)),
    "OpenCV's 0.45 of a side": lambda: jpeg(cv2.resize(np.asarray(SEEN), None, fx=0.45, fy=0.45), 90),
    "halves of a mipmap": lambda: jpeg(cv2.resize(np.asarray(SEEN.reduce(2)), (121, 90)), 90),
    "in linear light": lambda: jpeg(in_light((201, 150)), 85),
    "one scale, cut at the centre": lambda: jpeg(ImageOps.fit(SEEN, (280, 205), LANCZOS), 85),
    "one scale, cut at the end": lambda: jpeg(SEEN.resize((160, 119), LANCZOS, (0, 0, 403, 299.73)), 90),  # libvips
}


@pytest.mark.parametrize("way", ENCODED)
def test_a_copy_made_in_one_step_holds(way: str) -> None:
    proof = prove(KEPT, ENCODED[way]())
    assert (proof.holds, proof.reason) == (True, "")


@pytest.mark.parametrize("name", ["astronaut", "coffee", "page", "rocket", "retina"])
@pytest.mark.parametrize("way", ["half", "same size"])
def test_copies_of_real_photos_hold(name: str, way: str, photos: Path) -> None:
    (path,) = photos.glob(f"{name}.*")
    picture = Image.open(path).convert("RGB")
    size = (picture.width // 2, picture.height // 2)
    copy = picture if way == "same size" else picture.resize(size, LANCZOS)
    assert prove(path.read_bytes(), jpeg(copy, 70)).holds


@pytest.mark.parametrize("size", [(607, 575), (722, 611)])
def test_a_nearly_symmetric_picture_is_not_taken_for_its_mirror_image(size: tuple[int, int]) -> None:
    """Such as rings whose centre is a pixel off that of the picture, whose sides are no multiple of four."""
    across, down = (np.arange(side) - (side - 1) / 2 for side in size)
    radius = np.hypot(across + 1, down[:, None] + 1)
    levels = 128 + 100 * np.sin(radius / 10) * np.exp(-radius / 200)
    rings = Image.fromarray(np.repeat(np.rint(levels).astype(np.uint8)[..., None], 3, axis=2))
    assert prove(jpeg(rings, 95), jpeg(rings.resize((size[0] // 2, size[1] // 2), LANCZOS), 80)).holds


def specks(ground: int, ink: int) -> Image.Image:
    random = np.random.default_rng(4)
    waves = cv2.GaussianBlur(random.normal(0, 1, (400, 640)).astype(np.float32), (0, 0), 1)
    return Image.fromarray(np.where(waves > 1.5 * waves.std(), ink, ground).astype(np.uint8))


@pytest.mark.parametrize(("ground", "ink"), [(255, 120), (0, 135)])
def test_what_black_and_white_cut_off_is_filled(ground: int, ink: int) -> None:
    """Around specks, steps overshoot the levels."""
    shown = specks(ground, ink)
    assert prove(encoded(shown, "PNG"), jpeg(shown, 40)).holds


@pytest.mark.parametrize("sampling", [0, 1, 2])
@pytest.mark.parametrize("quality", [40, 60, 90])
def test_what_lies_outside_of_the_picture_is_filled(quality: int, sampling: int) -> None:
    shown = SEEN.crop((0, 0, 333, 205))
    assert prove(encoded(shown, "PNG"), jpeg(shown, quality, subsampling=sampling)).holds


def test_planes_that_never_pass_through_rgb_are_a_second_reading() -> None:
    """Planes hold colours that RGB cannot: they are cut off on the way through it."""
    random = np.random.default_rng(2)
    spots = Image.fromarray(random.choice([0, 255], (15, 20, 3)).astype(np.uint8)).resize((320, 240), LANCZOS)
    kept = jpeg(spots, 50)
    with Image.open(io.BytesIO(kept)) as image:
        image.draft("YCbCr", image.size)
        planes = image.transpose(Image.Transpose.ROTATE_90)
    assert planes.mode == "YCbCr"
    assert prove(kept, encoded(planes, "JPEG", quality=85)).holds
    lossless = encoded(picture_in(kept), "PNG")
    assert not prove(lossless, encoded(planes, "JPEG", quality=85)).holds, "without the second reading"


def test_an_encoder_that_spares_bits_may_move_coefficients_towards_zero(trellis: Trellis) -> None:
    kept = trellis.kept
    assert prove(kept, trellis.encode(1.3, progressive=True)).holds
    assert prove(kept, trellis.encode(1.3, table=trellis.mozjpeg)).holds
    assert prove(kept, trellis.encode(1.3)).reason == OTHER_LUMA, "an ordinary file"
    for moved in (-1.0, 2.6):
        assert prove(kept, trellis.encode(moved, progressive=True)).reason == OTHER_LUMA
