"""Checks at full size what the alignment of two small pictures says: that the kept photo holds all of the duplicate."""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import ExifTags, Image, ImageCms

from clip_client.dedup.aligned import ENLARGED, MADE_LATER, UNPROVED, UNTOLD
from clip_client.dedup.alignment.differences import Differences
from clip_client.dedup.alignment.overlay import Overlay
from clip_client.dedup.alignment.source_signs import (
    BLOCK,
    Steps,
    explain_colours,
    fit,
    has_finer_detail,
    holds_all_detail,
)
from clip_client.dedup.proof.prove import DUPLICATE, prove
from clip_client.dedup.types import ALTERED, RE_ENCODED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clip_client.dedup.aligned import Alignment
    from clip_client.dedup.alignment.differences import Map
    from clip_client.dedup.types import Floats, Pixels


_LOSSY: Final = frozenset({"JPEG", "MPO", "WEBP", "AVIF", "HEIF", "JXL"})
_ON_STEPS_OF_KEPT: Final = 0.8
"""Share of the coefficients within a quarter of a step, above which a lossless picture was made from the JPEG."""
_SAME: Final = 1.0
"""Levels, root mean square: rounding to whole levels leaves up to 0.5, the finest steps 0.95."""
_SAME_SIZE: Final = 1.03
"""Ratio of the sides up to which programs round sizes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FullPhoto:
    """A decoded photo, and what its file says about its compression."""

    pixels: Pixels
    """(H, W, 3): upright, RGB."""
    data: bytes = b""
    """The file that it was decoded from."""
    is_lossless: bool = False
    table: Floats | None = None
    """(8, 8): the luma steps of a JPEG."""
    colour_table: Floats | None = None
    """(8, 8): the steps of its colours."""
    colour_step: tuple[int, int] = (2, 2)
    """Pixels across and down for each of which the file stores its colours once, as far as that is known."""
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
    from preprocess_ensemble.imaging.jpeg_xl import read_container
    from preprocess_ensemble.imaging.quiet import quiet_libraries

    try:
        picture = decode(data)
    except DecodeError:
        return None
    pixels = np.asarray(picture.convert("RGB"))
    try:
        layout = read_container(data).layout
        with quiet_libraries(), open_image(data) as image:
            steps, layers = (getattr(image, name, None) for name in ("quantization", "layer"))
            orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
            return FullPhoto(
                pixels=pixels,
                data=data,
                is_lossless=image.format not in _LOSSY or (layout is not None and layout.is_lossless),
                table=_table(steps, 0),
                colour_table=_table(steps, layers[1][3]) if steps and layers and len(layers) == 3 else None,
                # Of a JPEG: sampling factors across and down of the luma, in which the others are mostly 1.
                colour_step=layers[0][1:3] if layers else (1, 1) if layout is None else layout.colour_step,
                orientation=orientation if orientation in range(1, 9) else 1,
                # JPEG XL has it among the pixels.
                profile=image.info.get("icc_profile") or picture.info.get("icc_profile") or b"",
            )
    except Exception:  # Pillow may raise anything for a damaged file
        return FullPhoto(pixels=pixels, data=data)


def _table(steps: Mapping[int, Sequence[int]] | None, number: int) -> Floats | None:
    return np.array(steps[number], np.float32).reshape(BLOCK, BLOCK) if steps else None


def in_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """Return a picture in sRGB. A damaged profile counts as none, as it does in most viewers."""
    with suppress(Exception):
        if profile:
            own = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            return ImageCms.profileToProfile(image, own, ImageCms.createProfile("sRGB"), outputMode="RGB") or image
    return image.convert("RGB")


def check_at_full_size(kept: FullPhoto, duplicate: FullPhoto, alignment: Alignment, *, each: Map = map) -> Alignment:
    """Return the ``alignment`` of ``duplicate`` with ``kept``, corrected by what shows at full size.

    It becomes ``ALTERED`` if a place differs by more than compression and resizing explain, and gets a doubt unless
    ``kept`` is proved to hold all that ``duplicate`` shows. What the files say about themselves proves nothing, because
    editors copy it. Photos with two colour profiles are compared in sRGB. ``each`` maps a function over tiles.
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
    doubt = _doubt_about(kept, duplicate, seen)
    if not doubt and _may_lack_colours(kept, duplicate, seen):
        doubt = UNTOLD
    return replace(alignment, doubts=(doubt,)) if doubt else alignment


