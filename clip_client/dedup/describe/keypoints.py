"""A small picture of one photo, and keypoints in that picture."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from clip_client.dedup.types import Pixels

if TYPE_CHECKING:
    from PIL import Image


ALGORITHM: Final = "sift-6"
"""Version of :class:`Keypoints`, and its name in a store: change it with anything that changes their values."""

PICTURE_SIDE: Final = 512
"""Pixels of the longer side of the small picture, which is compared."""
_KEYPOINT_SIDE: Final = 384
"""Pixels of the longer side of the picture that keypoints are found in: OpenCV doubles it first."""
_DETAIL: Final = 2.0
"""Levels, root mean square, of what is finer than 6 pixels in a square of 16 pixels with texture."""
_LEAST_TEXTURE: Final = 0.05
"""Share of such squares. Measured: gradients and noise 0.00, a blurred scene 0.01, the plainest sample photos 0.13."""
_SMALLEST_SIDE: Final = 80
"""Pixels, of the shorter side. In frames of a film of 88 x 72 pixels, what moves is smaller than a pixel."""
_CONTRAST: Final = 0.02
"""Half of OpenCV's default contrast threshold, so that plain photos have enough keypoints."""
_FAINT: Final = 0.002
_FEW: Final = 100
_JPEG: Final = (
    *(cv2.IMWRITE_JPEG_QUALITY, 90),
    *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444),
)
"""Chroma at full size: a colour that a brighter copy has cut off must not spread over an edge."""


@dataclass(kw_only=True, eq=False)
class Keypoints:
    """The small picture of one photo, and its keypoints, which take long and are found when they are first needed."""

    width: int
    """Pixels of the photo at full size, after the EXIF orientation."""
    height: int
    jpeg: bytes
    """The small picture as a JPEG, RGB, at most :data:`PICTURE_SIDE` pixels on the longer side."""
    thumbnail: NDArray[np.float32]
    """(16, 16): the luma of the small picture, stretched to a square, with mean 0 and deviation 1."""
    reason: str = ""
    """Reason why the photo cannot be verified; empty if it can."""
    found: tuple[NDArray[np.float32], NDArray[np.uint8]] | None = None
    """Positions (K, 2), x and y from the top left in pixels of ``jpeg``, and rounded SIFT (K, 128); None if unknown."""

    @cached_property
    def picture(self) -> Pixels:
        """The small picture, RGB, (h, w, 3). All that is computed from it is computed from the JPEG, cached or not."""
        decoded = cv2.imdecode(np.frombuffer(self.jpeg, np.uint8), cv2.IMREAD_COLOR)
        return cast("Pixels", cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB))

    @cached_property
    def orientations(self) -> NDArray[np.float32]:
        """(8, 256): the thumbnail turned by 0 to 3 quarters to the left, then mirrored and turned."""
        both = self.thumbnail, self.thumbnail[:, ::-1]
        return np.stack([np.rot90(one, turns).ravel() for one in both for turns in range(4)])

    def keypoints(self) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        if self.found is None:
            self.found = _find_keypoints(self.picture)
        return self.found

    @cached_property
    def root_sift(self) -> NDArray[np.float32]:
        """(K, 128): unit rows; the square root of L1-normalised SIFT (Arandjelovic and Zisserman 2012)."""
        descriptors = self.keypoints()[1].astype(np.float32)
        return cast("NDArray[np.float32]", np.sqrt(descriptors / np.maximum(descriptors.sum(axis=1, keepdims=True), 1)))

    def to_bytes(self) -> bytes:
        parts: dict[str, NDArray[Any]] = {
            "size": np.array([self.width, self.height]),
            "jpeg": np.frombuffer(self.jpeg, np.uint8),
            "thumbnail": self.thumbnail,
            "reason": np.array(self.reason),
        }
        if self.found is not None:
            parts["positions"], parts["descriptors"] = self.found
        file = io.BytesIO()
        np.savez(file, **parts)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Keypoints:
        """Read what :meth:`to_bytes` returned. Raises ValueError for anything else."""
        try:
            parts = dict(np.load(io.BytesIO(data)))  # a ZIP archive, with a checksum of each part
            width, height = parts["size"].tolist()
            return cls(
                width=width,
                height=height,
                jpeg=parts["jpeg"].tobytes(),
                thumbnail=parts["thumbnail"],
                reason=str(parts["reason"]),
                found=(parts["positions"], parts["descriptors"]) if "positions" in parts else None,
            )
        except Exception as error:  # NumPy may raise anything for damaged bytes
            raise ValueError("These bytes are not keypoints; remove them from the store.") from error


