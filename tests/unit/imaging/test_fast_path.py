"""The fast path compared with the exact one: when it is taken, how close it is, and that it refuses bad files."""

from __future__ import annotations

import io
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, JpegImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.decode import (
    SCALE_INFO,
    DecodeError,
    DecodeLimits,
    DecodePath,
    Decoder,
    decode,
    decode_image,
)
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from tests.fixtures.images import image_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

CONFIG = PreprocessConfig(size=(64, 64), mean=(0, 0, 0), std=(1, 1, 1))
AT_LEAST = CONFIG.decode_at_least
LEAST_PSNR_DB = 35.0
"""Every case here has more; an image that is shifted by a fraction of a pixel would have less."""


@pytest.fixture(params=["turbojpeg", "pillow"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Decoder]:
    """Both scaled decoders in turn; Pillow's is used if PyTurboJPEG or its library is not installed."""
    if request.param == "turbojpeg":
        skip_without_turbojpeg()
        yield Decoder.TURBOJPEG
    else:
        with turbojpeg_package(None, monkeypatch):
            yield Decoder.PILLOW


def skip_without_turbojpeg() -> None:
    if turbojpeg_decoder.library() is None:
        pytest.skip("PyTurboJPEG and libturbojpeg are not both installed")


@contextmanager
def turbojpeg_package(decoder: type | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have ``import turbojpeg`` find a package with this decoder; None: find none."""
    package = None if decoder is None else types.SimpleNamespace(TurboJPEG=decoder)
    monkeypatch.setitem(sys.modules, "turbojpeg", package)
    turbojpeg_decoder.installed.cache_clear()
    yield
    turbojpeg_decoder.installed.cache_clear()


def smooth(mode: str = "RGB", size: tuple[int, int] = (400, 300)) -> Image.Image:
    """Blobs of ten pixels in faint colours: at least as much detail as a photo has, in brightness and in colour."""
    noise = np.random.default_rng(0).integers(0, 256, (size[1] // 10 + 1, size[0] // 10 + 1, 3), dtype=np.uint8)
    blobs = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
    return Image.blend(blobs.convert("L").convert("RGB"), blobs, 0.2).convert(mode)


def large_jpeg(mode: str = "RGB", size: tuple[int, int] = (400, 300), **options: Any) -> bytes:
    return image_files.encoded(smooth(mode, size), "JPEG", **{"quality": 90, **options})


def psnr_db(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> float:
    error = float(((one.astype(np.float64) - other) ** 2).mean())
    return 99.0 if error == 0 else float(10 * np.log10(255**2 / error))


def deviation_db(data: bytes, config: PreprocessConfig = CONFIG) -> float:
    fast = decode_image(data, at_least=config.decode_at_least)
    assert fast.decode_path is DecodePath.SCALED
    assert fast.image is not None
    return psnr_db(preprocess(fast.image, config), preprocess(decode(data), config))


@pytest.mark.parametrize("size", [(512, 512), (271, 270), (1021, 769)])
@pytest.mark.parametrize(
    "options",
    [{"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"progressive": True}, {"mode": "L"}],
    ids=["444", "422", "420", "progressive", "grey"],
)
def test_the_fast_path_is_close_to_the_exact_path(
    decoder: Decoder, size: tuple[int, int], options: dict[str, Any]
) -> None:
    data = large_jpeg(size=size, **options)
    assert decode_image(data, at_least=AT_LEAST).decoder is decoder
    assert deviation_db(data) >= LEAST_PSNR_DB


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(64, 64), (48, 96)])
def test_orientation_and_partial_pixels(decoder: Decoder, orientation: int, size: tuple[int, int]) -> None:
    """A side that is no multiple of the scale leaves a part of a pixel at an edge, which the orientation moves."""
    exif = Image.Exif()
    exif[image_files.ORIENTATION] = orientation
    data = large_jpeg(size=(1021, 769), exif=exif.tobytes())
    config = PreprocessConfig(size=size, mean=(0, 0, 0), std=(1, 1, 1))
    image = decode(data, at_least=config.decode_at_least)
    assert image.info[SCALE_INFO].size == ImageOps.exif_transpose(Image.open(io.BytesIO(data))).size
    assert deviation_db(data, config) >= LEAST_PSNR_DB


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    size=st.tuples(st.integers(16, 700), st.integers(16, 700)),
    at_least=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    orientation=st.integers(1, 8),
)
def test_never_smaller_than_asked(size: tuple[int, int], at_least: tuple[int, int], orientation: int) -> None:
    exif = Image.Exif()
    exif[image_files.ORIENTATION] = orientation
    data = image_files.encoded(Image.new("RGB", size), "JPEG", exif=exif.tobytes())
    height, width = at_least
    decoded = decode_image(data, at_least=at_least)
    whole = decode(data).size
    assert decoded.image is not None
    if decoded.decode_path is DecodePath.SCALED:
        assert decoded.image.width >= width
        assert decoded.image.height >= height
        assert decoded.image.info[SCALE_INFO].size == whole
        assert decoded.image.info[SCALE_INFO].describes(decoded.image)
    else:
        assert decoded.decode_path is DecodePath.SMALL
        assert decoded.image.size == whole
        assert min(whole[0] // width, whole[1] // height) < 2


def test_all_resize_modes_keep_their_geometry(decoder: Decoder) -> None:
    data = large_jpeg(size=(1021, 601))
    for resize_mode in ("shortest", "longest", "squash"):
        config = PreprocessConfig(size=(64, 64), resize_mode=resize_mode, mean=(0, 0, 0), std=(1, 1, 1))
        assert deviation_db(data, config) >= LEAST_PSNR_DB


DECODE_PATHS = {
    "large": (large_jpeg(), DecodePath.SCALED),
    "just large enough": (large_jpeg(size=(270, 270)), DecodePath.SCALED),
    "one pixel less": (large_jpeg(size=(270, 269)), DecodePath.SMALL),
    "png": (image_files.encoded(image_files.picture(size=(400, 300)), "PNG"), DecodePath.NOT_JPEG),
    "cmyk": (large_jpeg("CMYK"), DecodePath.UNUSUAL),
    "padding before a marker": (large_jpeg()[:2] + b"\xff" + large_jpeg()[2:], DecodePath.UNUSUAL),
    "trailing bytes": (large_jpeg() + b"some more", DecodePath.SCALED),
}


@pytest.mark.parametrize("name", DECODE_PATHS)
def test_the_header_decides(decoder: Decoder, name: str) -> None:
    data, decode_path = DECODE_PATHS[name]
    decoded = decode_image(data, at_least=AT_LEAST)
    assert decoded.decode_path is decode_path
    assert decoded.image is not None
    assert (decoded.image.size == decode(data).size) is (decode_path is not DecodePath.SCALED)


def test_without_a_size_every_pixel_is_exact(decoder: Decoder, photos: Path) -> None:
    files = [path.read_bytes() for path in photos.glob("*.jpg")]
    for options in ({"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"progressive": True}, {"mode": "L"}):
        sizes = ((1, 1), (17, 33), (250, 187))
        files += [image_files.jpeg(size=size, quality=75, **options) for size in sizes]
    for data in files:
        decoded = decode_image(data)
        assert decoded.decode_path is DecodePath.OFF
        assert decoded.decoder is decoder
        with Image.open(io.BytesIO(data)) as reference:
            assert np.array_equal(np.asarray(decoded.image), np.asarray(reference))


def test_a_library_with_other_pixels_decodes_nothing_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_turbojpeg()
    real = sys.modules["turbojpeg"]

    class Other(real.TurboJPEG):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            decompress: Any = self._TurboJPEG__decompress  # type: ignore[has-type]

            def decompress_otherwise(handle: Any, source: Any, size: int, target: Any, *arguments: Any) -> Any:
                failed = decompress(handle, source, size, target, *arguments)
                target[0] ^= 1
                return failed

            self._TurboJPEG__decompress = decompress_otherwise

    with turbojpeg_package(Other, monkeypatch):
        assert decode_image(image_files.jpeg()).decoder is Decoder.PILLOW
        assert decode_image(large_jpeg(), at_least=AT_LEAST).decoder is Decoder.TURBOJPEG


def test_an_unknown_release_of_the_library_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    with turbojpeg_package(types.SimpleNamespace, monkeypatch):
        assert turbojpeg_decoder.library() is None


@pytest.mark.parametrize("size", [(64, 48), (1000, 800)], ids=["in full", "scaled"])
def test_the_header_of_an_oriented_jpeg_is_read_once_by_pillow(
    size: tuple[int, int], decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    read = JpegImagePlugin.JpegImageFile._open

    def count_and_open(self: JpegImagePlugin.JpegImageFile) -> None:
        opened.append(self)
        read(self)

    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "_open", count_and_open)
    decode(image_files.rotated_jpeg(6, size), at_least=AT_LEAST)
    assert len(opened) == 1


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9, 0.999])
def test_truncated_files_are_truncated_on_the_fast_path_too(decoder: Decoder, progressive: bool, share: float) -> None:
    data = large_jpeg(progressive=progressive)
    with pytest.raises(DecodeError) as caught:
        decode(data[: int(len(data) * share)], at_least=AT_LEAST)
    assert caught.value.status is ImageStatus.TRUNCATED


def test_a_corrupt_file_has_the_exact_paths_answer(decoder: Decoder) -> None:
    good = large_jpeg()
    scan = good.index(b"\xff\xda") + 14
    for start in range(scan, len(good) - 200, 1500):
        data = good[:start] + bytes(range(100, 200)) + good[start + 100 :]
        assert outcome(data, None) is outcome(data, AT_LEAST)


def outcome(data: bytes, at_least: tuple[int, int] | None) -> ImageStatus:
    try:
        decode(data, DecodeLimits(max_pixels=4_000_000), at_least=at_least)
    except DecodeError as error:
        return error.status
    return ImageStatus.OK


def test_the_limits_hold_on_the_fast_path_too(decoder: Decoder) -> None:
    for limits, status in (
        (DecodeLimits(max_pixels=100_000), ImageStatus.TOO_LARGE),
        (DecodeLimits(max_bytes=1000), ImageStatus.TOO_LARGE),
        (DecodeLimits(max_side_ratio=1.2), ImageStatus.LIMIT),
    ):
        with pytest.raises(DecodeError) as caught:
            decode(large_jpeg(), limits, at_least=AT_LEAST)
        assert caught.value.status is status


def with_scans(count: int, size: tuple[int, int]) -> bytes:
    """A progressive JPEG of one grey whose last scan is repeated until the file has ``count`` of them."""
    data = image_files.encoded(Image.new("L", size, 100), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * (count - data.count(b"\xff\xda")) + b"\xff\xd9"


def test_a_thousand_scans_of_a_small_picture_are_decoded(decoder: Decoder) -> None:
    assert decode_image(with_scans(1000, (270, 270)), at_least=AT_LEAST).decode_path is DecodePath.SCALED


@pytest.mark.parametrize(
    ("scans", "size"),
    [(1001, (270, 270)), (5000, (270, 270)), (101, (5000, 4000))],
    ids=["1,001", "5,000", "2e9 pixels"],
)
def test_a_bomb_of_scans_is_refused(decoder: Decoder, scans: int, size: tuple[int, int]) -> None:
    bomb = with_scans(scans, size)
    for at_least in (None, AT_LEAST):
        with pytest.raises(DecodeError, match=f"{scans:,} scans") as caught:
            decode(bomb, at_least=at_least)
        assert caught.value.status is ImageStatus.LIMIT


def test_markers_in_the_metadata_of_a_baseline_file_are_no_scans(decoder: Decoder) -> None:
    data = large_jpeg(comment=b"\xff\xda" * 2000)
    assert decode_image(data, at_least=AT_LEAST).decoder is decoder


def test_many_threads(decoder: Decoder) -> None:
    files = [large_jpeg(size=(400 + 8 * number, 300), quality=60 + number) for number in range(8)]
    expected = [preprocess(decode(data, at_least=AT_LEAST), CONFIG) for data in files]
    with ThreadPoolExecutor(8) as executor:
        images = list(executor.map(lambda data: decode(data, at_least=AT_LEAST), files * 20))
    for number, image in enumerate(images):
        assert np.array_equal(preprocess(image, CONFIG), expected[number % 8])


def test_a_resized_copy_is_not_taken_for_the_scaled_image() -> None:
    copy = decode(large_jpeg(), at_least=AT_LEAST).resize((100, 80))
    bare = Image.frombytes("RGB", copy.size, copy.tobytes())
    assert np.array_equal(preprocess(copy, CONFIG), preprocess(bare, CONFIG))
