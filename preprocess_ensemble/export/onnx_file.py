"""The form in which a model is written: versions that the oldest server reads, and the weights beside a large graph."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import onnx

from preprocess_ensemble.export.model_source import ExportError

OPSET: Final = 17
IR_VERSION: Final = 8
"""Triton 24.10 has ONNX Runtime 1.19, which reads opsets up to 21 and IR versions up to 10."""


def save(model: onnx.ModelProto, file: Path, *, weights: str | None = None) -> list[Path]:
    """Write ``model``, with its weights in a file of the name ``weights`` if there is one; return the files.

    Raises ExportError if it has another opset or IR version.
    """
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
    # onnx makes that file readable for its owner only; the server may run as another user.
    shutil.copymode(file, beside)
    return [beside, file]


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
    save(model, file)
