"""Graphs compute no shapes that the batch does not change, and in the last block only the class token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.helper import make_node

from benchmarks.fixtures.server import TINY_CLIP
from preprocess_ensemble.export.exporter import load_model
from preprocess_ensemble.export.onnx_file import fold_shapes
from tests.fixtures.models import tiny_onnx

if TYPE_CHECKING:
    from pathlib import Path

X = np.arange(30, dtype=np.float32).reshape(5, 6)


@pytest.fixture
def model(tmp_path: Path) -> onnx.ModelProto:
    """What an exporter makes: ``y = reshape(x, [N, 2, 3]) * sqrt(6)`` and ``n = [1] * N``, all by way of shapes."""
    nodes = [
        make_node("Shape", ["x"], ["shape"]),
        make_node("Gather", ["shape", "zero"], ["rows"]),
        make_node("Concat", ["rows", "two_three"], ["target"], axis=0),
        make_node("Reshape", ["x", "target"], ["split"]),
        make_node("Gather", ["shape", "one"], ["width"]),
        make_node("Cast", ["width"], ["float_width"], to=TensorProto.FLOAT),
        make_node("Sqrt", ["float_width"], ["scale"]),
        make_node("Mul", ["split", "scale"], ["y"]),
        make_node("ConstantOfShape", ["rows"], ["zeros"]),
        make_node("Add", ["zeros", "float_one"], ["n"]),
    ]
    numbers = {"zero": [0], "one": [1], "two_three": [2, 3]}
    constants = {name: np.array(value) for name, value in numbers.items()} | {"float_one": np.array([1], np.float32)}
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2, 3]),
        helper.make_tensor_value_info("n", TensorProto.FLOAT, ["N"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 6])]
    return onnx.load(str(tiny_onnx.save(tmp_path / "model.onnx", nodes, inputs, outputs, constants)))


def run(model: onnx.ModelProto) -> list[Any]:
    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": X}))


def test_the_answers_stay_and_the_arithmetic_goes(model: onnx.ModelProto) -> None:
    before = run(model)
    fold_shapes(model)
    for old, new in zip(before, run(model), strict=True):
        np.testing.assert_array_equal(new, old)
    onnx.checker.check_model(model)
    left = [node.op_type for node in model.graph.node]
    assert left == ["Shape", "Gather", "Reshape", "Mul", "ConstantOfShape", "Add"], "what depends on the batch stays"
    target = next(tensor for tensor in model.graph.initializer if tensor.name == "target/fixed")
    assert list(onnx.numpy_helper.to_array(target)) == [-1, 2, 3]
    assert not {"one", "two_three"} & {tensor.name for tensor in model.graph.initializer}, "nor constants without use"
    once = model.SerializeToString()
    fold_shapes(model)
    assert model.SerializeToString() == once, "a second time changes nothing"


@pytest.fixture
def tower() -> Any:
    return load_model(str(TINY_CLIP), "random:0").get_submodule("visual")


def test_the_last_block_computes_the_class_token_alone_and_the_vectors_are_the_same(tower: Any) -> None:
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
