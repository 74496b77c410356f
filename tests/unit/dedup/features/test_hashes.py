"""The hash of what a picture looks like, and that of its pixels, which moves a copy without a question."""

import hashlib
import io
import struct
from pathlib import Path
from typing import Any

import imagehash
import numpy as np
import pillow_heif
import pyarrow as pa
import pytest
from PIL import ExifTags, Image, ImageOps

from clip_client.dedup import Store
from clip_client.dedup.features.hashes import inner_hash, perceptual_hash, pixel_hash, pixel_hashes
from clip_client.dedup.features.image_features import extract_features
from tests.fixtures.albums import write
from tests.fixtures.images import phone_files, scenes
from tests.fixtures.images.embedded_files import box
from tests.fixtures.images.image_files import SHORT, encoded, file, picture, picture_tags, png, png_with_chunk, tiff

PICTURES = (
    Image.effect_noise((300, 200), 60),
    Image.merge("RGB", [Image.effect_noise((90, 120), sigma) for sigma in (20, 60, 90)]),
    Image.effect_noise((9, 5), 60),
    # Most coefficients of these are zero, and rounding must not decide which side of the median they are on.
    Image.new("RGB", (50, 50)),
    Image.new("RGB", (100, 80), (90, 9, 7)),
    Image.linear_gradient("L"),
    Image.radial_gradient("L"),
    Image.fromarray(np.tile(np.array([0, 255], np.uint8), (64, 32))),
)


def test_the_hash_is_that_of_imagehash() -> None:
    randomness = np.random.default_rng(0)
    noise = [Image.fromarray(randomness.integers(0, 256, (32, 32), dtype=np.uint8)) for _ in range(100)]
    for image in (*PICTURES, *noise):
        assert perceptual_hash(image) == int(str(imagehash.phash(image)), 16)


def preview(picture: Image.Image) -> Image.Image:
    """A picture as a search sees it."""
    seen = scenes.encoded(picture, "JPEG", quality=80)
    seen.thumbnail((128, 128))
    return seen


@pytest.mark.parametrize(
    "border",
    [12, 24, 60, (0, 30), (50, 0), (20, 40, 60, 10)],
    ids=["narrow", "a width of 6 %", "wide", "above and below", "left and right", "of four widths"],
)
@pytest.mark.parametrize("colour", ["black", "white", (90, 20, 20)])
def test_a_border_leaves_the_hash_within_it(border: int | tuple[int, ...], colour: str | tuple[int, ...]) -> None:
    whole, inside = scenes.scene(0), inner_hash(preview(ImageOps.expand(scenes.scene(0), border, colour)))
    assert (perceptual_hash(preview(whole)) ^ inside).bit_count() <= 6


def test_without_a_border_there_is_no_inner_hash() -> None:
    scene = scenes.scene(0)
    under_a_sky, spot = ImageOps.expand(scene, (0, 40, 0, 0), "white"), ImageOps.expand(scene, 400, "white")
    for one in (scene, under_a_sky, spot, Image.new("RGB", (100, 100), "white")):
        assert inner_hash(preview(one)) == 0


NOISE = Image.effect_noise((32, 24), 60)
PNG = encoded(NOISE, "PNG")
JPEG = file("JPEG", exif=phone_files.exif(6))


def deep_png(values: Any) -> bytes:
    """RGB of 16 bits a channel, which Pillow reads, as 8 bits, but does not write; ``values`` are (H, W)."""
    rows = np.repeat(np.asarray(values).astype(">u2")[..., None], 3, axis=2)
    return png(values.shape[1], values.shape[0], 16, 2, b"".join(b"\0" + row.tobytes() for row in rows))


def deep_tiff(values: Any) -> bytes:
    pixels = np.repeat(np.asarray(values).astype("<u2")[..., None], 3, axis=2).tobytes()
    return tiff(picture_tags(values.shape[::-1], [16] * 3, 2, len(pixels)), pixels)


def tiff_of_four() -> bytes:
    """RGB and a channel of unspecified meaning."""
    pixels = np.dstack([np.asarray(NOISE)] * 4).tobytes()
    return tiff([*picture_tags((32, 24), [8] * 4, 2, len(pixels)), (338, SHORT, [0])], pixels)


def bmp_of_16_bits(highest: Any) -> bytes:
    """A BMP in which the highest bit of each pixel has no meaning that the header says."""
    grey = np.asarray(NOISE).astype("<u2") >> 3
    values = grey << 10 | grey << 5 | grey | np.broadcast_to(highest, grey.shape).astype("<u2") << 15
    header = struct.pack("<IiiHHIIiiII", 40, 32, -24, 1, 16, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, 54) + header + values.astype("<u2").tobytes()


