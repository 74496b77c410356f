"""The vectors that grouping is measured with."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fixtures.planted_vectors import THRESHOLDS, planted


@pytest.mark.parametrize("shape", THRESHOLDS)
def test_exactly_the_planted_pairs_reach_the_threshold(shape: str) -> None:
    vectors, family = planted(3000, shape)
    products = vectors @ vectors.T
    of_others = products[np.triu(family[:, None] != family, 1)]
    assert of_others.max() < THRESHOLDS[shape]
    copies = np.flatnonzero(family != np.arange(3000))
    assert len(copies) == (900 if shape == "skewed" else 150)
    assert (products[copies, family[copies]] >= THRESHOLDS[shape]).all()


def test_dense_vectors_are_as_close_together_as_they_should_be() -> None:
    vectors, _ = planted(3000, "dense")
    cosines = (vectors @ vectors.T)[np.triu_indices(3000, 1)]
    assert cosines.mean() == pytest.approx(0.6, abs=0.01)
    assert np.quantile(cosines, 0.99) == pytest.approx(0.73, abs=0.01)
