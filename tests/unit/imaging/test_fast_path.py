"""The fast path compared with the exact one: when it is taken, how close it is, and that it refuses bad files.

It is libjpeg-turbo, or Pillow's own at reduced size, straight into the caller's memory if the size fits.
"""

import ctypes
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, JpegImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.decode import SCALE_INFO, DecodeLimits, DecodePath, Decoder, decode, decode_image
from preprocess_ensemble.imaging.transform import PreprocessConfig, ResizeMode, preprocess
from tests.fixtures.images import image_files
from tests.fixtures.images.good_files import reference, refused, status_of

CONFIG = PreprocessConfig(size=(64, 64), mean=(0, 0, 0), std=(1, 1, 1))
AT_LEAST = CONFIG.decode_at_least
LEAST_PSNR_DB = 35.0
"""Every case here has more; an image that is shifted by a fraction of a pixel would have less."""

with_turbojpeg = pytest.mark.skipif(turbojpeg_decoder.installed() is None, reason="libturbojpeg is not installed")


@pytest.fixture(params=[pytest.param("turbojpeg", marks=with_turbojpeg), "pillow"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Decoder]:
    """Both scaled decoders in turn; Pillow's is used if libturbojpeg is not installed."""
    if request.param == "turbojpeg":
        turbojpeg_decoder.installed()  # it opens a few files itself
        yield Decoder.TURBOJPEG
    else:
        with another_library(types.SimpleNamespace(), monkeypatch):
            assert turbojpeg_decoder.installed() is None, "an unknown release counts as absent"
            yield Decoder.PILLOW


@contextmanager
def another_library(library: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    load = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library if "turbojpeg" in name else load(name))
    turbojpeg_decoder.installed.cache_clear()
    yield
    turbojpeg_decoder.installed.cache_clear()


def decompressing(otherwise: Callable[..., Any]) -> object:
    """A library that calls ``otherwise(decompress, *arguments)`` in place of its function ``decompress``."""
    real = ctypes.CDLL("libturbojpeg.so.0")

    def decompress(*arguments: Any) -> Any:
        real.tjDecompress2.argtypes = vars(decompress)["argtypes"]
        return otherwise(real.tjDecompress2, *arguments)

    return types.SimpleNamespace(
        tjInitDecompress=real.tjInitDecompress, tjDecompress2=decompress, tjDestroy=real.tjDestroy
    )


def large_jpeg(mode: str = "RGB", size: tuple[int, int] = (400, 300), **options: Any) -> bytes:
    """Blobs of ten pixels in faint colours: at least as much detail as a photo has, in brightness and in colour."""
    noise = np.random.default_rng(0).integers(0, 256, (size[1] // 10 + 1, size[0] // 10 + 1, 3), dtype=np.uint8)
    blobs = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
    smooth = Image.blend(blobs.convert("L").convert("RGB"), blobs, 0.2).convert(mode)
    return image_files.encoded(smooth, "JPEG", **{"quality": 90, **options})


def deviation_db(data: bytes, config: PreprocessConfig = CONFIG) -> float:
    fast = decode_image(data, at_least=config.decode_at_least)
    assert fast.decode_path is DecodePath.SCALED
    assert fast.image is not None
    one, other = preprocess(fast.image, config), preprocess(decode(data), config)
    error = float(((one.astype(np.float64) - other) ** 2).mean())
    return 99.0 if error == 0 else float(10 * np.log10(255**2 / error))


@pytest.mark.parametrize("size", [(512, 512), (271, 270), (1021, 769)])
@pytest.mark.parametrize(
    "options",
    [{"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"progressive": True}, {"mode": "L"}],
    ids=["444", "422", "420", "progressive", "grey"],
)
def test_the_fast_path_is_near_the_exact_one(decoder: Decoder, size: tuple[int, int], options: dict[str, Any]) -> None:
    data = large_jpeg(size=size, **options)
    assert decode_image(data, at_least=AT_LEAST).decoder is decoder
    assert deviation_db(data) >= LEAST_PSNR_DB


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("size", "resize_mode"),
    [((64, 64), "shortest"), ((48, 96), "shortest"), ((64, 64), "longest"), ((48, 96), "squash")],
)
def test_orientation_and_partial_pixels(
    decoder: Decoder, orientation: int, size: tuple[int, int], resize_mode: ResizeMode
) -> None:
    """If a side is not a multiple of the scale, a part of a pixel is left at an edge, which the orientation moves."""
    data = large_jpeg(size=(1021, 769), exif=image_files.oriented(orientation))
    config = PreprocessConfig(size=size, resize_mode=resize_mode, mean=(0, 0, 0), std=(1, 1, 1))
    image = decode(data, at_least=config.decode_at_least)
    assert image.info[SCALE_INFO].size == reference(data).size
    assert deviation_db(data, config) >= LEAST_PSNR_DB


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    size=st.tuples(st.integers(16, 700), st.integers(16, 700)),
    at_least=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    orientation=st.integers(1, 8),
)
def test_never_smaller_than_asked(size: tuple[int, int], at_least: tuple[int, int], orientation: int) -> None:
    data = image_files.encoded(Image.new("RGB", size), "JPEG", exif=image_files.oriented(orientation))
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


DECODE_PATHS = {
    "large": (large_jpeg(), DecodePath.SCALED),
    "just large enough": (large_jpeg(size=(270, 270)), DecodePath.SCALED),
    "one pixel less": (large_jpeg(size=(270, 269)), DecodePath.SMALL),
    "png": (image_files.file("PNG", size=(400, 300)), DecodePath.NOT_JPEG),
    "cmyk": (large_jpeg("CMYK"), DecodePath.UNUSUAL),
    "padding before a marker": (large_jpeg()[:2] + b"\xff" + large_jpeg()[2:], DecodePath.UNUSUAL),
    "trailing bytes": (large_jpeg() + b"some more", DecodePath.SCALED),
}


@pytest.mark.parametrize(("data", "decode_path"), DECODE_PATHS.values(), ids=DECODE_PATHS)
def test_the_header_decides(decoder: Decoder, data: bytes, decode_path: DecodePath) -> None:
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
        assert (decoded.decode_path, decoded.decoder) == (DecodePath.OFF, decoder)
        assert np.array_equal(np.asarray(decoded.image), np.asarray(reference(data)))


@with_turbojpeg
def test_a_library_with_other_pixels_decodes_nothing_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_pixels(decompress: Any, handle: Any, source: Any, size: int, target: Any, *arguments: Any) -> Any:
        failed = decompress(handle, source, size, target, *arguments)
        ctypes.c_ubyte.from_address(target).value ^= 1
        return failed

    with another_library(decompressing(other_pixels), monkeypatch):
        assert decode_image(image_files.jpeg()).decoder is Decoder.PILLOW
        assert decode_image(large_jpeg(), at_least=AT_LEAST).decoder is Decoder.TURBOJPEG


@pytest.mark.parametrize("size", [(64, 48), (1000, 800)], ids=["in full", "scaled"])
def test_the_header_of_an_oriented_jpeg_is_read_once_by_pillow(size: tuple[int, int], decoder: Decoder) -> None:
    reader = JpegImagePlugin.JpegImageFile
    with patch.object(reader, "_open", autospec=True, side_effect=reader._open) as opened:
        decode(image_files.rotated_jpeg(6, size), at_least=AT_LEAST)
    assert opened.call_count == 1


LARGE, LARGE_PROGRESSIVE = large_jpeg(), large_jpeg(progressive=True)


@pytest.mark.parametrize(
    ("data", "limits", "status"),
    [
        *[(data[: int(len(data) * share)], {}, ImageStatus.TRUNCATED)
          for data in (LARGE, LARGE_PROGRESSIVE) for share in (0.02, 0.3, 0.6, 0.999)],
        (LARGE, {"max_pixels": 100_000}, ImageStatus.TOO_LARGE),
        (LARGE, {"max_bytes": 1000}, ImageStatus.TOO_LARGE),
        (LARGE, {"max_side_ratio": 1.2}, ImageStatus.LIMIT),
    ],
)  # fmt: skip
def test_limits_and_damage_have_their_status_on_the_fast_path_too(
    decoder: Decoder, data: bytes, limits: dict[str, Any], status: ImageStatus
) -> None:
    assert status_of(data, DecodeLimits(**limits), at_least=AT_LEAST) is status
    assert status_of(data, DecodeLimits(**limits), out=np.zeros((300, 400, 3), np.uint8)) is status


def test_a_corrupt_file_has_the_exact_paths_answer(decoder: Decoder) -> None:
    scan, limits = LARGE.index(b"\xff\xda") + 14, DecodeLimits(max_pixels=4_000_000)
    for start in range(scan, len(LARGE) - 200, 1500):
        data = LARGE[:start] + bytes(range(100, 200)) + LARGE[start + 100 :]
        assert status_of(data, limits) is status_of(data, limits, at_least=AT_LEAST)


def with_scans(count: int, size: tuple[int, int]) -> bytes:
    """A progressive JPEG of one grey whose last scan is repeated until the file has ``count`` of them."""
    data = image_files.encoded(Image.new("L", size, 100), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * (count - data.count(b"\xff\xda")) + b"\xff\xd9"


@pytest.mark.parametrize(("scans", "size"), [(1001, (270, 270)), (101, (5000, 4000))], ids=["1,001", "2e9 pixels"])
def test_a_bomb_of_scans_is_refused(decoder: Decoder, scans: int, size: tuple[int, int]) -> None:
    bomb = with_scans(scans, size)
    for at_least in (None, AT_LEAST):
        error = refused(bomb, at_least=at_least)
        assert (error.status, f"{scans:,} scans" in error.message) == (ImageStatus.LIMIT, True)


@with_turbojpeg
@pytest.mark.parametrize(
    ("data", "status"), [(with_scans(1001, (270, 270)), ImageStatus.LIMIT), (LARGE[:-20], ImageStatus.TRUNCATED)]
)
def test_a_bad_file_is_refused_before_the_library_reads_it(
    data: bytes, status: ImageStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def good_files_only(decompress: Any, handle: Any, source: Any, size: int, *arguments: Any) -> Any:
        assert size != len(data)
        return decompress(handle, source, size, *arguments)

    with another_library(decompressing(good_files_only), monkeypatch):
        assert status_of(data, at_least=AT_LEAST) is status


def test_what_only_looks_like_a_bomb_of_scans_is_decoded(decoder: Decoder) -> None:
    assert decode_image(with_scans(1000, (270, 270)), at_least=AT_LEAST).decode_path is DecodePath.SCALED
    markers_in_a_comment = large_jpeg(comment=b"\xff\xda" * 2000)
    assert decode_image(markers_in_a_comment, at_least=AT_LEAST).decoder is decoder


def test_many_threads(decoder: Decoder) -> None:
    files = [large_jpeg(size=(400 + 8 * number, 300), quality=60 + number) for number in range(8)]
    expected = [preprocess(decode(data, at_least=AT_LEAST), CONFIG) for data in files]
    with ThreadPoolExecutor(8) as executor:
        images = list(executor.map(lambda data: decode(data, at_least=AT_LEAST), files * 20))
    for number, image in enumerate(images):
        assert np.array_equal(preprocess(image, CONFIG), expected[number % 8])


def test_a_resized_copy_is_not_taken_for_the_scaled_image() -> None:
    copy = decode(LARGE, at_least=AT_LEAST).resize((100, 80))
    bare = Image.frombytes("RGB", copy.size, copy.tobytes())
    assert np.array_equal(preprocess(copy, CONFIG), preprocess(bare, CONFIG))


@with_turbojpeg
@pytest.mark.parametrize("progressive", [True, False])
def test_a_second_large_picture_waits_for_the_first(progressive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of large pictures needs the memory of one. The header states 40 megapixels; no decoder reads them."""
    waits = progressive  # then it is in memory as a whole; a baseline one is scaled while it is read
    second_by_s = 0.5 if waits else 30  # one that need not wait is there in a few milliseconds
    changed = bytearray(image_files.jpeg(progressive=progressive))
    frame = changed.index(b"\xff\xc2" if progressive else b"\xff\xc0")
    changed[frame + 5 : frame + 9] = (5000).to_bytes(2, "big") + (8000).to_bytes(2, "big")
    data = bytes(changed)
    first, second = threading.Event(), threading.Event()
    waited: list[bool] = []

    def meet(decompress: Any, handle: Any, source: Any, size: int, *arguments: Any) -> Any:
        if size != len(data):
            return decompress(handle, source, size, *arguments)
        if first.is_set():
            second.set()
        else:
            first.set()
            waited.append(not second.wait(second_by_s))
        return 0

    with another_library(decompressing(meet), monkeypatch), ThreadPoolExecutor(2) as executor:
        list(executor.map(lambda _: decode_image(data, at_least=AT_LEAST), "ab"))
    assert waited == [waits]
    assert second.is_set()


def memory() -> npt.NDArray[np.uint8]:
    return np.full((64, 64, 3), 7, np.uint8)


@with_turbojpeg
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("at_least", [None, AT_LEAST])
def test_files_of_the_very_size_are_decoded_in_place(mode: str, at_least: tuple[int, int] | None) -> None:
    data, out = image_files.jpeg(mode, (64, 64)), memory()
    decoded = decode_image(data, at_least=at_least, out=out)
    assert (decoded.image, decoded.decoder) == (None, Decoder.TURBOJPEG)
    assert decoded.decode_path is (DecodePath.SMALL if at_least else DecodePath.OFF)
    assert np.array_equal(out, preprocess(decode(data), CONFIG))


@pytest.mark.parametrize(
    "data",
    [image_files.jpeg(size=(64, 48)), image_files.jpeg("CMYK", (64, 64)), image_files.file("PNG", size=(64, 64)),
     image_files.rotated_jpeg(6, (64, 64))],
)  # fmt: skip
def test_other_files_are_not_decoded_in_place(data: bytes) -> None:
    out = memory()
    image = decode_image(data, out=out).image
    assert (out == 7).all()
    assert image is not None
    assert np.array_equal(np.asarray(image), np.asarray(decode(data)))


def test_files_that_are_damaged_or_may_be_are_left_to_pillow() -> None:
    good = image_files.jpeg(size=(64, 64))
    limits = DecodeLimits(allow_truncated=True)
    assert decode_image(good, limits, out=memory()).decoder is Decoder.PILLOW
    assert decode_image(good[: len(good) // 2] + b"\xff\xd9", out=memory()).decoder is Decoder.PILLOW


@with_turbojpeg
@pytest.mark.parametrize("size", [(65, 64), (64, 640), (1000, 640), (9, 9)])
def test_nothing_is_written_outside_the_given_memory(size: tuple[int, int]) -> None:
    turbojpeg = turbojpeg_decoder.installed()
    assert turbojpeg is not None
    rows = np.full((3, 64, 64, 3), 7, np.uint8)
    turbojpeg.decode_into(image_files.jpeg(size=size), rows[1])
    assert (rows[[0, 2]] == 7).all()
