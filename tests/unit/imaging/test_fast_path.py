"""The fast path compared with the exact one: when it is taken, how close it is, and that it refuses bad files."""

from __future__ import annotations

import io
import struct
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
from preprocess_ensemble.imaging.jpeg_header import may_have_scans, read_header
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from tests.fixtures import image_files

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
def turbojpeg_package(package: types.ModuleType | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have ``import turbojpeg`` find this package; None: find none."""
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


def patched(data: bytes, marker: int, offset: int, value: int) -> bytes:
    """Change one byte, ``offset`` behind a marker."""
    changed = bytearray(data)
    changed[data.index(bytes([0xFF, marker])) + offset] = value
    return bytes(changed)


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

    other = types.ModuleType("turbojpeg")
    vars(other)["TurboJPEG"] = Other
    with turbojpeg_package(other, monkeypatch):
        assert decode_image(image_files.jpeg()).decoder is Decoder.PILLOW
        assert decode_image(large_jpeg(), at_least=AT_LEAST).decoder is Decoder.TURBOJPEG


def test_an_unknown_release_of_the_library_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    other = types.ModuleType("turbojpeg")
    vars(other)["TurboJPEG"] = types.SimpleNamespace
    with turbojpeg_package(other, monkeypatch):
        assert turbojpeg_decoder.library() is None


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("at_least", [None, AT_LEAST])
def test_files_of_the_very_size_are_decoded_in_place(mode: str, at_least: tuple[int, int] | None) -> None:
    skip_without_turbojpeg()
    data = image_files.jpeg(mode, (64, 64))
    out = np.zeros((64, 64, 3), np.uint8)
    decoded = decode_image(data, at_least=at_least, out=out)
    assert (decoded.image, decoded.decoder) == (None, Decoder.TURBOJPEG)
    assert decoded.decode_path is (DecodePath.SMALL if at_least else DecodePath.OFF)
    assert np.array_equal(out, preprocess(decode(data), CONFIG))


ORIENTED = Image.Exif()
ORIENTED[image_files.ORIENTATION] = 6


@pytest.mark.parametrize(
    "data",
    [
        image_files.jpeg(size=(64, 48)),
        image_files.jpeg("CMYK", (64, 64)),
        image_files.encoded(image_files.picture(size=(64, 64)), "PNG"),
        image_files.jpeg(size=(64, 64), exif=ORIENTED.tobytes()),
    ],
)
def test_other_files_are_not_decoded_in_place(data: bytes) -> None:
    out = np.full((64, 64, 3), 7, np.uint8)
    image = decode_image(data, out=out).image
    assert (out == 7).all()
    assert image is not None
    assert np.array_equal(np.asarray(image), np.asarray(decode(data)))


@pytest.mark.parametrize(
    ("data", "limits", "status"),
    [
        (image_files.jpeg(size=(64, 64)), DecodeLimits(max_pixels=4000), ImageStatus.TOO_LARGE),
        (image_files.jpeg(size=(64, 64))[:-2], DecodeLimits(), ImageStatus.TRUNCATED),
        (image_files.jpeg(size=(64, 64))[:300], DecodeLimits(), ImageStatus.TRUNCATED),
        (b"", DecodeLimits(), ImageStatus.EMPTY),
        (b"\xff\xd8", DecodeLimits(), ImageStatus.NOT_AN_IMAGE),
    ],
)
def test_limits_and_damage_have_their_status_in_place_too(
    data: bytes, limits: DecodeLimits, status: ImageStatus
) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_image(data, limits, out=np.zeros((64, 64, 3), np.uint8))
    assert caught.value.status is status


def test_a_file_that_may_be_truncated_is_left_to_pillow() -> None:
    limits = DecodeLimits(allow_truncated=True)
    out = np.zeros((64, 64, 3), np.uint8)
    assert decode_image(image_files.jpeg(size=(64, 64)), limits, out=out).decoder is Decoder.PILLOW


def test_a_damaged_file_is_left_to_pillow() -> None:
    good = image_files.jpeg(size=(64, 64))
    damaged = good[: len(good) // 2] + b"\xff\xd9"
    assert decode_image(damaged, out=np.zeros((64, 64, 3), np.uint8)).decoder is Decoder.PILLOW


@pytest.mark.parametrize("size", [(65, 64), (64, 640), (2000, 1000), (9, 9)])
def test_nothing_is_written_outside_the_given_memory(size: tuple[int, int]) -> None:
    turbojpeg = turbojpeg_decoder.installed()
    if turbojpeg is None:
        pytest.skip("PyTurboJPEG and libturbojpeg are not both installed")
    memory = np.full((3, 64, 64, 3), 7, np.uint8)
    turbojpeg.decode_into(image_files.jpeg(size=size), memory[1])
    assert (memory[[0, 2]] == 7).all()


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
    decode(image_files.jpeg(size=size, exif=ORIENTED.tobytes()), at_least=AT_LEAST)
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


def test_the_limit_of_scanned_pixels_is_exact() -> None:
    # Not with a file, because decoding it would take more than a second.
    assert may_have_scans(b"\xff\xda" * 100, 20_000_000)
    assert not may_have_scans(b"\xff\xda" * 100, 20_000_001)


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


def test_the_header_of_a_jpeg() -> None:
    header = read_header(large_jpeg(exif=b"Exif\0\0", progressive=True, subsampling=1))
    assert header is not None
    assert (header.width, header.height, header.precision, header.coding) == (400, 300, 8, 0xC2)
    assert header.sampling == ((2, 1), (1, 1), (1, 1))
    assert header.has_app1
    assert header.is_plain


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8",
        large_jpeg()[:100],
        large_jpeg().replace(b"\xff\xc0", b"\xff\xc0\0\x05", 1),
        patched(patched(large_jpeg(), 0xC0, 5, 0), 0xC0, 6, 0),
        patched(large_jpeg(), 0xC0, 9, 2),
        large_jpeg()[:2] + b"\xff\xd0" + large_jpeg()[2:],
        large_jpeg()[:2] + b"\xff\xe0" + struct.pack(">H", 1) + large_jpeg()[2:],
    ],
    ids=["nothing", "short", "frame length", "no height", "components", "restart marker", "length 1"],
)
def test_an_odd_header_is_none(data: bytes) -> None:
    assert read_header(data) is None


@pytest.mark.parametrize(("offset", "value"), [(1, 0xC9), (4, 12)])
def test_rare_codings_are_not_plain(offset: int, value: int) -> None:
    header = read_header(patched(large_jpeg(), 0xC0, offset, value))
    assert header is not None
    assert not header.is_plain


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    changes=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=4),
    cut=st.floats(0.05, 1),
    ended=st.booleans(),
)
def test_mutated_files_have_one_status_on_both_paths(changes: list[tuple[int, int]], cut: float, ended: bool) -> None:
    data = bytearray(large_jpeg())
    for position, value in changes:
        data[position % len(data)] = value
    mutated = bytes(data[: int(len(data) * cut)]) + (b"\xff\xd9" if ended else b"")
    assert outcome(mutated, None) is outcome(mutated, AT_LEAST)
