"""libjpeg-turbo through its C interface (TurboJPEG 2, which release 3 keeps), if it and PyTurboJPEG are installed.

Pillow contains its own libjpeg-turbo. Calling the library directly saves Python's work per call and a copy through
Pillow's memory. PyTurboJPEG knows where the library is; its own ``decode`` reads the header a second time, a tenth of
the time for 224 x 224 pixels, and hides warnings. The library is used only where it is safe:

- It decodes at full size only chroma samplings for which a probe at load gives exactly the pixels of Pillow, because
  two releases of the library may smooth the colour differently.
- It fills the missing part of a truncated file with grey and only warns. Pillow therefore decodes every file without
  its end marker, and every file that the library warns about.

Each call has its own decompressor, so threads share nothing.
"""

from __future__ import annotations

import ctypes
import io
import platform
from contextlib import suppress
from ctypes.util import find_library
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from preprocess_ensemble.imaging.containers.jpeg import END, JpegHeader, Sampling, read_header
from preprocess_ensemble.imaging.limits import large_image_lock
from preprocess_ensemble.imaging.orientation import SCALE_INFO, ScaleInfo

# Samplings that Pillow's encoder can make. 4:4:0, 4:1:1 and rarer samplings cannot be probed, so Pillow decodes them.
_PROBES: Final[dict[Sampling, dict[str, Any]]] = {
    ((1, 1),): {},
    ((1, 1), (1, 1), (1, 1)): {"subsampling": 0},
    ((2, 1), (1, 1), (1, 1)): {"subsampling": 1},
    ((2, 2), (1, 1), (1, 1)): {"subsampling": 2},
}


class TurboJpeg:
    """Decodes JPEG files with the functions of ``library``. Raises ``AttributeError`` for an unknown release."""

    def __init__(self, library: Any) -> None:
        from turbojpeg import TJPF_GRAY, TJPF_RGB

        self._formats = {3: TJPF_RGB, 1: TJPF_GRAY}  # by channels
        self._start, self._destroy = library.tjInitDecompress, library.tjDestroy
        self._decompress = library.tjDecompress2
        self._start.restype = ctypes.c_void_p
        self._destroy.argtypes = [ctypes.c_void_p]
        # Handle, file and its length, pixels, width, bytes of a row, height, pixel format, flags.
        self._decompress.argtypes = [
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_void_p, *[ctypes.c_int] * 5,
        ]  # fmt: skip
        self._exact_samplings = frozenset(
            sampling for sampling, options in _PROBES.items() if self._has_pillows_pixels(sampling, options)
        )

    def is_exact(self, header: JpegHeader) -> bool:
        return header.sampling in self._exact_samplings

    def decode(self, data: bytes, header: JpegHeader, scale: int = 1) -> Image.Image | None:
        """Decode a plain file to L or RGB at 1/``scale`` (1, 2, 4 or 8).

        Returns an image of ceil(W / scale) x ceil(H / scale) pixels, not yet turned upright. A scaled image has its
        :class:`ScaleInfo`. Returns None for a file that Pillow should decode.
        """
        width, height = -(-header.width // scale), -(-header.height // scale)
        mode = "L" if len(header.sampling) == 1 else "RGB"
        pixels = np.empty((height, width, len(mode)), np.uint8)
        # A progressive file is held in memory as a whole, at any scale.
        with large_image_lock(header.width * header.height // (1 if header.is_progressive else scale**2)):
            if not self.decode_into(data, pixels):
                return None
        image = Image.frombuffer(mode, (width, height), pixels, "raw", mode, 0, 1)
        if scale > 1:
            box = (0, 0, header.width / scale, header.height / scale)
            image.info[SCALE_INFO] = ScaleInfo((header.width, header.height), box)
        return image

    def decode_into(self, data: bytes, out: npt.NDArray[np.uint8]) -> bool:
        """Decode to ``out``, C-contiguous uint8 (H, W, 1 or 3), at the largest scale at which the picture fits.

        Returns False for a file that Pillow should decode; ``out`` may then hold anything. Even for a larger picture,
        only ``out`` is written.
        """
        if not data.endswith(END):
            return False
        height, width, channels = out.shape
        handle = self._start()
        try:
            return not self._decompress(
                handle, data, len(data), out.ctypes.data, width, out.strides[0], height, self._formats[channels], 0
            )
        finally:
            self._destroy(handle)

    def _has_pillows_pixels(self, sampling: Sampling, options: dict[str, Any]) -> bool:
        noise = np.random.default_rng(0).integers(0, 256, (37, 51, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noise).convert("L" if len(sampling) == 1 else "RGB").save(buffer, "JPEG", quality=80, **options)
        header = read_header(buffer.getvalue())
        assert header is not None
        decoded = self.decode(buffer.getvalue(), header)
        with Image.open(buffer) as expected:
            return decoded is not None and decoded.tobytes() == expected.tobytes()


@cache
def installed() -> TurboJpeg | None:
    """Return the decoder; None if PyTurboJPEG or libjpeg-turbo is missing, or is of an unknown release."""
    try:
        from turbojpeg import DEFAULT_LIB_PATHS
    except ImportError:
        return None
    for path in (*DEFAULT_LIB_PATHS.get(platform.system(), ()), find_library("turbojpeg")):
        if path is not None:
            with suppress(OSError, AttributeError):
                return TurboJpeg(ctypes.CDLL(path))
    return None
