"""What is not proved, whatever the pixels are, and what the numbers of two files mean."""

from __future__ import annotations

import io
import struct

import cv2
import numpy as np
import pytest
from PIL import Image, ImageCms

from clip_client.dedup.proof import gate
from clip_client.dedup.proof.prove import OTHER_CHROMA, OTHER_LUMA, Proof, prove
from tests.fixtures.images import colour_profiles, phone_files
from tests.fixtures.images.embedded_files import MP4
from tests.fixtures.images.image_files import encoded, png_with_chunk
from tests.fixtures.images.scenes import scene

PHOTO = scene(3, (240, 176))
KEPT = encoded(PHOTO, "PNG")
GREY = PHOTO.convert("L")
COPY = encoded(PHOTO, "JPEG", quality=60)


def answer(kept: bytes, duplicate: bytes) -> str:
    """Why nothing is proved; empty if the proof holds."""
    proof = prove(kept, duplicate)
    assert proof.holds is not bool(proof.reason)
    return proof.reason


def with_alpha(alpha: int) -> Image.Image:
    picture = PHOTO.copy()
    picture.putalpha(255)
    picture.putpixel((9, 9), (*PHOTO.getpixel((9, 9)), alpha))  # type: ignore[misc]
    return picture


def with_sampling(red: int) -> bytes:
    """A JPEG in which the header stores Cr with other factors than Cb."""
    data = bytearray(encoded(PHOTO, "JPEG", quality=60, subsampling=0))
    frame = data.index(b"\xff\xc0")
    data[frame + 10 + 3 * 2 + 1] = red
    return bytes(data)


def of_16_bits(extra: int) -> bytes:
    values = np.asarray(PHOTO)[..., ::-1].astype(np.uint16) * 257 + extra
    return cv2.imencode(".png", values)[1].tobytes()


def with_steps(luma: list[int], chroma: list[int]) -> bytes:
    return encoded(PHOTO, "JPEG", qtables=[luma, chroma])


def without_a_step() -> bytes:
    """A JPEG of which nothing can be told at one frequency: its last luma step is 0."""
    data = bytearray(with_steps([12] * 64, [12] * 64))
    data[data.index(b"\xff\xdb") + 4 + 64] = 0
    return bytes(data)


def with_later_steps() -> bytes:
    """A JPEG that defines its steps again before its last scan."""
    data = encoded(PHOTO, "JPEG", quality=60, progressive=True)
    start, last = data.index(b"\xff\xdb"), data.rindex(b"\xff\xda")
    return data[:last] + data[start : start + 2 + 67] + data[last:]


