"""Equal pixels are what moves a copy without a question, so only whole pictures have a hash of them."""

from __future__ import annotations

import hashlib
import io
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pillow_heif
import pytest
from PIL import ExifTags, Image

from clip_client.dedup import Store
from clip_client.dedup.features.image_features import extract_features
from clip_client.dedup.features.pixel_hash import pixel_hash, pixel_hashes
from tests.fixtures.albums import write
from tests.fixtures.images import phone_files
from tests.fixtures.images.embedded_files import box
from tests.fixtures.images.image_files import encoded, jpeg, picture, png, png_chunk

if TYPE_CHECKING:
    from pathlib import Path

NOISE = Image.effect_noise((32, 24), 60)
JPEG = jpeg(exif=phone_files.exif(6))


def deep_png() -> bytes:
    """RGB of 16 bits a channel, which Pillow reads, as 8 bits, but does not write."""
    rows = np.repeat(np.asarray(NOISE).astype(">u2")[..., None] * 257, 3, axis=2)  # (24, 32, 3)
    return png(32, 24, 16, 2, b"".join(b"\0" + row.tobytes() for row in rows))


def test_pixels_are_the_same_in_any_lossless_form() -> None:
    hashes = {
        pixel_hash(encoded(NOISE.convert(mode), image_format))
        for mode, image_format in (("L", "PNG"), ("RGB", "PNG"), ("RGB", "TIFF"), ("RGB", "BMP"), ("P", "GIF"))
    }
    assert len(hashes) == 1
    assert hashes != {""}
    assert pixel_hash(phone_files.jxl_of(JPEG)) == pixel_hash(JPEG) == pixel_hash(JPEG + b"\0") != ""
    lossless = phone_files.jxl(lossless=True)
    assert pixel_hash(lossless) == pixel_hash(phone_files.jxl(lossless=True, effort=1)) != ""
    assert len({pixel_hash(data) for data in (encoded(NOISE, "PNG"), JPEG, lossless)}) == 3


TWO: dict[str, Any] = {"save_all": True, "append_images": [NOISE.rotate(180)]}
MORE = {
    "animated GIF": encoded(NOISE, "GIF", **TWO),
    "animated PNG": encoded(NOISE, "PNG", **TWO),
    "animated AVIF": encoded(picture(), "AVIF", save_all=True, append_images=[picture(seed=1)], speed=10),
    "pages": encoded(NOISE, "TIFF", **TWO),
    "two pictures": phone_files.heic(append_images=[picture(seed=1)]),
    "HEIC sequence": phone_files.heic() + box(b"moov"),
    "alpha": encoded(Image.merge("LA", (NOISE, NOISE)), "PNG"),
    "alpha in HEIC": phone_files.heic(picture("RGBA")),
    "alpha in JPEG XL": phone_files.jxl(picture("RGBA")),
    "transparent colour": encoded(NOISE.convert("P"), "PNG", transparency=0),
    "16 bits of grey": encoded(Image.fromarray(np.asarray(NOISE).astype(np.uint16) * 257), "PNG"),
    "16 bits of RGB": deep_png(),
    "HEIC of 10 bits": phone_files.deep_heic(10),
    "AVIF of 10 bits": phone_files.avif_of_10_bits(),
    "JPEG XL of 10 bits": phone_files.JXL_OF_10_BITS,
}


@pytest.mark.parametrize("data", MORE.values(), ids=MORE)
def test_what_holds_more_than_its_pixels_show_has_no_hash(data: bytes) -> None:
    """A still of a film's first frame may be the larger file, and the film is no copy of it."""
    assert extract_features(data)[0].code == ""
    assert pixel_hash(data) == ""


def with_chunk(name: bytes, data: bytes) -> bytes:
    plain = encoded(NOISE, "PNG")
    return plain[:33] + png_chunk(name, data) + plain[33:]


def from_camera_set_to_adobe_rgb() -> bytes:
    exif = Image.Exif()
    exif[ExifTags.Base.Make] = "Camera"
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.IFD.Interop] = {1: "R03"}
    return encoded(NOISE, "PNG", exif=exif)


def heic_in(primaries: int, transfer: int) -> bytes:
    buffer = io.BytesIO()
    options: Any = {"color_primaries": primaries, "transfer_characteristics": transfer}
    pillow_heif.from_pillow(picture()).save(buffer, quality=60, **options)
    return buffer.getvalue()


SPACES = {
    "none": [
        encoded(NOISE, "PNG"), encoded(NOISE, "TIFF"), with_chunk(b"gAMA", struct.pack(">I", 45455)),
        with_chunk(b"cICP", bytes((1, 13, 0, 1))),
    ],
    "a wide profile": [encoded(NOISE, name, icc_profile=b"wide" * 50) for name in ("PNG", "TIFF")],
    "a narrow profile": [encoded(NOISE, "PNG", icc_profile=b"narrow" * 50)],
    "linear": [with_chunk(b"gAMA", struct.pack(">I", 100_000))],
    "Adobe RGB": [from_camera_set_to_adobe_rgb()],
    "CMYK": [encoded(NOISE.convert("CMYK"), "TIFF")],
    "sRGB with the transfer of films": [with_chunk(b"cICP", bytes((1, 1, 0, 1)))],
    "P3 by its number": [with_chunk(b"cICP", bytes((12, 13, 0, 1)))],
    "HDR by its number": [with_chunk(b"cICP", bytes((9, 16, 0, 1)))],
    "a HEIC without": [heic_in(1, 13), heic_in(2, 2)],
    "a HEIC in P3": [heic_in(12, 13)],
    "a HEIC in HDR": [heic_in(9, 16)],
    "a HEIC with a profile": [phone_files.heic(icc_profile=b"a profile of Display P3" * 9)],
}  # fmt: skip


def test_the_colour_space_is_part_of_the_pixels() -> None:
    """Equal numbers under ProPhoto RGB and under sRGB are colours that differ by 25 levels."""
    hashes = {name: {pixel_hash(data) for data in files} for name, files in SPACES.items()}
    assert all(len(same) == 1 for same in hashes.values())
    assert len(set.union(*hashes.values())) == len(SPACES)
    assert "" not in set.union(*hashes.values())


def test_a_pixel_hash_belongs_to_the_content_that_was_compared(tmp_path: Path) -> None:
    path, sha256 = write(tmp_path / "1.png", encoded(NOISE, "PNG")), hashlib.sha256(encoded(NOISE, "PNG")).hexdigest()
    with Store(tmp_path / "store") as store:
        path.write_bytes(encoded(picture(), "PNG"))  # another photo, saved over it while the search ran
        for at in (path, tmp_path / "gone.png"):
            assert pixel_hashes({sha256: str(at)}, store) == ({sha256: ""}, 1)
        path.write_bytes(encoded(NOISE, "PNG"))
        for decoded in (1, 0):
            assert pixel_hashes({sha256: str(path)}, store) == ({sha256: pixel_hash(encoded(NOISE, "PNG"))}, decoded)
