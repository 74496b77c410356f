"""Write a graph: with versions that the oldest server reads, few shapes, int8, and weights beside it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from preprocess_ensemble.export.model_source import ExportError
from preprocess_ensemble.runtimes.onnx_session import open_session, session_options

Array = npt.NDArray[Any]

OPSET: Final = 17
IR_VERSION: Final = 8  # Triton 24.10 has ONNX Runtime 1.19, which reads opsets up to 21 and IR versions up to 10

_IN_FP32: Final = ("ArgMax", "LayerNormalization", "Softmax")
_ROWS: Final = (2, 3)
"""Batch sizes whose shapes are compared: a value that is equal for both does not depend on the batch."""
_LARGEST: Final = 64  # elements of a shape value; expanded weights are larger


def save(model: onnx.ModelProto, file: Path, *, weights: str | None = None) -> list[Path]:
    """Write ``model``, and its weights to a file named ``weights`` if given; return the files. Raises ExportError."""
    found = (model.ir_version, {opset.domain: opset.version for opset in model.opset_import})
    if found != (IR_VERSION, {"": OPSET}):
        raise ExportError(
            f"The exported model has IR version and opsets {found}, not IR {IR_VERSION} and opset {OPSET}."
        )
    if weights is None:
        onnx.save(model, str(file))
        return [file]
    beside = file.with_name(weights)
    onnx.save_model(model, str(file), save_as_external_data=True, location=weights)
    # onnx makes the file of the weights readable for its owner only, but the server may run as another user.
    shutil.copymode(file, beside)
    return [beside, file]


def quantize(file: Path) -> None:
    """Convert the weights of the matrix products in ``file`` to int8, with one scale per column.

    Activations are quantised at run time, with a scale that depends on the batch: a neighbour may change a vector as
    much as the rounding does. The convolution of the patches stays fp32: ONNX Runtime has no fast convolution in int8.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        str(file),
        str(file),
        op_types_to_quantize=["MatMul", "Gemm"],
        per_channel=True,
        # Limit weights to -64 to 64. With larger weights, processors without VNNI overflow: vectors of the small test
        # model differ by 0.008.
        reduce_range=True,
        weight_type=QuantType.QInt8,
    )
    model = onnx.load(str(file))
    used = {node.domain for node in model.graph.node}
    for opset in [opset for opset in model.opset_import if opset.domain not in used | {""}]:
        model.opset_import.remove(opset)
    model.ir_version = IR_VERSION
    save(model, file)


def compute_in_fp32(model: onnx.ModelProto) -> None:
    """Cast to fp32 and back around the nodes of an fp16 ``model`` that need fp32.

    The sums of layer norms and softmaxes overflow in fp16 for some inputs; the L2 norm is already in fp32. ONNX
    Runtime's CUDA provider has no ArgMax of integers.
    """
    graph, full, half = model.graph, onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
    nodes = list(graph.node)
    casts = (node for node in nodes if node.op_type == "Cast")
    already = {node.output[0] for node in casts if node.attribute[0].i == full}
    del graph.node[:]
    for node in nodes:
        after = []
        if node.op_type in _IN_FP32 and node.input[0] not in already:
            made = node.output[0]
            for index, name in enumerate(node.input):
                node.input[index] = f"{made}/fp32/{index}"
                graph.node.append(onnx.helper.make_node("Cast", [name], [node.input[index]], to=full))
            if node.op_type != "ArgMax":
                node.output[0] = f"{made}/fp32"
                after.append(onnx.helper.make_node("Cast", [node.output[0]], [made], to=half))
        graph.node.extend([node, *after])


def fold_shapes(model: onnx.ModelProto) -> None:
    """Replace the shapes in ``model`` that do not depend on the batch with constants.

    PyTorch's exporter reads the shape of a tensor for each reshape, in a thousand nodes for ViT-B-32. On a GPU these
    nodes run on the CPU between the kernels. Nodes that end in a float (the scale of attention) need a copy to the
    device, and ONNX Runtime does not support CUDA graphs with such a copy.

    If a ``Reshape`` target depends on the batch in one position, it gets -1 there. Other shape inputs that vary stay
    unchanged. The batch must be the only dynamic dimension of every input.
    """
    graph = model.graph
    first, second = _evaluated(model, _shape_values(graph))
    constants = {name: value for name, value in first.items() if np.array_equal(value, second[name])}
    for node in graph.node:
        if node.op_type == "Reshape" and (target := _with_one_unknown(node, first, second)) is not None:
            # Use a new name, because other nodes may need the value itself.
            name = f"{node.input[1]}/fixed"
            constants[name] = target
            node.input[1] = name
    # Drop nodes whose outputs are now all constants.
    kept = [node for node in graph.node if not all(output in constants for output in node.output)]
    used = _keep_used(graph, kept)
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items() if name in used)


def _shape_values(graph: onnx.GraphProto) -> list[str]:
    known = {tensor.name for tensor in graph.initializer}
    found: list[str] = []
    for node in graph.node:
        if node.op_type == "Constant":
            known.update(node.output)
        elif node.op_type == "Shape" or all(name in known for name in node.input if name):
            known.update(node.output)
            found.extend(node.output)
    return found


def _evaluated(model: onnx.ModelProto, names: Sequence[str]) -> list[dict[str, Array]]:
    from onnxruntime import GraphOptimizationLevel

    graph = model.graph
    outputs = len(graph.output)
    # Change the model itself for a moment: a copy would hold its weights twice.
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    file = model.SerializeToString()
    del graph.output[outputs:]
    options = session_options()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = open_session(file, options)
    evaluated = []
    for rows in _ROWS:
        inputs = {}
        for tensor in graph.input:
            kind = tensor.type.tensor_type
            shape = [dim.dim_value or rows for dim in kind.shape.dim]
            inputs[tensor.name] = np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
        values = dict(zip(names, session.run(list(names), inputs), strict=True))
        evaluated.append({name: value for name, value in values.items() if value.size <= _LARGEST})
    return evaluated


def _with_one_unknown(node: onnx.NodeProto, first: dict[str, Array], second: dict[str, Array]) -> Array | None:
    """Return the target of a ``Reshape``, with -1 where it depends on the batch; None if -1 cannot express it."""
    target, other = first.get(node.input[1]), second.get(node.input[1])
    if target is None or other is None or target.shape != other.shape:
        return None
    varies = target != other
    if varies.sum() != 1 or (target[~varies] < 1).any():
        return None
    return np.where(varies, -1, target).astype(np.int64)


def _keep_used(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> set[str]:
    used = {output.name for output in graph.output}
    kept = []
    for node in reversed(nodes):
        if used & set(node.output):
            used.update(node.input)
            kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    weights = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(weights)
    return used
