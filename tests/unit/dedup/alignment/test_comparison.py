"""What can be compared of two pictures."""

from __future__ import annotations

import numpy as np
import pytest

from clip_client.dedup.alignment.comparison import compare
from tests.fixtures.images.scenes import scene


@pytest.mark.parametrize("size", [(384, 512), (512, 384), (512, 90)])
def test_a_strip_along_an_edge_is_too_little(size: tuple[int, int]) -> None:
    one, other = (np.asarray(scene(seed, size)) for seed in (0, 1))

    def can_be_compared(overlap: int) -> bool:
        return compare(one, other, np.array([[1.0, 0, size[0] - overlap], [0, 1, 0]])) is not None

    # The narrowest strips hold no window; NumPy would warn of an empty mean.
    assert not any(can_be_compared(pixels) for pixels in range(1, 14))
    assert can_be_compared(24)
