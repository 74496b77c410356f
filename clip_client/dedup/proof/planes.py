"""Luma and chroma of the two photos: the duplicate on its own grid of blocks, the kept one as encoders read it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import cv2
import numpy as np
from PIL import Image, ImageCms

from clip_client.dedup.formats.colours import SRGB
from clip_client.dedup.proof.gate import OTHER_PROFILE, UNREADABLE, UNUSUAL_CODING, Checked, NotProvedError
from clip_client.dedup.proof.steps import SIDE, check_steps, side_of
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
    file: Checked
    luma: Pixels
    """(H, W)."""
    steps: Sequence[Floats]
    """(64,): those of Y, or of Y, Cb and Cr, by rows of frequencies; 1 for a lossless file."""
    sampling: tuple[int, int] = (1, 1)
    """Pixels across and down for which chroma is stored once."""
    side: float = SIDE
    """Steps by which its encoder may have moved a coefficient of luma towards zero."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        height, width = self.luma.shape
        return width, height

    def coarseness(self) -> Floats:
        """Return the steps of luma; then, unless it is grey, those of its chroma, and its sampling."""
        steps = np.concatenate(self.steps)
        return np.append(steps, self.sampling) if len(self.steps) > 1 else steps

    def chroma(self) -> list[Pixels]:
        """Return Cb and Cr, (H, W) each, at full size; none of a grey file. Raises :class:`NotProvedError`."""
        if len(self.steps) == 1:
            return []
        if self.file.pixels is not None:
            return to_chroma(self.file.pixels)
        if found := self.file.stored_chroma():
            return found
        raise NotProvedError(UNREADABLE)


def to_luma(picture: Pixels) -> Pixels:
    """Return Y, (H, W), of RGB, rounded, or of Y."""
    return picture if picture.ndim == 2 else cast("Pixels", cv2.transform(picture, _TO_YCC[:1]))


def to_chroma(pixels: Pixels) -> list[Pixels]:
    """Return Cb and Cr of RGB, (H, W) each, rounded."""
    both = cv2.transform(pixels, _TO_YCC[1:])
    return [cast("Pixels", cv2.extractChannel(both, channel)) for channel in (0, 1)]


def readings(kept: Checked, duplicate: Checked) -> Iterator[Pixels]:
    """Yield the kept photo as the program that wrote the duplicate may have read it: the likely readings first.

    They are RGB (H, W, 3), or Y (H, W) as the file stores it, for programs that use stored chroma, too.

    Numbers are compared only if both files give them one meaning, or if the duplicate gives none, because a program
    dropped the profile. Raises :class:`NotProvedError` if the meanings differ and no conversion is known.
    """
    ours, theirs = kept.encoding, duplicate.encoding
    assert kept.pixels is not None
    is_same = ours.colour_space.key == theirs.colour_space.key
    # EXIF, a code or chromaticities may define the colours in place of a profile.
    is_by_profile = all(one.colour_space.key == one.profile for one in (ours, theirs))
    is_known = is_by_profile and (ours.profile or theirs.colour_space.name == SRGB.name)
    if not is_same and not is_known:
        raise NotProvedError(OTHER_PROFILE)
    if is_same or not theirs.names_colours:
        yield kept.pixels
        # Some programs, such as ffmpeg and Go, never pass through RGB.
        if kept.stored_luma is not None:
            yield kept.stored_luma[0]
    if not is_same:
        yield _converted(kept.pixels, ours.profile, theirs.profile)


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
    return np.asarray(made)


def as_stored(duplicate: Checked) -> Duplicate:
    """Return the planes and steps of a duplicate. Raises :class:`NotProvedError`."""
    if duplicate.pixels is not None:
        red, green, blue = cv2.split(duplicate.pixels)
        planes = 1 if np.array_equal(red, green) and np.array_equal(red, blue) else 3
        return Duplicate(file=duplicate, luma=to_luma(duplicate.pixels), steps=(np.ones(64, np.float32),) * planes)
    try:
        with Image.open(io.BytesIO(duplicate.data)) as opened:
            image: Any = opened
            steps = [np.array(image.quantization[table], np.float32) for _, _, _, table in image.layer]
    except Exception as error:  # Pillow may raise anything for a damaged file
        raise NotProvedError(UNREADABLE) from error
    check_steps(steps)
    if bytes(name for name, *_ in image.layer) == b"RGB" or image.info.get("adobe_transform") == _RGB:
        raise NotProvedError(UNUSUAL_CODING)
    if duplicate.stored_luma is None:
        raise NotProvedError(UNREADABLE)
    (_, *of_luma, _), (_, *of_chroma, _) = image.layer[0], image.layer[-1]
    return Duplicate(
        file=duplicate,
        luma=duplicate.stored_luma[0],
        steps=steps,
        sampling=(of_luma[0] // of_chroma[0], of_luma[1] // of_chroma[1]),
        side=side_of(steps[0], is_progressive=bool(image.info.get("progressive"))),
    )
