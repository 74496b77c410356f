"""libjpeg-turbo through PyTurboJPEG, if both are installed.

Pillow contains a libjpeg-turbo of its own. Calling the library directly saves Python's work per call and a copy through
Pillow's memory. It is used only as far as it is safe:

- Full-size pixels: only for the chroma samplings for which a probe at load gives the very pixels of Pillow, because two
  releases of the library may smooth the colour differently.
- The end of the file: libjpeg-turbo fills the missing part of a truncated file with grey and only warns. So a file
  without its end marker is left to Pillow, and so is every file that the library warns about.

Each call has a decompressor of its own, so threads share nothing.
"""

from __future__ import annotations

import ctypes
import io
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from preprocess_ensemble.imaging.containers.jpeg import JpegHeader, Sampling, read_header
from preprocess_ensemble.imaging.limits import large_image_lock
from preprocess_ensemble.imaging.orientation import SCALE_INFO, ScaleInfo

_PIXEL_FORMATS: Final = {3: 0, 1: 6}
"""Channels -> TJPF_RGB or TJPF_GRAY of turbojpeg.h."""

_BYTES: Final = ctypes.POINTER(ctypes.c_ubyte)

_END: Final = b"\xff\xd9"

# Pillow's encoder can make these. 4:4:0, 4:1:1 and rarer ones cannot be probed, so Pillow decodes them.
_PROBES: Final[dict[Sampling, dict[str, Any]]] = {
    ((1, 1),): {},
    ((1, 1), (1, 1), (1, 1)): {"subsampling": 0},
    ((2, 1), (1, 1), (1, 1)): {"subsampling": 1},
    ((2, 2), (1, 1), (1, 1)): {"subsampling": 2},
}


class TurboJpeg:
    """Decodes JPEG files with libjpeg-turbo.

    Raises ``ImportError``, ``OSError``, ``RuntimeError`` or ``AttributeError`` if PyTurboJPEG or the library is not
    installed, or is of an unknown release.
    """

    def __init__(self) -> None:
        from turbojpeg import TurboJPEG

        # PyTurboJPEG's `decode` reads the header a second time and makes arrays of both sides, all of it under Python's
        # lock: a tenth of the time that 224 x 224 pixels take. So this class calls tjInitDecompress, tjDecompress2 and
        # tjDestroy itself. PyTurboJPEG has no public names for them; every release before 2 has these.
        turbo = TurboJPEG()
        self._start = turbo._TurboJPEG__init_decompress
        self._decompress = turbo._TurboJPEG__decompress
        self._destroy = turbo._TurboJPEG__destroy
        self._exact_samplings = frozenset(
            sampling for sampling, options in _PROBES.items() if self._has_pillows_pixels(sampling, options)
        )

    def is_exact(self, header: JpegHeader) -> bool:
        """Whether a decode at full size gives the very pixels of Pillow."""
        return header.sampling in self._exact_samplings

    def decode(self, data: bytes, header: JpegHeader, scale: int = 1) -> Image.Image | None:
        """Decode a plain file to L or RGB at 1/``scale`` (1, 2, 4 or 8).

        Returns an image of ceil(W / scale) x ceil(H / scale) pixels as they are stored, with its :class:`ScaleInfo` if
        it is scaled, or None if the file should be left to Pillow.
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

        Returns False if the file should be left to Pillow; ``out`` may then hold anything. Nothing is written outside
        ``out``, however large the picture is.
        """
        if not data.endswith(_END):
            return False
        height, width, channels = out.shape
        source, target = ctypes.cast(ctypes.c_char_p(data), _BYTES), ctypes.cast(out.ctypes.data, _BYTES)
        handle = self._start()
        try:
            return not self._decompress(
                handle, source, len(data), target, width, out.strides[0], height, _PIXEL_FORMATS[channels], 0
            )
        finally:
            self._destroy(handle)

    def _has_pillows_pixels(self, sampling: Sampling, options: dict[str, Any]) -> bool:
        noise = np.random.default_rng(0).integers(0, 256, (37, 51, 3), dtype=np.uint8)
        mode = "L" if len(sampling) == 1 else "RGB"
        buffer = io.BytesIO()
        Image.fromarray(noise).convert(mode).save(buffer, "JPEG", quality=80, **options)
        header = read_header(buffer.getvalue())
        assert header is not None
        decoded = self.decode(buffer.getvalue(), header)
        with Image.open(buffer) as expected:
            return decoded is not None and decoded.tobytes() == expected.tobytes()


@cache
def installed() -> TurboJpeg | None:
    """Return the decoder, or None if PyTurboJPEG or libjpeg-turbo is not installed or is of an unknown release."""
    try:
        return TurboJpeg()
    except (ImportError, OSError, RuntimeError, AttributeError):
        return None


def library() -> str | None:
    """Name the library that scaled decoding uses besides Pillow; None if it is not installed."""
    return None if installed() is None else "libjpeg-turbo (PyTurboJPEG)"
