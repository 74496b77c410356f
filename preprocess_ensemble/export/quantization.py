"""Converts the weights of an exported graph to int8."""

from __future__ import annotations

from pathlib import Path

import onnx

from preprocess_ensemble.export.parity import IR_VERSION


def quantize(file: Path) -> None:
    """Convert the weights of the matrix products in ``file`` to int8, with one scale per column.

    Activations are quantised when the model runs, with a scale that depends on the batch: a neighbour may change a
    vector as much as the rounding does. The convolution of the patches stays fp32: ONNX Runtime has no fast int8 one.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        str(file),
        str(file),
        op_types_to_quantize=["MatMul", "Gemm"],
        per_channel=True,
        # Weights from -64 to 64. With larger ones, processors without VNNI overflow and give vectors that differ by
        # 0.008 for the small test model.
        reduce_range=True,
        weight_type=QuantType.QInt8,
    )
    model = onnx.load(str(file))
    used = {node.domain for node in model.graph.node}
    for opset in [opset for opset in model.opset_import if opset.domain not in used | {""}]:
        model.opset_import.remove(opset)
    model.ir_version = IR_VERSION
    onnx.save(model, str(file))
