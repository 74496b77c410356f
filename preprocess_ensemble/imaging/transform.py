"""Resize and crop to the model's input size with Pillow alone; the pixels are those of open_clip's transform.

The reference is ``open_clip.transform.image_transform(is_train=False)`` up to its ``ToTensor``: torchvision resizes PIL
images through Pillow, in the image's own mode, then crops or pads, and only then converts to RGB.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image

from preprocess_ensemble.imaging.orientation import SCALE_INFO, ScaleInfo

SCALING_FLOOR: Final = 2.1
"""Least size of a scaled decode: this many times the model's input, on each side. The embedding then agrees with that
of a full decode to a cosine of 0.9999 in every class of pictures, and of 0.9997 in two stress tests, strong noise and a
repeated texture. At exactly 2, each pixel of the input meets the same part of a JPEG block, and fine textures lose more
than at 1.75 (``python -m benchmarks fidelity``)."""

ResizeMode = Literal["shortest", "longest", "squash"]
Interpolation = Literal["bicubic", "bilinear"]


@dataclass(frozen=True, kw_only=True)
class PreprocessConfig:
    """An open_clip preprocessing configuration, as in a passport. Raises ``ValueError`` for an invalid value."""

    size: tuple[int, int]  # (H, W) in pixels
    interpolation: Interpolation = "bicubic"
    resize_mode: ResizeMode = "shortest"
    """``shortest`` side to size, then crop; ``longest`` side to size, then pad; ``squash`` both sides to size."""
    fill_color: int = 0  # value of every channel of the padding, 0 to 255
    mean: tuple[float, float, float]  # means of R, G and B, for values from 0 to 1
    std: tuple[float, float, float]

    def __post_init__(self) -> None:
        if len(self.size) != 2 or not all(isinstance(side, int) and side >= 1 for side in self.size):
            raise ValueError(f"size must be two positive numbers, height and width, not {self.size!r}.")
        for name, choices in (("interpolation", get_args(Interpolation)), ("resize_mode", get_args(ResizeMode))):
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
        if not (isinstance(self.fill_color, int) and 0 <= self.fill_color <= 255):
            raise ValueError(f"fill_color must be a whole number from 0 to 255, not {self.fill_color!r}.")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(deviation > 0 for deviation in self.std):
            raise ValueError(
                f"mean and std must be three numbers each, std positive, not {self.mean!r} and {self.std!r}."
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> PreprocessConfig:
        """Read the values of a passport or of open_clip, where ``size`` may be one number. Raises ``ValueError``."""
        chosen = {name: value for name, value in values.items() if name != "mode"}
        unknown = sorted(chosen.keys() - {field.name for field in fields(cls)})
        missing = sorted({"size", "mean", "std"} - set(values))
        if unknown or missing:
            raise ValueError(f"The preprocessing has unknown keys {unknown} and lacks {missing}.")
        if values.get("mode", "RGB") != "RGB":
            raise ValueError(f"mode must be RGB, not {values['mode']!r}.")
        size = chosen["size"]
        chosen["size"] = (size, size) if isinstance(size, int) else tuple(size)
        for name in ("mean", "std"):
            chosen[name] = tuple(map(float, chosen[name]))
        return cls(**chosen)

    def to_mapping(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @property
    def decode_at_least(self) -> tuple[int, int]:
        """Least (height, width) of a scaled decode, in pixels: enough for the filter of the resize."""
        height, width = self.size
        return math.ceil(SCALING_FLOOR * height), math.ceil(SCALING_FLOOR * width)

    @property
    def id(self) -> str:
        """Settings that decide the pixels: ``shortest-bicubic-224x224``; ``-fill255`` follows if padding is white."""
        height, width = self.size
        fill = f"-fill{self.fill_color}" if self.resize_mode == "longest" and self.fill_color else ""
        return f"{self.resize_mode}-{self.interpolation}-{height}x{width}{fill}"


def preprocess(
    image: Image.Image, config: PreprocessConfig, out: npt.NDArray[np.uint8] | None = None
) -> npt.NDArray[np.uint8]:
    """Bring one image, whose orientation has been applied, to the model's input size, with open_clip's pixels.

    Returns C-contiguous uint8 of shape (H, W, 3), RGB: ``out`` if it is given, else a new array. A side that open_clip
    would round down to 0 becomes one pixel here. An image from a scaled decode is treated as the whole picture that it
    stands for.
    """
    scaled: ScaleInfo | None = image.info.get(SCALE_INFO)
    if scaled is not None and scaled.describes(image):
        image = _resize_scaled(image, scaled, config)
    else:
        height, width = _resized_size(image.height, image.width, config)
        if (width, height) != image.size:
            image = _resize(image, (width, height), config)
    image = _center_crop_or_pad(image, config.size, config.fill_color)
    if image.mode != "RGB":
        image = image.convert("RGB")
    if out is None:
        return np.array(image)
    out[...] = np.asarray(image)
    return out


def encoded_input(image: Image.Image, config: PreprocessConfig, save_options: Mapping[str, Any]) -> bytes:
    """Return the pixels that :func:`preprocess` makes, as a file that Pillow writes with ``save_options``."""
    file = io.BytesIO()
    Image.fromarray(preprocess(image, config)).save(file, **save_options)
    return file.getvalue()


def _resize(image: Image.Image, size: tuple[int, int], config: PreprocessConfig) -> Image.Image:
    """Resize to `size` (width, height), without the columns that the crop will cut off.

    Pillow resizes the columns first and then the rows. Cropping the columns between the two passes takes less time and
    gives the same pixels. Exception: with a target that is not square, an image may lose more rows than columns. Pillow
    may then begin with the rows, and each order rounds differently in between.
    """
    width, height = size
    target_width = config.size[1]
    columns_come_first = image.height - height <= max(0, image.width - width)
    if width > target_width and columns_come_first:
        image = image.resize((width, image.height), _resampling(config))
        image = _center_crop_or_pad(image, (image.height, target_width), config.fill_color)
        width = target_width
    return image.resize((width, height), _resampling(config))


def _resize_scaled(image: Image.Image, scaled: ScaleInfo, config: PreprocessConfig) -> Image.Image:
    """Resize only the part of a scaled image that the crop keeps; inexact, because Pillow rounds the sides of a box."""
    height, width = _resized_size(scaled.size[1], scaled.size[0], config)
    rows, columns = min(height, config.size[0]), min(width, config.size[1])
    left, top, right, bottom = scaled.box
    across, down = (right - left) / width, (bottom - top) / height
    left += across * _margin(width, columns)
    top += down * _margin(height, rows)
    box = (left, top, min(right, left + across * columns), min(bottom, top + down * rows))
    return image.resize((columns, rows), _resampling(config), box)


def _resized_size(height: int, width: int, config: PreprocessConfig) -> tuple[int, int]:
    target_height, target_width = config.size
    if config.resize_mode == "squash":
        return config.size
    if config.resize_mode == "shortest" and target_height == target_width:
        # torchvision.transforms.functional._compute_resized_output_size rounds the long side down.
        longer = int(target_height * max(height, width) / min(height, width))
        return (target_height, longer) if height <= width else (longer, target_width)
    # open_clip.transform.ResizeKeepRatio, which rounds half to even.
    choose = min if config.resize_mode == "shortest" else max
    ratio = choose(height / target_height, width / target_width)
    return max(1, round(height / ratio)), max(1, round(width / ratio))


def _resampling(config: PreprocessConfig) -> Image.Resampling:
    # open_clip ignores the interpolation for `shortest` with a target that is not square.
    if config.resize_mode == "shortest" and config.size[0] != config.size[1]:
        return Image.Resampling.BICUBIC
    return Image.Resampling[config.interpolation.upper()]


def _center_crop_or_pad(image: Image.Image, size: tuple[int, int], fill_color: int) -> Image.Image:
    """Crop or pad like `open_clip.transform.center_crop_or_pad`, with the fill colour in the image's own mode."""
    height, width = size
    if height > image.height or width > image.width:
        bands, size_of_both = len(image.getbands()), (max(width, image.width), max(height, image.height))
        canvas = Image.new(image.mode, size_of_both, (fill_color,) * bands if bands > 1 else fill_color)
        canvas.paste(image, (max(0, width - image.width) // 2, max(0, height - image.height) // 2))
        image = canvas
    if image.size == (width, height):
        return image
    left, top = _margin(image.width, width), _margin(image.height, height)
    return image.crop((left, top, left + width, top + height))


def _margin(side: int, kept: int) -> int:
    """Return the pixels that a centre crop to `kept` cuts off at the left or top, rounded as in torchvision."""
    return round((side - kept) / 2)