TWO: dict[str, Any] = {"save_all": True, "append_images": [NOISE.rotate(180)]}
MORE = {
    "animated GIF": encoded(NOISE, "GIF", **TWO),
    "animated PNG": encoded(NOISE, "PNG", **TWO),
    "animated AVIF": encoded(picture(), "AVIF", save_all=True, append_images=[picture(seed=1)], speed=10),
    "pages": encoded(NOISE, "TIFF", **TWO),
    "two pictures": phone_files.heic(append_images=[picture(seed=1)]),
    "HEIC sequence": phone_files.heic() + box(b"moov"),
    "PPM of 16 bits": b"P6 2 1 65535\n" + bytes(range(12)),
    "HEIC of 10 bits": phone_files.deep_heic(10),
    "AVIF of 10 bits": phone_files.avif_of_10_bits(),
    "JPEG XL of 10 bits": phone_files.JXL_OF_10_BITS,
}


GREYS = np.asarray(NOISE).astype(np.uint16)
DEEP = GREYS * 257 + np.arange(32, dtype=np.uint16)
HALF = np.arange(24 * 32).reshape(24, 32) % 2
CUT_OUT = Image.merge("LA", (NOISE, Image.fromarray((HALF * 255).astype(np.uint8))))
HIDDEN = Image.merge("LA", (Image.fromarray((np.asarray(NOISE) * HALF).astype(np.uint8)), CUT_OUT.getchannel("A")))
ALIKE: dict[str, list[bytes]] = {
    "8 bits": [
        PNG, encoded(Image.merge("LA", (NOISE, Image.new("L", NOISE.size, 255))), "PNG"), deep_png(GREYS * 257),
        deep_png(GREYS << 8), encoded(Image.fromarray(GREYS * 257), "PNG"),
        encoded(NOISE.convert("RGBA"), "QOI", colorspace="sRGB"), encoded(NOISE.convert("P"), "GIF"),
        *(encoded(NOISE.convert("RGB"), image_format) for image_format in ("PNG", "TIFF", "BMP")),
    ],
    "a JPEG": [JPEG, JPEG + b"\0", phone_files.jxl_of(JPEG)],
    "a JPEG XL": [phone_files.jxl(lossless=True), phone_files.jxl(lossless=True, effort=1)],
    "16 bits": [deep_png(DEEP), deep_tiff(DEEP), encoded(Image.fromarray(DEEP), "PNG")],
    "16 other bits": [deep_png(DEEP + 1), encoded(Image.fromarray(DEEP + 1), "PNG")],
    "cut out": [
        encoded(CUT_OUT, "PNG"), encoded(CUT_OUT.convert("RGBA"), "TIFF"),
        encoded(CUT_OUT, "WEBP", lossless=True, exact=True),
    ],
    "cut out of nothing": [encoded(HIDDEN, "PNG")],
    "grey of 5 bits": [bmp_of_16_bits(0), bmp_of_16_bits(1)],
    "a HEIC with transparency": [phone_files.heic(picture("RGBA").rotate(9))],
}  # fmt: skip


UNTOLD = {
    "a fourth channel": tiff_of_four(),
    "a bit of unknown meaning": bmp_of_16_bits(HALF),
    "white is zero in 16 bits": tiff(picture_tags((32, 24), [16], 0, 2 * DEEP.size), DEEP.astype("<u2").tobytes()),
    "another space of a JPEG 2000": file("JPEG2000").replace(
        b"colr\1\0\0" + b"\0\0\0\x10", b"colr\1\0\0" + b"\0\0\0\x15"
    ),
    "a transparent level of 16 bits": png_with_chunk(b"tRNS", b"\0\7", encoded(Image.fromarray(DEEP), "PNG")),
    "the narrow range of a PNG": png_with_chunk(b"cICP", bytes((1, 13, 0, 0)), PNG),
    "a curve of a TIFF": tiff([*picture_tags((2, 2), [8], 1, 4), (301, SHORT, [0] * 256)], bytes(4)),
    "a white of a TIFF without primaries": encoded(NOISE, "TIFF", tiffinfo={318: (0.3457, 0.3585)}),
    "levels below zero": tiff([*picture_tags((2, 2), [8], 1, 4), (339, SHORT, [2])], bytes(4)),
    "another black and white": tiff(
        [*picture_tags((2, 2), [8] * 3, 6, 12), (530, SHORT, [1, 1]), (532, SHORT, [15, 235, 128, 240, 128, 240])],
        bytes(12),
    ),
    "a palette of 16 bits": tiff([*picture_tags((2, 2), [8], 3, 4), (320, SHORT, [7, *[999] * 767])], bytes(4)),
}


@pytest.mark.parametrize("data", [*MORE.values(), *UNTOLD.values()], ids=[*MORE, *UNTOLD])
def test_what_holds_more_than_its_pixels_show_or_cannot_be_told_has_no_hash(data: bytes) -> None:
    """A still of a film's first frame may be the larger file, but the film is not a copy of it."""
    assert pixel_hash(data) == ""
    assert data in UNTOLD.values() or extract_features(data)[0].code == ""  # an old Pillow cannot read some of them


