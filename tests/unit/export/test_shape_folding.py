"""Shapes that do not depend on the batch become constants; the rest and the values stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from preprocess_ensemble.export.onnx_file import fold_shapes
from tests.fixtures.models import tiny_onnx

if TYPE_CHECKING:
    from pathlib import Path

X = np.arange(30, dtype=np.float32).reshape(5, 6)


def graph(path: Path) -> onnx.ModelProto:
    """What an exporter makes: ``y = reshape(x, [N, 2, 3]) * sqrt(6)`` and ``n = [1] * N``, all by way of shapes."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Concat", ["rows", "two_three"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["split"]),
        helper.make_node("Gather", ["shape", "one"], ["width"]),
        helper.make_node("Cast", ["width"], ["float_width"], to=TensorProto.FLOAT),
        helper.make_node("Sqrt", ["float_width"], ["scale"]),
        helper.make_node("Mul", ["split", "scale"], ["y"]),
        helper.make_node("ConstantOfShape", ["rows"], ["zeros"]),
        helper.make_node("Add", ["zeros", "float_one"], ["n"]),
    ]
    constants = {
        "zero": np.array([0]),
        "one": np.array([1]),
        "two_three": np.array([2, 3]),
        "float_one": np.array([1], np.float32),
    }
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2, 3]),
        helper.make_tensor_value_info("n", TensorProto.FLOAT, ["N"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 6])]
    return onnx.load(str(tiny_onnx.save(path, nodes, inputs, outputs, constants)))


def run(model: onnx.ModelProto) -> list[Any]:
    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": X}))


def test_the_answers_stay_and_the_arithmetic_goes(tmp_path: Path) -> None:
    model = graph(tmp_path / "model.onnx")
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


def test_a_second_time_changes_nothing(tmp_path: Path) -> None:
    model = graph(tmp_path / "model.onnx")
    fold_shapes(model)
    once = model.SerializeToString()
    fold_shapes(model)
    assert model.SerializeToString() == once
