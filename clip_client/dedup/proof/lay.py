"""Lays the kept photo on the duplicate's grid (resamples it), as programs that resize pictures do."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Final, NamedTuple, cast

import cv2
import numpy as np
from PIL import Image

from clip_client.dedup.proof.frame import Frame
from clip_client.dedup.types import Pixels

Size = tuple[int, int]

BOX: Final = "box"
_PILLOW: Final = {name: Image.Resampling[name.upper()] for name in (BOX, "bilinear", "hamming", "bicubic", "lanczos")}
LINEAR_LIGHT: Final = {f"{name} in linear light": _PILLOW[name] for name in ("bilinear", "bicubic", "lanczos")}
"""Filters that some programs apply to light in place of levels."""
_MIP: Final = "mip"
"""Halves by averages, then interpolation between four pixels: Skia, Android and browsers."""
_OPENCV: Final = {"area": cv2.INTER_AREA, "linear": cv2.INTER_LINEAR, "cubic": cv2.INTER_CUBIC, _MIP: cv2.INTER_LINEAR}
FILTERS: Final = (*_PILLOW, *_OPENCV)
_MARGIN: Final = 4
"""Pixels by which a frame may reach beyond the photo; a rounded side makes it one or two."""
_ROUNDED: Final = 1e-6
"""Pixels by which a sum of fractions may miss a whole number."""
_WIDEST: Final = 3
"""Half the width of the widest filter, Lanczos, in the larger of the two pixel sizes."""


class Window(NamedTuple):
    """A part of the duplicate's grid, in whole pixels."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def size(self) -> Size:
        """Width and height."""
        return self.right - self.left, self.bottom - self.top

    def of(self, picture: Pixels) -> Pixels:
        """Return this part of (H, W) or (H, W, 3)."""
        return picture[self.top : self.bottom, self.left : self.right]


class Way(NamedTuple):
    filter: str
    """One of :data:`FILTERS` or :data:`LINEAR_LIGHT`."""
    frame: Frame


class Layable:
    """A turned photo, (H, W) or (H, W, 3), that is laid on a grid of ``size`` in several ways."""

    def __init__(self, picture: Pixels, size: Size) -> None:
        self._picture = picture
        self._size = size
        self._resized: dict[Way, Pixels] = {}

    @property
    def size(self) -> Size:
        """Width and height before it is laid."""
        height, width = self._picture.shape[:2]
        return width, height

    def can(self, way: Way) -> bool:
        width, height = self.size
        left, top, across, down = way.frame
        if way.frame.is_all_of(self.size):
            return way.filter != _MIP or width >= 2 * self._size[0]
        if way.filter in _OPENCV:
            scale = self._size[0] / across
            is_to_size = (round(width * scale), round(height * scale)) == self._size
            return way.filter != _MIP and left == top == 0 and is_to_size
        return min(left, top) > -_MARGIN + 1 and left + across < width + _MARGIN and top + down < height + _MARGIN

    def part(self, way: Way, window: Window) -> Pixels:
        """Lay the photo on a window of the grid; one of the grid's size already lies on it."""
        if self.size == self._size:
            return window.of(self._picture)
        if way.filter in _OPENCV:
            if way not in self._resized:
                self._resized[way] = self._resize(way)
            return window.of(self._resized[way])
        across, down = way.frame.width / self._size[0], way.frame.height / self._size[1]
        left, top = way.frame.left + window.left * across, way.frame.top + window.top * down
        right, bottom = left + window.size[0] * across, top + window.size[1] * down
        width, height = self.size
        is_inside = min(left, top) >= 0 and right <= width + _ROUNDED and bottom <= height + _ROUNDED
        image, shift = (self._image, 0) if is_inside else (self._padded, _MARGIN)
        box = (left + shift, top + shift, min(right + shift, image.width), min(bottom + shift, image.height))
        if way.filter in LINEAR_LIGHT:
            return _in_linear_light(image, window.size, LINEAR_LIGHT[way.filter], box)
        return np.asarray(image.resize(window.size, _PILLOW[way.filter], box=box))

    def _resize(self, way: Way) -> Pixels:
        picture: Any = self._picture
        if way.filter == _MIP:
            halvings = int(math.log2(self.size[0] / self._size[0]) + _ROUNDED)
            picture = np.asarray(self._image.reduce(2**halvings))
        if way.frame.is_all_of(self.size):
            return cast("Pixels", cv2.resize(picture, self._size, interpolation=_OPENCV[way.filter]))
        scale = self._size[0] / way.frame.width
        return cast("Pixels", cv2.resize(picture, None, fx=scale, fy=scale, interpolation=_OPENCV[way.filter]))

    @cached_property
    def _image(self) -> Image.Image:
        return Image.fromarray(self._picture)

    @cached_property
    def _padded(self) -> Image.Image:
        return Image.fromarray(cv2.copyMakeBorder(self._picture, *(_MARGIN,) * 4, cv2.BORDER_REPLICATE))


_LEVELS, _LIGHTS = np.arange(256) / 255, np.arange(65536) / 65535
_LIGHT: Final = np.where(_LEVELS <= 0.04045, _LEVELS / 12.92, ((_LEVELS + 0.055) / 1.055) ** 2.4).astype(np.float32)
_LEVEL: Final = np.rint(
    np.where(_LIGHTS <= 0.0031308, _LIGHTS * 12.92, 1.055 * _LIGHTS ** (1 / 2.4) - 0.055) * 255
).astype(np.uint8)
"""The light of each of 256 levels, and the level of each light in steps of 1/65,535: IEC 61966-2-1."""


def _in_linear_light(
    image: Image.Image, size: Size, filter_: Image.Resampling, box: tuple[float, float, float, float]
) -> Pixels:
    """Resize a part of a picture, with as much around it as the filter sees."""
    reach = [_WIDEST * max(1.0, (box[i + 2] - box[i]) / size[i]) + 2 for i in (0, 1)]
    left, top = (max(0, int(box[i] - reach[i])) for i in (0, 1))
    right, bottom = (min(image.size[i], math.ceil(box[i + 2] + reach[i])) for i in (0, 1))
    light = _LIGHT[np.asarray(image.crop((left, top, right, bottom)))]
    inner = (box[0] - left, box[1] - top, box[2] - left, box[3] - top)
    planes = [np.asarray(Image.fromarray(plane).resize(size, filter_, box=inner)) for plane in cv2.split(light)]
    found: Pixels = _LEVEL[np.clip(np.rint(np.stack(planes, axis=-1) * 65535), 0, 65535).astype(np.uint16)]
    return found
