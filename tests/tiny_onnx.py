"""Tiny ONNX models for tests of the server: made in milliseconds, with answers that can be worked out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

OPSET = 17
IR = 8


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: dict[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """Check the graph and write it as ``path``, making the folders above."""
    initializers = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "tiny", list(inputs), list(outputs), initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def affine(path: Path, *, batch: str | int = "batch", width: str | int = 4) -> Path:
    """Write ``y = x * 2 + 1`` and ``z = -x``, FP32 [batch, width] each.

    The identity in it is there for the optimizer to remove.
    """
    shape = [batch, width]
    return save(
        path,
        [
            helper.make_node("Mul", ["x", "two"], ["twice"]),
            helper.make_node("Identity", ["twice"], ["same"]),
            helper.make_node("Add", ["same", "one"], ["y"]),
            helper.make_node("Neg", ["x"], ["z"]),
        ],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("y", "z")],
        {name: np.array(value, np.float32) for name, value in (("one", 1), ("two", 2))},
    )


def gather(path: Path, table: Sequence[float] = (10, 20, 30)) -> Path:
    """Write ``y = table[x]``, INT64 [batch, 1] to FP32 [batch, 1]: an index that is not there fails at run time."""
    return save(
        path,
        [helper.make_node("Gather", ["table", "x"], ["y"])],
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["batch", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])],
        {"table": np.array(table, np.float32)},
    )
