"""The configuration of the model repository that Triton serves, built as protobuf messages.

The tracked ``triton_models/*/config.pbtxt`` are the output of this module for a model of 224 px and 512 dimensions; a
test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from preprocess_ensemble.contract import (
    EMBEDDING,
    ENCODER,
    ENSEMBLE,
    ERROR,
    FINGERPRINT,
    IMAGE,
    MODEL,
    PIXELS,
    PREPROCESSOR,
    STATUS,
)
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.imaging.decode import DecodeLimits
from preprocess_ensemble.model_repository.passport import Passport

ModelConfig = Any
"""The generated messages have no type annotations."""

MODEL_FILE: Final = "model.onnx"
PASSPORT_FILE: Final = "model.json"

MAX_BATCH_SIZE: Final = 32

_HALF_GRAPH_LEVEL: Final = 1
"""Extended optimisation: with full optimisation, ONNX Runtime 1.31 crashes on an fp16 model on a CPU."""

_MODEL_PY: Final = '''\
"""The preprocessing step of the ensemble; its code is part of the installed package."""

from preprocess_ensemble.triton_model import TritonPythonModel

__all__ = ("TritonPythonModel",)
'''

_COMMENTS: Final = {
    ENSEMBLE: """\
# One encoded image file in, its embedding out. Every row is an image; the row of a bad image is NaN, with its status.
# An ensemble has no batcher: its steps batch across requests.
""",
    PREPROCESSOR: """\
# Decodes, resizes and crops images, and reports on each in "status" and "error". "model" is the passport of the model;
# it is sent only if requested, which a client does in its handshake.
# - One instance: it decodes a whole batch at once with decode_threads threads of its own (0: one per core).
#   dynamic_batching gives it the images of many requests in one call.
# - passport is relative to this model's directory.
# - fast_decode: large JPEG files are decoded at a half, a quarter or an eighth of their size, as far as the model's
#   input allows; docs/preprocessing.md says what that changes. "false" gives exact pixels for all images.
# - The other parameters limit the cost of one image; max_decode_seconds is processor time for all images of a request.
# - No default_queue_policy: with any, this server sleeps between batches (up to 500 ms). Clients shed load.
""",
    ENCODER: """\
# ONNX Runtime. Normalisation, L2 norm, NaN for failed rows and the fingerprint are part of the graph.
# - KIND_AUTO (the default), count 1: one instance per GPU, or one on the CPU, where two would compete for the cores.
# - dynamic_batching without a preferred size or a delay: all requests that wait when the model is free form one batch.
# - model_warmup: "ready" means warm, for a single image and for the largest batch.
# - No default_queue_policy: with any, this server sleeps between batches (up to 500 ms). Clients shed load.
""",
}


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """The part of the configuration that depends on the model."""

    height: int
    width: int
    """Size of the encoder's input in pixels."""
    dimension: int
    """Length of an embedding."""
    half: bool = False
    """Whether the weights are fp16."""


DEFAULT_SHAPES: Final = Shapes(height=224, width=224, dimension=512)


def configs(shapes: Shapes) -> dict[str, ModelConfig]:
    """Return model name -> ModelConfig. Everything is explicit, so the server has nothing to complete."""
    pixels = [shapes.height, shapes.width, 3]
    return {
        ENSEMBLE: _ensemble(shapes.dimension),
        PREPROCESSOR: _preprocessor(pixels),
        ENCODER: _encoder(pixels, shapes.dimension, half=shapes.half),
    }


def render(name: str, config: ModelConfig, comment: str | None = None) -> str:
    """Return the text of ``name``'s config.pbtxt: the ``comment``, by default this module's own, and the message."""
    text: str = text_format.MessageToString(config, use_short_repeated_primitives=True)
    return f"{_COMMENTS[name] if comment is None else comment}\n{text}"


def pending_files(repository: Path, shapes: Shapes) -> dict[Path, str]:
    """Return the files, with their text, that ``repository`` needs for a model of these ``shapes``.

    An existing config.pbtxt may contain an operator's changes: only its shapes are set, and its leading comment stays.
    If its shapes are right already, it is not in the result. Raises ReportedError if one cannot be read.
    """
    pending = {}
    for name, wanted in configs(shapes).items():
        path = repository / name / "config.pbtxt"
        if not path.exists():
            pending[path] = render(name, wanted)
            continue
        found = read_config(path)
        before = found.SerializeToString(deterministic=True)
        _copy_shapes(wanted, found)
        _copy_graph_level(wanted, found)
        if found.SerializeToString(deterministic=True) != before:
            pending[path] = render(name, found, _leading_comment(path))
    model_py = repository / PREPROCESSOR / "1" / "model.py"
    if not model_py.exists():
        pending[model_py] = _MODEL_PY
    # Triton needs a version directory, and git does not track empty ones.
    keep = repository / ENSEMBLE / "1" / ".gitkeep"
    if not keep.exists():
        pending[keep] = ""
    return pending


def encoder_directory(repository: Path) -> Path:
    """Return the directory of the encoder's only version, with model.onnx and model.json."""
    return repository / ENCODER / "1"


