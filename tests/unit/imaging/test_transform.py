"""Resize and crop, compared with open_clip's own transform: no pixel may differ."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from tests.fixtures.images import image_files

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


def config(**changes: Any) -> PreprocessConfig:
    return PreprocessConfig(**{"size": (224, 224), "mean": MEAN, "std": STD, **changes})


def reference(image: Image.Image, of: PreprocessConfig) -> npt.NDArray[np.uint8]:
    """open_clip's whole evaluation transform; with mean 0 and std 1/255 its floats are the pixels, exactly."""
    from open_clip.transform import PreprocessCfg, image_transform_v2

    settings = {**of.to_mapping(), "size": of.size, "mean": (0, 0, 0), "std": (1 / 255,) * 3}
    transform = image_transform_v2(PreprocessCfg(**settings), is_train=False)
    pixels = transform(image).numpy()  # (3, H, W), whole numbers within float32's precision
    return np.rint(pixels).astype(np.uint8).transpose(1, 2, 0)  # type: ignore[no-any-return]


@st.composite
def image_sizes(draw: st.DrawFn) -> tuple[int, int]:
    """Width and height from 1x1 up, with a ratio of at most 50."""
    short = draw(st.integers(1, 120))
    long = draw(st.integers(short, min(50 * short, 1500)))
    return (short, long) if draw(st.booleans()) else (long, short)


sides = st.integers(1, 300)


@pytest.mark.timeout(180)  # it imports PyTorch: 36 s on two cores that other work shared by ten
@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    image_size=image_sizes(),
    mode=st.sampled_from(["L", "RGB", "CMYK"]),
    size=st.one_of(sides.map(lambda side: (side, side)), st.tuples(sides, sides)),
    resize_mode=st.sampled_from(["shortest", "longest", "squash"]),
    interpolation=st.sampled_from(["bicubic", "bilinear"]),
    fill_color=st.sampled_from([0, 128, 255]),
)
@example((1, 1), "RGB", (224, 224), "shortest", "bicubic", 0)
@example((1, 1), "L", (224, 200), "longest", "bicubic", 128)
@example((50, 1), "CMYK", (224, 224), "shortest", "bicubic", 0)
@example((1, 50), "CMYK", (224, 224), "longest", "bicubic", 255)
@example((225, 224), "RGB", (224, 224), "shortest", "bicubic", 0)
@example((227, 224), "RGB", (224, 224), "shortest", "bicubic", 0)
@example((300, 200), "RGB", (224, 160), "shortest", "bilinear", 0)
@example((3, 7), "L", (4, 1), "shortest", "bicubic", 0)
@example((300, 400), "RGB", (224, 160), "shortest", "bicubic", 0)
def test_pixels_are_those_of_open_clip(
    image_size: tuple[int, int], mode: str, size: tuple[int, int], resize_mode: str, interpolation: str, fill_color: int
) -> None:
    if resize_mode == "longest":  # open_clip fails if the short side rounds to 0
        ratio = max(image_size[1] / size[0], image_size[0] / size[1])
        assume(round(image_size[0] / ratio) >= 1 and round(image_size[1] / ratio) >= 1)
    image = image_files.picture(mode, image_size)
    of = config(size=size, resize_mode=resize_mode, interpolation=interpolation, fill_color=fill_color)
    pixels = preprocess(image, of)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (*of.size, 3)
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    assert np.array_equal(pixels, reference(image, of))


def test_a_side_that_rounds_to_nothing_becomes_one_pixel() -> None:
    pixels = preprocess(Image.new("L", (100, 2), 200), config(size=(10, 10), resize_mode="longest"))
    assert np.count_nonzero(pixels.any(axis=(1, 2))) == 1


def test_real_photos_from_file_to_pixels(photos: Path) -> None:
    compared = 0
    for path in sorted(photos.iterdir()):
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened)
        if image.mode in ("L", "RGB", "CMYK"):
            pixels = preprocess(decode(path.read_bytes()), config())
            assert np.array_equal(pixels, reference(image, config())), path.name
            compared += 1
    assert compared >= 10


def test_the_image_is_not_changed() -> None:
    image = image_files.picture("RGB", (224, 224))
    before = image.tobytes()
    preprocess(image, config())[...] = 0
    assert image.tobytes() == before


def test_a_mapping_is_read_also_that_of_open_clip() -> None:
    from open_clip.transform import PreprocessCfg

    original = config(size=(224, 160), interpolation="bilinear", resize_mode="longest", fill_color=7)
    assert PreprocessConfig.from_mapping(original.to_mapping()) == original
    assert PreprocessConfig.from_mapping(vars(PreprocessCfg(size=256))) == config(size=(256, 256))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "shortest-bicubic-224x224"),
        ({"size": (224, 160), "resize_mode": "squash", "interpolation": "bilinear"}, "squash-bilinear-224x160"),
        ({"resize_mode": "longest"}, "longest-bicubic-224x224"),
        ({"resize_mode": "longest", "fill_color": 127}, "longest-bicubic-224x224-fill127"),
        ({"fill_color": 127}, "shortest-bicubic-224x224"),
    ],
)
def test_id(changes: dict[str, Any], expected: str) -> None:
    assert config(**changes).id == expected


@pytest.mark.parametrize(
    "changes",
    [{"interpolation": "random"}, {"resize_mode": "stretch"}, {"size": (0, 224)}, {"size": (224,)}, {"fill_color": 256},
     {"std": (0, 1, 1)}, {"mean": (0, 1)}],
)  # fmt: skip
def test_a_config_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        config(**changes)


@pytest.mark.parametrize(("without", "more", "named"), [("size", {}, "keys"), ("", {"colour": 1}, "keys"),
                                                        ("", {"mode": "BGR"}, "mode")])  # fmt: skip
def test_another_mapping_is_refused(without: str, more: dict[str, Any], named: str) -> None:
    mapping = {"size": 224, "mean": MEAN, "std": STD, **more}
    mapping.pop(without, None)
    with pytest.raises(ValueError, match=named):
        PreprocessConfig.from_mapping(mapping)
