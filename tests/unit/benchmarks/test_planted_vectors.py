"""The vectors that searches are measured with."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fixtures.planted_vectors import THRESHOLD, planted


def test_exactly_the_planted_pairs_reach_the_threshold_and_all_are_close_together() -> None:
    vectors, family = planted(3000)
    products = vectors @ vectors.T
    assert products[np.triu(family[:, None] != family, 1)].max() < THRESHOLD
    copies = np.flatnonzero(family != np.arange(3000))
    assert len(copies) == 150
    assert (products[copies, family[copies]] >= THRESHOLD).all()
    cosines = products[np.triu_indices(3000, 1)]
    assert cosines.mean() == pytest.approx(0.6, abs=0.01)
    assert np.quantile(cosines, 0.99) == pytest.approx(0.73, abs=0.01)