NOT_PROVED = {
    "colours of a printer": (KEPT, encoded(PHOTO.convert("CMYK"), "JPEG", quality=90), gate.UNUSUAL_CODING),
    "a kept photo in colours of a printer": (encoded(PHOTO.convert("CMYK"), "TIFF"), COPY, gate.UNUSUAL_CODING),
    "RGB in a JPEG": (KEPT, encoded(PHOTO, "JPEG", quality=90, keep_rgb=True), gate.UNUSUAL_CODING),
    "arithmetic coding": (KEPT, COPY.replace(b"\xff\xc0", b"\xff\xc9", 1), gate.UNUSUAL_CODING),
    "unevenly sampled": (KEPT, with_sampling(0x21), gate.UNEVEN_SAMPLING),
    "quality 38": (KEPT, encoded(PHOTO, "JPEG", quality=38), gate.COARSE),
    # As by ffmpeg at ``-q:v 31``: the first step is 8 at every quality.
    "coarse but for the first step": (KEPT, with_steps([8] + [62] * 63, [8] + [62] * 63), gate.COARSE),
    "coarse colours": (KEPT, with_steps([3] * 64, [25] * 64), gate.COARSE),
    "steps for later scans": (KEPT, with_later_steps(), gate.UNUSUAL_CODING),
    "a step of 0": (KEPT, without_a_step(), gate.UNUSUAL_CODING),
    "lossy WebP": (KEPT, encoded(PHOTO, "WEBP", quality=90), gate.LOSSY_WITHOUT_STEPS),
    "transparent in one pixel": (KEPT, encoded(with_alpha(254), "PNG"), gate.MORE_THAN_A_PICTURE),
    "a transparent kept photo": (encoded(with_alpha(0), "PNG"), COPY, gate.MORE_THAN_A_PICTURE),
    "two frames": (KEPT, encoded(PHOTO, "PNG", save_all=True, append_images=[GREY.convert("RGB")]), gate.FURTHER_PARTS),
    "16 bits": (KEPT, of_16_bits(3), gate.DEEP),
    "a film behind it": (KEPT, COPY + MP4, gate.FURTHER_PARTS),
    "grey": (KEPT, encoded(GREY, "JPEG", quality=90), gate.GREY_OF_COLOUR),
    "grey PNG": (KEPT, encoded(GREY.resize((120, 88)), "PNG"), gate.GREY_OF_COLOUR),
    "cut off": (KEPT, COPY[: len(COPY) // 2], gate.UNREADABLE),
    "a kept photo that was cut off": (KEPT[: len(KEPT) // 2], COPY, gate.UNREADABLE),
    "no picture": (KEPT, b"text", gate.UNREADABLE),
    "no kept photo": (b"", COPY, gate.UNREADABLE),
}
HOLDS = {
    "quality 40": (KEPT, encoded(PHOTO, "JPEG", quality=40), ""),
    "an opaque alpha channel": (KEPT, encoded(with_alpha(255), "PNG"), ""),
    "16 bits that were made from 8": (KEPT, of_16_bits(0), ""),
    "the film is behind both": (encoded(PHOTO, "BMP") + MP4, COPY + MP4, ""),
    "grey of a grey photo in RGB": (encoded(GREY.convert("RGB"), "JPEG", quality=95), encoded(GREY, "JPEG"), ""),
    "8 bits of 16": (of_16_bits(100), KEPT, ""),
    "lossless WebP": (KEPT, encoded(PHOTO.resize((120, 88), Image.Resampling.LANCZOS), "WEBP", lossless=True), ""),
    "a JPEG in JPEG XL": (KEPT, phone_files.jxl_of(COPY), ""),
}


@pytest.mark.parametrize(("kept", "duplicate", "reason"), (NOT_PROVED | HOLDS).values(), ids=NOT_PROVED | HOLDS)
def test_only_of_what_has_no_more_anything_is_proved(kept: bytes, duplicate: bytes, reason: str) -> None:
    assert answer(kept, duplicate) == reason


def test_16_bits_are_rounded_to_8_and_not_cut() -> None:
    rounded = (np.asarray(PHOTO).astype(np.uint32) * 257 + 100 + 128) // 257
    cut = (np.asarray(PHOTO).astype(np.uint32) * 257 + 200) >> 8
    assert answer(of_16_bits(100), encoded(Image.fromarray(rounded.astype(np.uint8)), "PNG")) == ""
    assert answer(of_16_bits(200), encoded(Image.fromarray(cut.astype(np.uint8)), "PNG")) != ""


def test_a_damaged_jpeg_is_not_decoded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "read_pixels", lambda *_, **__: pytest.fail("it was decoded before"))
    assert answer(COPY[: len(COPY) // 2], COPY) == gate.UNREADABLE


def test_colours_that_cannot_be_decoded_are_not_those_of_a_grey_photo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate.Checked, "stored_chroma", lambda _: [])
    assert answer(KEPT, COPY) == gate.UNREADABLE


def test_a_kept_photo_that_stores_rgb_has_no_chroma_to_try_instead() -> None:
    kept = encoded(PHOTO, "JPEG", quality=95, keep_rgb=True)
    luma, blue, red = Image.open(io.BytesIO(kept)).convert("YCbCr").split()
    for more, reason in ((0, ""), (20, OTHER_CHROMA)):
        other = blue.point([min(255, level + more) for level in range(256)])
        assert answer(kept, encoded(Image.merge("YCbCr", (luma, other, red)), "JPEG", quality=90)) == reason


WIDE, P3 = colour_profiles.ADOBE_RGB, colour_profiles.P3


def converted(source: bytes, target: bytes) -> Image.Image:
    """The photo, whose numbers mean colours of ``source``, in numbers of another profile."""
    opened = [ImageCms.ImageCmsProfile(io.BytesIO(profile)) for profile in (source, target)]
    intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
    made = ImageCms.profileToProfile(PHOTO, opened[0], opened[1], intent, outputMode="RGB")
    assert made is not None
    return made


def kept_with(profile: bytes | None) -> bytes:
    return encoded(PHOTO, "PNG", icc_profile=profile)


def copy_with(profile: bytes | None, picture: Image.Image = PHOTO) -> bytes:
    return encoded(picture, "JPEG", quality=80, icc_profile=profile)


@pytest.mark.parametrize(("own", "other"), [(WIDE, P3), (P3, WIDE), (WIDE, colour_profiles.SRGB)])
def test_the_same_numbers_under_another_profile_are_other_colours(own: bytes, other: bytes) -> None:
    assert answer(kept_with(own), copy_with(other)) in (OTHER_LUMA, OTHER_CHROMA)
    assert answer(kept_with(own), copy_with(other, converted(own, other))) == ""


def test_a_dropped_profile_leaves_the_numbers_or_was_applied_first() -> None:
    assert answer(kept_with(WIDE), copy_with(WIDE)) == ""
    assert answer(kept_with(WIDE), copy_with(None)) == ""
    applied = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert answer(kept_with(WIDE), copy_with(None, converted(WIDE, applied))) == ""
    assert answer(kept_with(None), copy_with(WIDE)) == gate.OTHER_PROFILE
    assert answer(kept_with(None), copy_with(applied)) == ""


@pytest.mark.parametrize(("chunk", "content"), [(b"sRGB", b"\0"), (b"cICP", b"\1\r\0\1")])
def test_a_png_that_names_srgb_did_not_drop_another_profile(chunk: bytes, content: bytes) -> None:
    """The numbers of the kept photo mean other colours."""
    small = PHOTO.resize((120, 88), Image.Resampling.LANCZOS)
    assert answer(kept_with(WIDE), encoded(small, "PNG")) == ""
    assert answer(kept_with(WIDE), png_with_chunk(chunk, content, encoded(small, "PNG"))) != ""
    assert answer(kept_with(None), png_with_chunk(chunk, content, encoded(small, "PNG"))) == ""


def test_colours_that_no_profile_defines_prove_only_themselves() -> None:
    linear = png_with_chunk(b"gAMA", struct.pack(">I", 100_000), KEPT)
    assert answer(linear, COPY) == answer(KEPT, linear) == gate.OTHER_PROFILE
    assert answer(linear, linear) == ""


def test_the_answer_is_a_value() -> None:
    assert prove(KEPT, COPY) == prove(KEPT, COPY) != Proof(holds=False)


def test_no_memory_is_taken_for_a_photo_beyond_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header may claim 12 GB of pixels."""
    data = bytearray(COPY)
    size = data.index(b"\xff\xc0") + 5
    data[size : size + 4] = struct.pack(">HH", 65_500, 65_500)
    monkeypatch.setattr(np, "empty", lambda shape, *_, **__: pytest.fail(f"memory for {shape}"))
    assert answer(bytes(data), COPY) == gate.UNREADABLE
