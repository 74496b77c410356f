"""What a caller may pass as an image."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Iterable
from typing import IO, TYPE_CHECKING, TypeAlias, Union

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

ImageSource: TypeAlias = Union[
    str, "os.PathLike[str]", bytes, bytearray, memoryview, "Image", "NDArray[np.uint8]", IO[bytes]
]
"""A path, the bytes of an image file, a PIL image, a uint8 array (H, W, 3) in RGB, or a binary file object."""

ImageSources: TypeAlias = ImageSource | Iterable[ImageSource] | AsyncIterable[ImageSource]
"""One image, or any iterable of images. An array (N, H, W, 3) counts as N images."""
