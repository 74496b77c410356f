"""The last block computes only the class token."""

from __future__ import annotations

from typing import Any, cast

import pytest

from benchmarks.fixtures.server import TINY_CLIP
from preprocess_ensemble.export.exporter import load_model


@pytest.fixture
def tower() -> Any:
    return cast("Any", load_model(str(TINY_CLIP), "random:0").get_submodule("visual"))


def test_the_vectors_are_the_same_and_less_is_computed(tower: Any) -> None:
    import torch

    from preprocess_ensemble.export.pytorch.graph import prune_to_class_token

    images = torch.rand((3, 3, 224, 224), generator=torch.Generator().manual_seed(0))
    rows: list[int] = []
    tower.transformer.resblocks[-1].mlp.register_forward_hook(lambda _, given, __: rows.append(given[0].shape[1]))
    with torch.inference_mode():
        expected = tower(images)
        assert prune_to_class_token(tower)
        found = tower(images)
    assert torch.allclose(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert rows == [50, 1]


@pytest.mark.parametrize(("name", "value"), [("pool_type", "avg"), ("output_tokens", True)])
def test_a_tower_that_uses_more_tokens_is_not_pruned(tower: Any, name: str, value: object) -> None:
    from preprocess_ensemble.export.pytorch.graph import prune_to_class_token

    setattr(tower, name, value)
    last = tower.transformer.resblocks[-1]
    assert not prune_to_class_token(tower)
    assert tower.transformer.resblocks[-1] is last
