"""Checks at full size what the alignment of two small pictures says: that the kept photo holds all of the duplicate."""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np
from PIL import ExifTags, Image, ImageCms

from clip_client.dedup.aligned import ENLARGED, MADE_LATER, UNTOLD
from clip_client.dedup.alignment.differences import Differences, tiles
from clip_client.dedup.alignment.jpeg_steps import BLOCK, Steps, fit, luma_of
from clip_client.dedup.alignment.overlay import Overlay
from clip_client.dedup.types import ALTERED, RE_ENCODED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client.dedup.aligned import Alignment
    from clip_client.dedup.alignment.differences import Map
    from clip_client.dedup.alignment.keypoints import Pixels

    Floats = NDArray[np.float32]

_LOSSY: Final = frozenset({"JPEG", "MPO", "WEBP", "AVIF", "HEIF", "JXL"})
_ON_STEPS_OF_KEPT: Final = 0.8
"""Share of the coefficients within a quarter of a step, above which a lossless picture was made from the JPEG."""
_SAME: Final = 1.0
"""Levels, root mean square: rounding to whole levels leaves up to 0.5, the finest steps 0.95."""
_SAME_SIZE: Final = 1.03
"""Ratio of the sides up to which programs round sizes."""
_CELL: Final = 32
"""Pixels, side of a place in which detail is compared."""
_LEAST_DETAIL: Final = 2.0
"""Squared levels."""
_NEVER_LESS: Final = 0.93
"""Share of the duplicate's fine detail that the kept photo has in all but the 5 % of the worst places. Measured: 0.95
to 1.1 against copies in WebP of quality 40 to 90, AVIF of 40 to 80 and HEIC of 50 and 80; 0.89 after a weak bilateral
filter, 0.3 to 0.6 after stronger ones, 0.5 to 0.9 after JPEG of quality 15 to 60."""
_LOUDER: Final = 1.03
"""Times the duplicate's detail that follows it: more contrast and sharpening give 1.05 and more, compression 1.00."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FullPhoto:
    """A decoded photo, and what its file says about its compression."""

    pixels: Pixels
    """(H, W, 3): upright, RGB."""
    is_lossless: bool = False
    table: Floats | None = None
    """(8, 8): the luma steps of a JPEG."""
    orientation: int = 1
    """EXIF, 1 to 8."""
    profile: bytes = b""
    """The ICC profile of the pixels; empty for none."""

    def in_srgb(self) -> FullPhoto:
        """Return the photo in sRGB."""
        return replace(self, pixels=np.asarray(in_srgb(Image.fromarray(self.pixels), self.profile)))


def full_photo(data: bytes) -> FullPhoto | None:
    """Decode an encoded photo at full size; None if it cannot be decoded.

    A file whose header cannot be read counts as a lossy one of no known steps.
    """
    from preprocess_ensemble.imaging.decode import DecodeError, decode
    from preprocess_ensemble.imaging.formats import open_image

    try:
        pixels = np.asarray(decode(data).convert("RGB"))
    except DecodeError:
        return None
    try:
        with open_image(data) as image:
            steps = getattr(image, "quantization", None)
            orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
            return FullPhoto(
                pixels=pixels,
                is_lossless=image.format not in _LOSSY or b"VP8L" in data[:64],
                table=np.array(steps[0], np.float32).reshape(BLOCK, BLOCK) if steps else None,
                orientation=orientation if orientation in range(1, 9) else 1,
                profile=image.info.get("icc_profile") or b"",
            )
    except Exception:  # Pillow may raise anything for a damaged file
        return FullPhoto(pixels=pixels)


def in_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """Return a picture in sRGB. A damaged profile counts as none, as it does in most viewers."""
    with suppress(Exception):
        if profile:
            own = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            return ImageCms.profileToProfile(image, own, ImageCms.createProfile("sRGB"), outputMode="RGB") or image
    return image.convert("RGB")


def check_at_full_size(
    kept: FullPhoto, duplicate: FullPhoto, alignment: Alignment, *, is_source: bool = False, each: Map = map
) -> Alignment:
    """Return the ``alignment`` of ``duplicate`` with ``kept``, corrected by what shows at full size.

    It becomes ``ALTERED`` if a place differs by more than compression and resizing explain, and gets a doubt unless
    ``kept`` is proved to hold all that ``duplicate`` shows, or known to be its source (``is_source``). Photos with two
    colour profiles are compared in sRGB. ``each`` maps a function over tiles.
    """
    if kept.profile != duplicate.profile:
        kept, duplicate = kept.in_srgb(), duplicate.in_srgb()
    overlay = Overlay(kept.pixels, duplicate.pixels, alignment.transform)
    seen = Differences(overlay)
    if alignment.tier == RE_ENCODED and overlay.is_whole and kept.is_lossless and duplicate.is_lossless:
        found = seen.differing_pixels()  # nothing but an edit changes a pixel of a lossless file
    else:
        found = seen.outliers(each)
    if found is not None:
        region, share = found
        return replace(alignment, tier=ALTERED, region=region, region_share=share)
    doubt = "" if is_source else _doubt_about(kept, duplicate, seen)
    return replace(alignment, doubts=(doubt,)) if doubt else alignment


def _doubt_about(kept: FullPhoto, duplicate: FullPhoto, seen: Differences) -> str:
    """Return why ``kept`` is not proved to hold all that ``duplicate`` shows; empty if it is.

    Both show the same everywhere. The answer is careful: without a proof there is a doubt.
    """
    overlay, tones = seen.overlay, seen.grading.tones
    is_grey = tones[0].is_mostly_grey and not tones[1].is_mostly_grey
    is_changed = overlay.is_turned or not (seen.grading.is_none or is_grey)
    made = fit(seen, _steps_of(duplicate, overlay, of_kept=False), source_is_kept=True)
    # What was enlarged from the duplicate lies closer to its steps than a source does.
    if overlay.scale > _SAME_SIZE and not (made is not None and made.proves and made.has_whole):
        return ENLARGED
    if seen.grading.is_none and seen.has_other_colours:
        return UNTOLD
    later = fit(seen, _steps_of(kept, overlay, of_kept=True), source_is_kept=False)
    is_later = later is not None and later.may_be_later
    if made is not None and made.proves:
        # Of a picture with finer steps, nearly everything lies close to them.
        is_coarser = not is_changed and later is not None and later.step < made.step
        if not is_later or (is_coarser and _holds_all_detail(seen)):
            return ""
    if is_changed:
        return UNTOLD  # size says nothing about versions of one picture
    # A source lies on the steps of its copy only if it was saved with the same ones before.
    has_same_steps = duplicate.table is None or np.array_equal(duplicate.table, kept.table)  # type: ignore[arg-type]
    if made is not None and made.explains and made.off < _SAME and (made.within is None or has_same_steps):
        # Of a JPEG, only a picture made from it lies that close to its steps.
        shows_steps = later is not None and later.within is not None and later.within[1] > _ON_STEPS_OF_KEPT
        if shows_steps or kept.is_lossless >= duplicate.is_lossless:
            return ""  # both hold the same
    if is_later:
        return MADE_LATER
    # WebP, AVIF and the like leave no steps that can be found.
    has_steps = [file.is_lossless or file.table is not None for file in (kept, duplicate)]
    return "" if has_steps == [True, False] and _holds_all_detail(seen) else UNTOLD


def _holds_all_detail(seen: Differences) -> bool:
    """Tell whether the kept photo has at least as much of the finest detail as the busier places of the duplicate, and
    no more contrast."""
    parts = [_energies(seen.laid(box), seen.overlay.part(box)) for box in tiles(seen.overlay.inside())]
    own, theirs, both = np.concatenate(parts, axis=1, dtype=np.float64)
    if not len(theirs):
        return False
    busy = theirs > max(_LEAST_DETAIL, float(np.quantile(theirs, 0.3)))
    if not busy.any():
        return False
    shares, follows = own[busy] / theirs[busy], both[busy] / theirs[busy]
    return float(np.quantile(shares, 0.05)) >= _NEVER_LESS and float(np.median(follows)) <= _LOUDER


def _energies(kept: Pixels, duplicate: Pixels) -> Floats:
    """Return (3, N), of each cell: the energy of the finest detail of both, and of what they have in common."""
    width, height = (side // _CELL for side in kept.shape[1::-1])
    if not width or not height:
        return np.zeros((3, 0), np.float32)
    whole = np.s_[: height * _CELL, : width * _CELL]
    lumas = [luma_of(np.ascontiguousarray(picture[whole])) for picture in (kept, duplicate)]
    one, other = (luma - cv2.GaussianBlur(luma, (0, 0), 1) for luma in lumas)
    products = (one * one, other * other, one * other)
    cells = [cv2.resize(product, (width, height), interpolation=cv2.INTER_AREA).ravel() for product in products]
    return np.asarray(cells, np.float32)


def _steps_of(file: FullPhoto, overlay: Overlay, *, of_kept: bool) -> Steps | None:
    """Return the steps of a file in the duplicate's pixels; None if its blocks do not lie on these."""
    height, width = overlay.duplicate.shape[:2]
    if file.table is None and not file.is_lossless:
        return None
    size, shift = (width, height), (0, 0)
    swaps, flips = file.orientation >= 5, (file.orientation in (2, 3, 6, 7), file.orientation in (3, 4, 7, 8))
    if of_kept:
        if overlay.shift is None:
            return None
        size, shift = overlay.kept_size, overlay.shift
        if overlay.is_swapped:
            swaps, flips = not swaps, flips[::-1]
        flips = flips[0] != overlay.flips[0], flips[1] != overlay.flips[1]
    table = np.ones((BLOCK, BLOCK), np.float32) if file.table is None else file.table
    starts = [
        ((side if is_flipped else 0) - by) % BLOCK for side, is_flipped, by in zip(size, flips, shift, strict=True)
    ]
    return Steps(table.T if swaps else table, *starts)
