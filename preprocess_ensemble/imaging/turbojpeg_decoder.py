"""libjpeg-turbo through PyTurboJPEG, where both are installed.

Beside Pillow, which contains a libjpeg-turbo of its own, it saves Python's work per call and the detour through
Pillow's memory. It is used only as far as it is safe:

- Full-size pixels: for the samplings that a probe at first use shows to be bit-identical with Pillow's. Two releases of
  the library may differ in how they smooth the colour.
- The end: libjpeg-turbo fills the missing part of a truncated file with grey and only warns, so a file that does not
  end with its end marker is left to Pillow, which refuses it. So is any file that it complains about.

Each call has a decompressor of its own, so threads share nothing.
"""

from __future__ import annotations

import ctypes
import io
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from preprocess_ensemble.imaging.jpeg_header import JpegHeader, Sampling

__all__ = ("decode", "decode_into", "has_pillows_pixels", "library")

_PIXEL_FORMATS: Final = {"RGB": 0, "L": 6}
"""TJPF_RGB and TJPF_GRAY of turbojpeg.h."""

_BYTES: Final = ctypes.POINTER(ctypes.c_ubyte)

_END: Final = b"\xff\xd9"

# Pillow's encoder can make these; 4:4:0, 4:1:1 and odder ones cannot be probed, and stay with Pillow.
_PROBES: Final[dict[Sampling, dict[str, Any]]] = {
    ((1, 1),): {},
    ((1, 1), (1, 1), (1, 1)): {"subsampling": 0},
    ((2, 1), (1, 1), (1, 1)): {"subsampling": 1},
    ((2, 2), (1, 1), (1, 1)): {"subsampling": 2},
}


class _Turbo(NamedTuple):
    """What is used of PyTurboJPEG."""

    decode: Callable[..., npt.NDArray[np.uint8]]
    # The library's tjInitDecompress, tjDecompress2 and tjDestroy, declared as in turbojpeg.h.
    start: Callable[[], int | None]
    decompress: Callable[..., int]
    destroy: Callable[[int | None], int]


@cache
def _turbo() -> _Turbo | None:
    try:
        from turbojpeg import TurboJPEG

        turbo = TurboJPEG()
        # It has no public names for the library's functions. Every release before 2 has these; one that has not is
        # treated as absent.
        return _Turbo(
            turbo.decode, turbo._TurboJPEG__init_decompress, turbo._TurboJPEG__decompress, turbo._TurboJPEG__destroy
        )
    except (ImportError, OSError, RuntimeError, AttributeError):  # no package, no library, or a release that differs
        return None


def library() -> str | None:
    """Name the library that scaled decoding uses besides Pillow; None where there is none."""
    return None if _turbo() is None else "libjpeg-turbo (PyTurboJPEG)"


def decode(data: bytes, *, mode: str, scale: int = 1) -> npt.NDArray[np.uint8] | None:
    """Decode to ``mode`` RGB or L at 1/``scale`` (1, 2, 4 or 8).

    Returns uint8 (ceil(H / scale), ceil(W / scale), 3 or 1), or None where the library is absent or the file is better
    left to Pillow.
    """
    turbo = _turbo()
    if turbo is None or not data.endswith(_END):
        return None
    try:
        return turbo.decode(data, _PIXEL_FORMATS[mode], None if scale == 1 else (1, scale))
    except (OSError, ValueError, Warning):
        return None


def decode_into(data: bytes, out: npt.NDArray[np.uint8]) -> bool:
    """Decode to RGB at full size into ``out``, uint8 (H, W, 3) of the image's own H and W, each row contiguous.

    False where :func:`decode` returns None; ``out`` may hold anything then. Nothing is written outside ``out``, however
    large the picture is: the library scales it down, or refuses it.
    """
    turbo = _turbo()
    if turbo is None or not data.endswith(_END):
        return False
    # PyTurboJPEG's `decode` reads the header again and makes arrays of both sides, all of it under Python's lock: a
    # tenth of the time that 224 x 224 pixels take.
    height, width, _ = out.shape
    source, target = ctypes.cast(ctypes.c_char_p(data), _BYTES), ctypes.cast(out.ctypes.data, _BYTES)
    handle = turbo.start()
    try:
        return not turbo.decompress(
            handle, source, len(data), target, width, out.strides[0], height, _PIXEL_FORMATS["RGB"], 0
        )
    finally:
        turbo.destroy(handle)


def has_pillows_pixels(header: JpegHeader) -> bool:
    """Whether :func:`decode` at full size gives Pillow's very pixels."""
    return header.sampling in _identical_samplings()


@cache
def _identical_samplings() -> frozenset[Sampling]:
    turbo = _turbo()
    if turbo is None:
        return frozenset()
    noise = np.random.default_rng(0).integers(0, 256, (37, 51, 3), dtype=np.uint8)
    identical = set()
    for sampling, options in _PROBES.items():
        picture = Image.fromarray(noise).convert("L" if len(sampling) == 1 else "RGB")
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=80, **options)
        with Image.open(buffer) as reopened:
            expected = np.asarray(reopened.convert("RGB"))
        if np.array_equal(turbo.decode(buffer.getvalue(), _PIXEL_FORMATS["RGB"]), expected):
            identical.add(sampling)
    return frozenset(identical)