def from_camera_set_to_adobe_rgb() -> bytes:
    exif = Image.Exif()
    exif[ExifTags.Base.Make] = "Camera"
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.IFD.Interop] = {1: "R03"}
    return encoded(NOISE, "PNG", exif=exif)


def with_profile_of_gif(data: bytes) -> bytes:
    start = 13 + (3 << ((data[10] & 7) + 1))
    return data[:start] + b"\x21\xff\x0bICCRGBG1012\x08a gamut.\0" + data[start:]


def heic_in(primaries: int, transfer: int) -> bytes:
    buffer = io.BytesIO()
    options: Any = {"color_primaries": primaries, "transfer_characteristics": transfer}
    pillow_heif.from_pillow(picture()).save(buffer, quality=60, **options)
    return buffer.getvalue()


SPACES: dict[str, list[bytes]] = {
    # Equal numbers under ProPhoto RGB and under sRGB are colours that differ by 25 levels.
    "none": [
        PNG, encoded(NOISE, "TIFF"), png_with_chunk(b"gAMA", struct.pack(">I", 45455), PNG),
        png_with_chunk(b"cICP", bytes((1, 13, 0, 1)), PNG),
        png_with_chunk(b"cICP", bytes((1, 13, 0, 1)), encoded(NOISE, "PNG", icc_profile=b"wide" * 50)),
    ],
    "a wide profile": [encoded(NOISE, name, icc_profile=b"wide" * 50) for name in ("PNG", "TIFF")],
    "a narrow profile": [encoded(NOISE, "PNG", icc_profile=b"narrow" * 50)],
    "linear": [
        png_with_chunk(b"gAMA", struct.pack(">I", 100_000), PNG),
        (made := encoded(NOISE.convert("RGB"), "QOI"))[:13] + b"\1" + made[14:],
    ],
    "Adobe RGB": [from_camera_set_to_adobe_rgb()],
    "CMYK": [encoded(NOISE.convert("CMYK"), "TIFF")],
    "a profile of a GIF": [with_profile_of_gif(encoded(NOISE, "GIF"))],
    "sRGB with the transfer of films": [png_with_chunk(b"cICP", bytes((1, 1, 0, 1)), PNG)],
    "P3 by its number": [
        png_with_chunk(b"cICP", bytes((12, 13, 0, 1)), data)
        for data in (PNG, encoded(NOISE, "PNG", icc_profile=b"wide" * 50))
    ],
    "HDR by its number": [png_with_chunk(b"cICP", bytes((9, 16, 0, 1)), PNG)],
    "a HEIC without": [heic_in(1, 13), heic_in(2, 2)],
    "a HEIC in P3": [heic_in(12, 13)],
    "a HEIC in HDR": [heic_in(9, 16)],
    "a HEIC with a profile": [phone_files.heic(icc_profile=b"a profile of Display P3" * 9)],
}  # fmt: skip


@pytest.mark.parametrize("files", [ALIKE, SPACES], ids=["transparency and bits", "colour spaces"])
def test_what_says_anything_of_the_pixels_is_part_of_their_hash(files: dict[str, list[bytes]]) -> None:
    hashes = [{pixel_hash(data) for data in alike} for alike in files.values()]
    assert all(len(same) == 1 for same in hashes)
    assert len(set.union(*hashes) - {""}) == len(files)


def test_a_pixel_hash_belongs_to_the_content_that_was_compared(tmp_path: Path, store: Store) -> None:
    path, sha256 = write(tmp_path / "1.png", PNG), hashlib.sha256(PNG).hexdigest()
    path.write_bytes(encoded(picture(), "PNG"))  # another photo, saved over it while the search ran
    for at in (path, tmp_path / "gone.png"):
        assert pixel_hashes({sha256: str(at)}, store) == ({sha256: ""}, 1)
    path.write_bytes(PNG)
    for decoded in (1, 0):
        assert pixel_hashes({sha256: str(path)}, store) == ({sha256: pixel_hash(PNG)}, decoded)


def test_a_pixel_hash_of_an_earlier_rule_does_not_count(tmp_path: Path, store: Store) -> None:
    data = encoded(picture(), "PNG")
    path, content = write(tmp_path / "a.png", data), hashlib.sha256(data).hexdigest()
    earlier = store.table(Path("pixels", "pixels-6"), {"pixels": pa.string()}, {"algorithm": "pixels-6"})
    earlier.add({"sha256": bytes.fromhex(content), "pixels": "those of another"})
    earlier.flush()
    assert pixel_hashes({content: str(path)}, store) == ({content: pixel_hash(data)}, 1)
