"""Inputs and outputs of the ONNX file, compared with ``config.pbtxt``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from preprocess_ensemble.backends.onnxruntime.session_plan import ModelConfig, ModelLoadError

if TYPE_CHECKING:
    import onnxruntime

_NAMES: Final = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
_TYPES: Final = {f"tensor({name})": (f"TYPE_{name.upper()}", np.dtype(name)) for name in _NAMES} | {
    "tensor(float16)": ("TYPE_FP16", np.dtype(np.float16)),
    "tensor(float)": ("TYPE_FP32", np.dtype(np.float32)),
    "tensor(double)": ("TYPE_FP64", np.dtype(np.float64)),
}
"""ONNX Runtime's name of a type -> (Triton's name, numpy's type). Strings and bfloat16 have no type that suits both."""


class Tensor(NamedTuple):
    """An input or output of the ONNX file. ``shape`` has the batch dimension; -1 stands for any size."""

    name: str
    data_type: str  # Triton's name for the type of the elements
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Signature(NamedTuple):
    inputs: list[Tensor]
    outputs: list[Tensor]


def read_signature(session: onnxruntime.InferenceSession) -> Signature:
    return Signature([*map(_tensor, session.get_inputs())], [*map(_tensor, session.get_outputs())])


def _tensor(arg: onnxruntime.NodeArg) -> Tensor:
    if arg.type not in _TYPES:
        raise ModelLoadError(
            f"The tensor {arg.name} of the ONNX model is a {arg.type}, which this backend cannot serve."
        )
    data_type, dtype = _TYPES[arg.type]
    shape = tuple(size if isinstance(size, int) else -1 for size in arg.shape)
    return Tensor(arg.name, data_type, dtype, shape)


def check_signature(config: ModelConfig, signature: Signature) -> None:
    """Raise ``ModelLoadError`` unless the configuration describes this ONNX model.

    The configuration must list every input once; it may leave out outputs. As in the C++ backend, an input may be
    narrower than the ONNX model allows (a fixed size instead of -1), and an output must have exactly the model's sizes.
    """
    for field in ("batch_input", "batch_output", "sequence_batching"):
        if config.get(field):
            raise ModelLoadError(f"The Python-based onnxruntime backend does not support {field}: use the C++ backend.")
    inputs, outputs = config["input"], config["output"]
    _check_names("input", inputs, signature.inputs)
    listed = Counter(io["name"] for io in inputs)
    for name, count in listed.items():
        if count > 1:
            raise ModelLoadError(f"config.pbtxt lists the input {name!r} more than once.")
    _check_names("output", outputs, signature.outputs)
    if left_out := [tensor.name for tensor in signature.inputs if tensor.name not in listed]:
        raise ModelLoadError(f"The ONNX model needs the inputs {left_out}, which config.pbtxt does not list.")
    batches = int(config["max_batch_size"]) > 0
    for io in inputs:
        if batches and io.get("optional"):
            raise ModelLoadError(
                f"config.pbtxt sets optional for the input {io['name']!r}, but the model has max_batch_size: remove "
                "optional."
            )
    for configured, tensors, exact in ((inputs, signature.inputs, False), (outputs, signature.outputs, True)):
        by_name = {tensor.name: tensor for tensor in tensors}
        for io in configured:
            _check_tensor(io, by_name[io["name"]], batches=batches, exact=exact)


def _check_names(what: str, configured: Sequence[Mapping[str, Any]], tensors: Sequence[Tensor]) -> None:
    names = [tensor.name for tensor in tensors]
    for io in configured:
        if io["name"] not in names:
            raise ModelLoadError(f"config.pbtxt lists the {what} {io['name']!r}, but the ONNX model has only {names}.")
        if io.get("allow_ragged_batch"):
            raise ModelLoadError(
                f"The Python-based onnxruntime backend does not support allow_ragged_batch (input {io['name']!r})."
            )


def _check_tensor(io: Mapping[str, Any], tensor: Tensor, *, batches: bool, exact: bool) -> None:
    name = tensor.name
    if io["data_type"] != tensor.data_type:
        raise ModelLoadError(
            f"config.pbtxt says {io['data_type']} for {name!r}, but in the ONNX model it is {tensor.data_type}."
        )
    if batches and tensor.shape[:1] != (-1,):
        raise ModelLoadError(
            f"config.pbtxt sets max_batch_size, but the first dimension of {name!r} in the ONNX model is not dynamic "
            f"(shape {list(tensor.shape)})."
        )
    dims = io["reshape"].get("shape", ()) if "reshape" in io else io["dims"]
    configured = ((-1,) if batches else ()) + tuple(int(dim) for dim in dims)
    agrees = len(configured) == len(tensor.shape) and all(
        size == onnx_size or (onnx_size == -1 and not exact)
        for size, onnx_size in zip(configured, tensor.shape, strict=True)
    )
    if not agrees:
        raise ModelLoadError(
            f"config.pbtxt says shape {list(configured)} for {name!r}{' (with the batch)' if batches else ''}, "
            f"but in the ONNX model it is {list(tensor.shape)}"
            + ("; an output needs exactly the model's sizes." if exact else ".")
        )
