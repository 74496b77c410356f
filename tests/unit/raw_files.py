"""RAW files, made here: DNG with a JPEG preview, as cameras write them."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL import Image

_BYTE, _ASCII, _SHORT, _LONG = 1, 2, 3, 4
_SIZES: Final = {_BYTE: 1, _ASCII: 1, _SHORT: 2, _LONG: 4}
_SUB_IFDS, _EXIF_IFD = 330, 34665


def dng(
    preview: Image.Image | None, *, sensor: tuple[int, int] = (64, 48), orientation: int = 1, seed: int = 0
) -> bytes:
    """Write a DNG file of noise from a sensor of (width, height) pixels; its date is 2020-05-06 07:08:09."""
    width, height = sensor
    noise = np.random.default_rng(seed).integers(0, 4096, (height, width), dtype="<u2").tobytes()
    jpeg = io.BytesIO()
    if preview is not None:
        preview.save(jpeg, "JPEG", quality=90)
    picture = [
        (254, _LONG, [0]),
        (256, _LONG, [width]),
        (257, _LONG, [height]),
        (258, _SHORT, [16]),
        (259, _SHORT, [1]),
        (262, _SHORT, [32803]),  # a filter of colours
        (273, _LONG, [_At.noise]),
        (277, _SHORT, [1]),
        (278, _LONG, [height]),
        (279, _LONG, [len(noise)]),
        (33421, _SHORT, [2, 2]),
        (33422, _BYTE, [0, 1, 1, 2]),
    ]
    small = (
        []
        if preview is None
        else [
            (254, _LONG, [1]),
            (256, _LONG, [preview.width]),
            (257, _LONG, [preview.height]),
            (258, _SHORT, [8, 8, 8]),
            (259, _SHORT, [7]),
            (262, _SHORT, [6]),
            (273, _LONG, [_At.jpeg]),
            (277, _SHORT, [3]),
            (278, _LONG, [preview.height]),
            (279, _LONG, [len(jpeg.getvalue())]),
        ]
    )
    about = [
        (271, _ASCII, list(b"Maker\0")),
        (272, _ASCII, list(b"Model\0")),
        (274, _SHORT, [orientation]),
        (_EXIF_IFD, _LONG, [_At.exif]),
        (50706, _BYTE, [1, 4, 0, 0]),
        (50708, _ASCII, list(b"Maker Model\0")),
    ]
    main = sorted([*small, *about, (_SUB_IFDS, _LONG, [_At.picture])] if small else [*picture, *about])
    exif = [(36867, _ASCII, list(b"2020:05:06 07:08:09\0"))]
    return _laid_out(main, picture if small else [], exif, jpeg.getvalue(), noise)


class _At:
    """Stand-ins for offsets, until they are known."""

    jpeg, noise, picture, exif = range(1 << 30, (1 << 30) + 4)


_Tag = tuple[int, int, "Sequence[int]"]


def _laid_out(main: Sequence[_Tag], picture: Sequence[_Tag], exif: Sequence[_Tag], jpeg: bytes, noise: bytes) -> bytes:
    at = {_At.picture: 8 + len(_ifd(main, 0, {}))}
    at[_At.exif] = at[_At.picture] + len(_ifd(picture, 0, {}))
    at[_At.jpeg] = at[_At.exif] + len(_ifd(exif, 0, {}))
    at[_At.noise] = at[_At.jpeg] + len(jpeg) + len(jpeg) % 2
    head = struct.pack("<2sHL", b"II", 42, 8)
    tables = _ifd(main, 8, at) + _ifd(picture, at[_At.picture], at) + _ifd(exif, at[_At.exif], at)
    return head + tables + jpeg + b"\0" * (len(jpeg) % 2) + noise


def _ifd(tags: Sequence[_Tag], offset: int, at: dict[int, int]) -> bytes:
    """Write one directory of TIFF at ``offset``, and what does not fit into it behind it."""
    if not tags:
        return b""
    behind_at = offset + 2 + 12 * len(tags) + 4
    table, behind = struct.pack("<H", len(tags)), b""
    for tag, kind, values in tags:
        letter = {_BYTE: "B", _ASCII: "B", _SHORT: "H", _LONG: "L"}[kind]
        data = struct.pack(f"<{len(values)}{letter}", *(at.get(value, value) for value in values))
        if len(data) > 4:
            place = struct.pack("<L", behind_at + len(behind))
            behind += data + b"\0" * (len(data) % 2)
        else:
            place = data.ljust(4, b"\0")
        table += struct.pack("<HHL", tag, kind, len(data) // _SIZES[kind]) + place
    return table + struct.pack("<L", 0) + behind
