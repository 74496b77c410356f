"""Luma and chroma of the two photos: the duplicate on its own grid of blocks, the kept one as encoders read it."""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import cv2
import numpy as np
from PIL import Image, ImageCms

from clip_client.dedup.formats.colours import SRGB
from clip_client.dedup.proof.gate import (
    OTHER_PROFILE,
    UNREADABLE,
    UNUSUAL_CODING,
    NotProvedError,
    named_otherwise,
)
from clip_client.dedup.proof.steps import SIDE, check_steps, side_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clip_client.dedup.proof.gate import Checked
    from clip_client.dedup.types import Floats, Pixels

_TO_YCC: Final = np.array(
    [
        [0.299, 0.587, 0.114, 0],
        [-0.168735892, -0.331264108, 0.5, 128],
        [0.5, -0.418687589, -0.081312411, 128],
    ]
)
"""JFIF 1.02. ``Image.convert`` rounds down, which is half a level, and ``cv2.cvtColor`` is off by one in a sixth of
chroma."""

_RGB: Final = 0
"""Value in Adobe's segment of a JPEG with three components that are not YCbCr."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Duplicate:
    """A duplicate as it is stored."""

    planes: tuple[Pixels, ...]
    """(H, W) each: Y, or Y, Cb and Cr, all at full size."""
    steps: tuple[Floats, ...]
    """(64,): those of each plane, by rows of frequencies; 1 for a lossless file."""
    sampling: tuple[int, int] = (1, 1)
    """Pixels across and down for which chroma is stored once."""
    side: float = SIDE
    """Steps by which its encoder may have moved a coefficient of luma towards zero."""
    pixels: Pixels | None = None
    """(H, W, 3): RGB of a lossless file."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        height, width = self.planes[0].shape
        return width, height


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """One way in which a program may have read the kept photo."""

    pixels: Pixels
    """(H, W, 3)."""
    is_rgb: bool = True
    """False for Y, Cb and Cr."""

    def luma(self) -> Pixels:
        """Return Y, (H, W)."""
        return to_luma(self.pixels) if self.is_rgb else np.ascontiguousarray(self.pixels[..., 0])


def to_luma(pixels: Pixels) -> Pixels:
    """Return Y of RGB, (H, W), rounded."""
    return cast("Pixels", cv2.transform(pixels, _TO_YCC[:1]))


def to_chroma(pixels: Pixels) -> Pixels:
    """Return Cb and Cr of RGB, (H, W, 2), rounded."""
    return cast("Pixels", cv2.transform(pixels, _TO_YCC[1:]))


def readings(kept: Checked, duplicate: Checked) -> Iterator[Reading]:
    """Yield the kept photo as the program that wrote the duplicate may have read it, the likely readings first.

    Numbers are compared only if both files give them one meaning, or if the duplicate gives none, because a program
    dropped the profile. Raises :class:`NotProvedError` if the meanings differ and no conversion is known.
    """
    ours, theirs = kept.encoding, duplicate.encoding
    assert kept.pixels is not None
    is_same = ours.colour_space.key == theirs.colour_space.key
    if not is_same and (named_otherwise(ours) or named_otherwise(theirs)):
        raise NotProvedError(OTHER_PROFILE)
    if not is_same and not ours.profile and theirs.colour_space.name != SRGB.name:
        raise NotProvedError(OTHER_PROFILE)
    if is_same or not theirs.names_colours:
        yield Reading(pixels=kept.pixels)
        # Some programs, such as ffmpeg and Go, never pass through RGB.
        if kept.is_jpeg and (own := _own_planes(kept.data)) is not None:
            yield Reading(pixels=own, is_rgb=False)
    if not is_same:
        yield Reading(pixels=_converted(kept.pixels, ours.profile, theirs.profile))


def _own_planes(data: bytes) -> Pixels | None:
    """Return Y, Cb and Cr of a JPEG, (H, W, 3); None for one that is grey, or that stores RGB."""
    with suppress(Exception), Image.open(io.BytesIO(data)) as image:  # one that stores RGB fails to load
        image.draft("YCbCr", image.size)
        return np.asarray(image) if image.mode == "YCbCr" else None
    return None


def _converted(pixels: Pixels, own: bytes, other: bytes) -> Pixels:
    try:
        source, target = (
            ImageCms.ImageCmsProfile(io.BytesIO(profile)) if profile else ImageCms.createProfile("sRGB")
            for profile in (own, other)
        )
        intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
        made = ImageCms.profileToProfile(Image.fromarray(pixels), source, target, intent, outputMode="RGB")
    except (OSError, ImageCms.PyCMSError) as error:
        raise NotProvedError(OTHER_PROFILE) from error
    assert made is not None  # as it was not asked to change the picture in place
    converted: Pixels = np.asarray(made)
    return converted


def duplicate_planes(duplicate: Checked) -> Duplicate:
    """Return the planes of a duplicate. Raises :class:`NotProvedError`."""
    if duplicate.pixels is None:
        return _planes_of_jpeg(duplicate.data)
    pixels = duplicate.pixels
    is_grey = bool((pixels[..., 0] == pixels[..., 1]).all() and (pixels[..., 0] == pixels[..., 2]).all())
    planes: tuple[Any, ...] = (to_luma(pixels),) if is_grey else (to_luma(pixels), *cv2.split(to_chroma(pixels)))
    return Duplicate(planes=planes, steps=(np.ones(64, np.float32),) * len(planes), pixels=pixels)


def _planes_of_jpeg(data: bytes) -> Duplicate:
    try:
        with Image.open(io.BytesIO(data)) as opened:
            image: Any = opened
            layers, tables = image.layer, image.quantization
            steps = [np.array(tables[table], np.float32) for _, _, _, table in layers]
            check_steps(steps)
            mode = "L" if len(layers) == 1 else "YCbCr"
            if bytes(name for name, *_ in layers) == b"RGB" or image.info.get("adobe_transform") == _RGB:
                raise NotProvedError(UNUSUAL_CODING)
            image.draft(mode, image.size)
            pixels = np.asarray(image)
            side = side_of(steps[0], is_progressive=bool(image.info.get("progressive")))
    except NotProvedError:
        raise
    except Exception as error:  # Pillow may raise anything for a damaged file
        raise NotProvedError(UNREADABLE) from error
    if len(layers) == 1:
        return Duplicate(planes=(pixels,), steps=tuple(steps), side=side)
    (_, across, down, _), (_, *colours, _), _ = layers
    sampling = across // colours[0], down // colours[1]
    planes: tuple[Any, ...] = tuple(cv2.split(pixels))
    return Duplicate(planes=planes, steps=tuple(steps), sampling=sampling, side=side)


def own_luma(kept: Checked) -> tuple[Pixels, Floats] | None:
    """Return the luma (H, W) of a JPEG as it is stored, and its steps (64,); None for another file."""
    with suppress(Exception), Image.open(io.BytesIO(kept.data)) as opened:
        image: Any = opened
        steps = np.array(image.quantization[image.layer[0][3]], np.float32)
        image.draft("L", image.size)
        return np.asarray(image), steps
    return None