def confirmed(kept: FullPhoto, duplicate: FullPhoto, alignment: Alignment) -> Alignment:
    """Return the ``alignment`` of a re-encoded copy, with a doubt if :mod:`clip_client.dedup.proof` does not prove it.

    That is asked only where :func:`check_at_full_size` has no doubt.
    """
    if alignment.tier != RE_ENCODED or not alignment.loses_nothing:
        return alignment
    proof = prove(kept.data, duplicate.data)
    if proof.holds and proof.source != DUPLICATE:
        return alignment
    return replace(alignment, doubts=(MADE_LATER if proof.holds else UNPROVED,))


def _may_lack_colours(kept: FullPhoto, duplicate: FullPhoto, seen: Differences) -> bool:
    """Tell whether the kept photo stores its colours at fewer places and is not proved to be their source."""
    is_fine = duplicate.colour_step == (1, 1)
    if is_fine and seen.lacks_fine_colours:
        return True
    theirs = kept.colour_step[::-1] if seen.overlay.is_swapped else kept.colour_step
    pairs = zip(duplicate.colour_step, theirs, strict=True)
    if all(step * seen.overlay.scale * _SAME_SIZE >= other for step, other in pairs):
        return False
    steps = _steps_of(replace(duplicate, table=duplicate.colour_table), seen.overlay, of_kept=False)
    # Without steps, as of AVIF, nothing tells; where colours are stored at half size, no blocks of theirs are compared.
    return steps is not None and not (is_fine and explain_colours(seen, steps))


def _doubt_about(kept: FullPhoto, duplicate: FullPhoto, seen: Differences) -> str:
    """Return why ``kept`` is not proved to hold all that ``duplicate`` shows; empty if it is.

    Both show the same everywhere. The answer is careful: without a proof there is a doubt.
    """
    overlay, tones = seen.overlay, seen.grading.tones
    is_grey = tones[0].is_mostly_grey and not tones[1].is_mostly_grey
    is_changed = overlay.is_turned or not (seen.grading.is_none or is_grey)
    is_larger = overlay.scale > _SAME_SIZE
    made = fit(seen, _steps_of(duplicate, overlay, of_kept=False), source_is_kept=True)
    # What was enlarged from the duplicate lies closer to its steps than a source does.
    is_made = made is not None and made.proves and made.has_whole
    if is_larger and not is_made and not has_finer_detail(overlay):
        return ENLARGED
    if seen.grading.is_none and seen.has_other_colours:
        return UNTOLD
    # The steps of WebP, AVIF and the like cannot be found. Detail can be compared if the kept photo has more pixels or
    # was compressed in another way.
    leaves_no_steps = duplicate.table is None and not duplicate.is_lossless
    is_comparable = is_larger or kept.is_lossless or kept.table is not None
    holds_all = leaves_no_steps and is_comparable and holds_all_detail(seen, is_reduced=is_larger)
    later = fit(seen, _steps_of(kept, overlay, of_kept=True), source_is_kept=False)
    is_later = later is not None and later.may_be_later
    if made is not None and made.proves:
        # Of a picture with finer steps, nearly everything lies close to them.
        is_coarser = not is_changed and later is not None and later.step < made.step
        if not is_later or (is_coarser and holds_all_detail(seen, is_reduced=is_larger)):
            return ""
    if is_changed:
        return UNTOLD  # size says nothing about versions of one picture
    # A source lies on the steps of its copy only if it was saved with the same ones before.
    has_same_steps = duplicate.table is None or np.array_equal(duplicate.table, kept.table)  # type: ignore[arg-type]
    if made is not None and made.explains and made.off < _SAME and (made.within is None or has_same_steps):
        # Of a JPEG, only a picture made from it lies that close to its steps.
        shows_steps = later is not None and later.within is not None and later.within[1] > _ON_STEPS_OF_KEPT
        if is_larger or shows_steps or kept.is_lossless >= duplicate.is_lossless:
            return ""  # both hold the same
    if is_later:
        return MADE_LATER
    return "" if holds_all else UNTOLD


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