def extract_keypoints(picture: Image.Image | Pixels, full_size: tuple[int, int]) -> Keypoints:
    """Prepare a photo; ``full_size`` is (width, height), ``picture`` upright RGB, whole or of :data:`PICTURE_SIDE`."""
    small = _at_most(np.asarray(picture, dtype=np.uint8), PICTURE_SIDE)
    jpeg = cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR), _JPEG)[1].tobytes()
    luma = np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.uint8)
    reason = ""
    if min(small.shape[:2]) < _SMALLEST_SIDE:
        reason = f"It has fewer than {_SMALLEST_SIDE} pixels on one side."
    elif _texture(luma) < _LEAST_TEXTURE:
        reason = "It has too little texture."
    width, height = full_size
    return Keypoints(width=width, height=height, jpeg=jpeg, thumbnail=_thumbnail(luma), reason=reason)


def _find_keypoints(picture: Pixels) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    grey = _at_most(np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), np.uint8), _KEYPOINT_SIDE)
    for contrast in (_CONTRAST, _FAINT):
        sift = cv2.SIFT.create(nfeatures=350, contrastThreshold=contrast, enable_precise_upscale=True)
        found, descriptors = sift.detectAndCompute(grey, None)  # type: ignore[call-overload]  # the mask may be None
        if len(found) >= _FEW:
            break
    if not found:
        return np.empty((0, 2), np.float32), np.empty((0, 128), np.uint8)
    # OpenCV counts from the middle of the first pixel, which moves if the picture is scaled.
    scale = np.array([picture.shape[1] / grey.shape[1], picture.shape[0] / grey.shape[0]], np.float32)
    positions = (np.asarray(cv2.KeyPoint.convert(found), np.float32) + np.float32(0.5)) * scale
    return positions, np.rint(descriptors).astype(np.uint8)


def _thumbnail(luma: Pixels) -> NDArray[np.float32]:
    small = cv2.resize(luma, (16, 16), interpolation=cv2.INTER_AREA).astype(np.float32)
    return np.asarray((small - small.mean()) / max(1.0, float(small.std())), np.float32)


def _texture(luma: Pixels) -> float:
    half = cv2.resize(luma, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA).astype(np.float32)
    fine = cv2.GaussianBlur(half, (0, 0), 0.7) - cv2.GaussianBlur(half, (0, 0), 3)
    squares = max(1, luma.shape[1] // 16), max(1, luma.shape[0] // 16)
    return float((cv2.resize(fine * fine, squares, interpolation=cv2.INTER_AREA) > _DETAIL**2).mean())


@contextmanager
def opencv_for_many() -> Iterator[None]:
    """Keep OpenCV from starting threads, because photos and pairs are already spread over threads; reuse memory."""
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    # glibc returns the memory of a picture to the system, and maps it again page by page for the next one, until a
    # larger block was freed; that takes a third of the time. Nothing is written to the block, so it takes no memory.
    bytes(31 * 2**20)  # from 32 MiB on glibc learns nothing from a block
    try:
        yield
    finally:
        cv2.setNumThreads(before)


def _at_most(picture: Pixels, side: int) -> Pixels:
    height, width = picture.shape[:2]
    scale = side / max(height, width)
    if scale >= 1:
        return picture
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cast("Pixels", cv2.resize(picture, size, interpolation=cv2.INTER_AREA))
