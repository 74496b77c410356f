"""Good files of every format and variant that is read, and what Pillow makes of them."""

from __future__ import annotations

import io

from PIL import Image, ImageOps, features

from tests.unit import image_files

GOOD_FILES = {
    "baseline": image_files.jpeg(quality=85),
    "progressive": image_files.jpeg(progressive=True),
    "grey": image_files.jpeg("L"),
    "cmyk": image_files.jpeg("CMYK"),
    "444": image_files.jpeg(subsampling=0),
    "422": image_files.jpeg(subsampling=1),
    "420": image_files.jpeg(subsampling=2),
    "icc": image_files.jpeg(icc_profile=b"not really a profile" * 100),
    "trailing bytes": image_files.jpeg() + b"some more" * 1000,
    "one pixel": image_files.jpeg(size=(1, 1)),
    "png": image_files.encoded(image_files.picture(), "PNG"),
    "png grey": image_files.encoded(image_files.picture("L"), "PNG"),
    "png 1x1": image_files.encoded(image_files.picture("RGB", (1, 1)), "PNG"),
    "webp": image_files.encoded(image_files.picture(), "WEBP"),
    "webp lossless": image_files.encoded(image_files.picture(), "WEBP", lossless=True),
    "tiff": image_files.encoded(image_files.picture(), "TIFF"),
    "tiff lzw": image_files.encoded(image_files.picture(), "TIFF", compression="tiff_lzw"),
    "tiff cmyk": image_files.encoded(image_files.picture("CMYK"), "TIFF"),
    "tiff ycbcr": image_files.encoded(image_files.picture("YCbCr"), "TIFF"),
    "bmp": image_files.encoded(image_files.picture(), "BMP"),
    "jpeg 2000": image_files.encoded(image_files.picture(), "JPEG2000"),
    "ppm": image_files.encoded(image_files.picture(), "PPM"),
    "qoi": image_files.encoded(image_files.picture(), "QOI"),
    "mpo": image_files.encoded(
        image_files.picture(), "MPO", save_all=True, append_images=[image_files.picture(seed=1)]
    ),
    "apng": image_files.encoded(
        image_files.picture(), "PNG", save_all=True, append_images=[image_files.picture(seed=1)]
    ),
    "animated webp": image_files.encoded(
        image_files.picture(), "WEBP", save_all=True, append_images=[image_files.picture(seed=1)]
    ),
    "tiff pages": image_files.encoded(
        image_files.picture(), "TIFF", save_all=True, append_images=[image_files.picture(seed=1)]
    ),
}
if features.check("avif"):
    GOOD_FILES["avif"] = image_files.encoded(image_files.picture(), "AVIF")


def reference(data: bytes) -> Image.Image:
    return ImageOps.exif_transpose(Image.open(io.BytesIO(data)))


def assert_same_pixels(image: Image.Image, expected: Image.Image) -> None:
    assert (image.mode, image.size) == (expected.mode, expected.size)
    assert image.tobytes() == expected.tobytes()


def animation(image_format: str, frames: int) -> bytes:
    pictures = [image_files.picture("RGB", (8, 8), seed=seed) for seed in range(frames)]
    return image_files.encoded(pictures[0], image_format, save_all=True, append_images=pictures[1:])