def installed_passport(repository: Path) -> Passport | None:
    """Return the passport of the model in ``repository``, without loading the model.

    None if there is no model, if it is incomplete, or if this package cannot serve it.
    """
    directory = encoder_directory(repository)
    try:
        passport = Passport.from_json((directory / PASSPORT_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return passport if (directory / MODEL_FILE).exists() else None


def _ensemble(dimension: int) -> ModelConfig:
    return model_config_pb2.ModelConfig(
        name=ENSEMBLE,
        platform="ensemble",
        max_batch_size=MAX_BATCH_SIZE,
        input=[_tensor(IMAGE, "TYPE_STRING", [1])],
        output=[
            _tensor(EMBEDDING, "TYPE_FP32", [dimension]),
            _tensor(STATUS, "TYPE_INT32", [1]),
            _tensor(ERROR, "TYPE_STRING", [1]),
            _tensor(FINGERPRINT, "TYPE_INT32", [2]),
        ],
        ensemble_scheduling={
            "step": [
                _step(PREPROCESSOR, takes=[IMAGE], gives=[PIXELS, STATUS, ERROR]),
                _step(ENCODER, takes=[PIXELS, STATUS], gives=[EMBEDDING, FINGERPRINT]),
            ]
        },
    )


def _preprocessor(pixels: list[int]) -> ModelConfig:
    limits = DecodeLimits()
    parameters = {
        "passport": f"../{ENCODER}/1/{PASSPORT_FILE}",
        "decode_threads": "0",
        "fast_decode": "true",
        "max_decode_seconds": f"{limits.max_decode_s:g}",
        "max_image_bytes": str(limits.max_bytes),
        "max_megapixels": f"{limits.max_pixels / 1e6:g}",
        "max_side_ratio": f"{limits.max_side_ratio:g}",
        "max_frames": str(limits.max_frames),
        "max_metadata_bytes": str(limits.max_metadata_bytes),
        "allow_truncated": str(limits.allow_truncated).lower(),
    }
    return model_config_pb2.ModelConfig(
        name=PREPROCESSOR,
        backend="python",
        max_batch_size=MAX_BATCH_SIZE,
        input=[_tensor(IMAGE, "TYPE_STRING", [1])],
        output=[
            _tensor(PIXELS, "TYPE_UINT8", pixels),
            _tensor(STATUS, "TYPE_INT32", [1]),
            _tensor(ERROR, "TYPE_STRING", [1]),
            _tensor(MODEL, "TYPE_STRING", [1]),
        ],
        instance_group=[{"kind": "KIND_CPU", "count": 1}],
        dynamic_batching=model_config_pb2.ModelDynamicBatching(),
        default_model_filename="model.py",
        parameters={name: model_config_pb2.ModelParameter(string_value=value) for name, value in parameters.items()},
    )


def _encoder(pixels: list[int], dimension: int, *, half: bool) -> ModelConfig:
    warmup = model_config_pb2.ModelWarmup
    zeros = {
        PIXELS: warmup.Input(data_type="TYPE_UINT8", dims=pixels, zero_data=True),
        STATUS: warmup.Input(data_type="TYPE_INT32", dims=[1], zero_data=True),
    }
    config = model_config_pb2.ModelConfig(
        name=ENCODER,
        backend="onnxruntime",
        max_batch_size=MAX_BATCH_SIZE,
        input=[_tensor(PIXELS, "TYPE_UINT8", pixels), _tensor(STATUS, "TYPE_INT32", [1])],
        output=[_tensor(EMBEDDING, "TYPE_FP32", [dimension]), _tensor(FINGERPRINT, "TYPE_INT32", [2])],
        instance_group=[{"kind": "KIND_AUTO", "count": 1}],
        dynamic_batching=model_config_pb2.ModelDynamicBatching(),
        default_model_filename=MODEL_FILE,
        model_warmup=[warmup(name=f"batch-{rows}", batch_size=rows, inputs=zeros) for rows in (1, MAX_BATCH_SIZE)],
    )
    if half:
        config.optimization.graph.level = _HALF_GRAPH_LEVEL
    return config


def _tensor(name: str, data_type: str, dims: list[int]) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": dims}


def _step(model: str, *, takes: Iterable[str], gives: Iterable[str]) -> dict[str, Any]:
    """Inside the ensemble every tensor has the same name as in the models."""
    return {
        "model_name": model,
        "model_version": -1,
        "input_map": {name: name for name in takes},
        "output_map": {name: name for name in gives},
    }


def read_config(path: Path) -> ModelConfig:
    """Parse a config.pbtxt. Raises ReportedError if it is not one."""
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ReportedError(
            f"{path} is not a model configuration ({error}); correct it, or delete it and export again."
        ) from None


def _leading_comment(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return "".join(takewhile(lambda line: line.startswith("#"), lines))


def _copy_shapes(source: ModelConfig, target: ModelConfig) -> None:
    """Copy the dims of every tensor from ``source`` to ``target``, including those of its warm-up, by name."""
    dims = {tensor.name: tensor.dims for tensor in (*source.input, *source.output)}
    tensors = [(tensor.name, tensor) for tensor in (*target.input, *target.output)]
    for warmup in target.model_warmup:
        tensors.extend(warmup.inputs.items())
    for name, tensor in tensors:
        if name in dims:
            tensor.dims[:] = dims[name]


def _copy_graph_level(source: ModelConfig, target: ModelConfig) -> None:
    """Copy the level of ``source`` to ``target``, unless an operator has set one that no export sets."""
    level = source.optimization.graph.level
    if level and not target.optimization.graph.level:
        target.optimization.graph.level = level
    elif not level and target.optimization.graph.level == _HALF_GRAPH_LEVEL:
        target.optimization.graph.ClearField("level")
        if not target.optimization.graph.ByteSize():
            target.optimization.ClearField("graph")
        if not target.optimization.ByteSize():
            target.ClearField("optimization")
