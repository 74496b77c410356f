"""The model repository: what Triton reads to serve an exported model, built as protobuf messages.

The tracked ``triton_models/*/config.pbtxt`` are what this module writes for a model of 224 px and 512 dimensions; a
test holds them to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = (
    "DEFAULT_SHAPES",
    "Shapes",
    "configs",
    "encoder_directory",
    "installed_passport",
    "pending_files",
    "read_config",
    "render",
)

# The generated messages carry no types.
ModelConfig = Any

MODEL_FILE: Final = "model.onnx"
PASSPORT_FILE: Final = "model.json"

MAX_BATCH_SIZE: Final = 32

_HALF_GRAPH_LEVEL: Final = 1
"""Extended optimisation: with all of it, ONNX Runtime 1.31 crashes on an fp16 model on a CPU."""

_MODEL_PY: Final = '''\
"""The preprocessing step of the ensemble; its code is part of the installed package."""

from preprocess_ensemble.triton_model import TritonPythonModel

__all__ = ("TritonPythonModel",)
'''

_COMMENTS: Final = {
    ENSEMBLE: """\
# One encoded image file in, its embedding out. Every row is an image; a bad one is a row of NaN with its status.
# An ensemble has no batcher of its own: its steps batch across requests.
""",
    PREPROCESSOR: """\
# Decodes, resizes and crops; tells of each image in "status" and "error". "model" is the passport of the model, made
# only when it is asked for, which is a client's handshake.
# - One instance: it decodes a whole batch at once with threads of its own, decode_threads of them (0: one a core).
#   dynamic_batching hands it the images of many requests in one call.
# - passport is relative to this model's directory.
# - fast_decode: large JPEG files are decoded at a half, a quarter or an eighth of their size, as far as the model's
#   input allows; docs/preprocessing.md says what that changes. "false" gives exact pixels for all.
# - The other parameters limit what one image may cost; max_decode_seconds is processor time for all of one request.
# - No default_queue_policy: with any, this server sleeps between batches (up to 500 ms). Clients shed load.
""",
    ENCODER: """\
# ONNX Runtime. Normalisation, L2 norm, NaN for failed rows and the fingerprint are part of the graph.
# - KIND_AUTO (the default), count 1: one instance on each GPU, or one on the CPU, where two would fight for the cores.
# - dynamic_batching without a preferred size or a delay: whatever waits when the model is free is one batch.
# - model_warmup: "ready" means warm, for a single image and for the largest batch.
# - No default_queue_policy: with any, this server sleeps between batches (up to 500 ms). Clients shed load.
""",
}


class RepositoryError(ReportedError):
    """The model repository is not as it must be; the message is one sentence with the remedy."""


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """What of the configuration depends on the model."""

    height: int
    width: int
    """Of the pixels that go into the encoder."""
    dimension: int
    """Length of an embedding."""
    half: bool = False
    """Whether the weights are fp16."""


DEFAULT_SHAPES: Final = Shapes(height=224, width=224, dimension=512)


def configs(shapes: Shapes) -> dict[str, ModelConfig]:
    """Return model name -> ModelConfig. All is explicit, so that the server need not complete anything."""
    pixels = [shapes.height, shapes.width, 3]
    return {
        ENSEMBLE: _ensemble(shapes.dimension),
        PREPROCESSOR: _preprocessor(pixels),
        ENCODER: _encoder(pixels, shapes.dimension, half=shapes.half),
    }


def render(name: str, config: ModelConfig, comment: str | None = None) -> str:
    """Return the text of ``name``'s config.pbtxt: its ``comment``, by default this module's own, and the message."""
    text: str = text_format.MessageToString(config, use_short_repeated_primitives=True)
    return f"{_COMMENTS[name] if comment is None else comment}\n{text}"


def pending_files(repository: Path, shapes: Shapes) -> dict[Path, str]:
    """Return the files, with their text, that ``repository`` lacks for a model of these ``shapes``.

    A config.pbtxt that is there is taken as an operator's: only its shapes are set, its leading comment stays, and
    where the shapes are right already it is not in the result. Raises RepositoryError where one cannot be read.
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
    # Triton wants a version directory, and git keeps none that is empty.
    keep = repository / ENSEMBLE / "1" / ".gitkeep"
    if not keep.exists():
        pending[keep] = ""
    return pending


def encoder_directory(repository: Path) -> Path:
    """Return the directory of the encoder's one version, where model.onnx and model.json lie."""
    return repository / ENCODER / "1"


def installed_passport(repository: Path) -> Passport | None:
    """Return the passport of the model that is exported in ``repository``, without loading the model.

    ``None`` where there is no model, none that is complete, or none that this package could serve.
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
        input=[_input(IMAGE, "TYPE_STRING", [1])],
        output=[
            _output(EMBEDDING, "TYPE_FP32", [dimension]),
            _output(STATUS, "TYPE_INT32", [1]),
            _output(ERROR, "TYPE_STRING", [1]),
            _output(FINGERPRINT, "TYPE_INT32", [2]),
        ],
        ensemble_scheduling=model_config_pb2.ModelEnsembling(
            step=[
                _step(PREPROCESSOR, takes=[IMAGE], gives=[PIXELS, STATUS, ERROR]),
                _step(ENCODER, takes=[PIXELS, STATUS], gives=[EMBEDDING, FINGERPRINT]),
            ]
        ),
    )


def _preprocessor(pixels: list[int]) -> ModelConfig:
    limits = DecodeLimits()
    config = model_config_pb2.ModelConfig(
        name=PREPROCESSOR,
        backend="python",
        max_batch_size=MAX_BATCH_SIZE,
        input=[_input(IMAGE, "TYPE_STRING", [1])],
        output=[
            _output(PIXELS, "TYPE_UINT8", pixels),
            _output(STATUS, "TYPE_INT32", [1]),
            _output(ERROR, "TYPE_STRING", [1]),
            _output(MODEL, "TYPE_STRING", [1]),
        ],
        instance_group=[_instances("KIND_CPU")],
        dynamic_batching=model_config_pb2.ModelDynamicBatching(),
        default_model_filename="model.py",
    )
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
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    return config


def _encoder(pixels: list[int], dimension: int, *, half: bool) -> ModelConfig:
    config = model_config_pb2.ModelConfig(
        name=ENCODER,
        backend="onnxruntime",
        max_batch_size=MAX_BATCH_SIZE,
        input=[_input(PIXELS, "TYPE_UINT8", pixels), _input(STATUS, "TYPE_INT32", [1])],
        output=[_output(EMBEDDING, "TYPE_FP32", [dimension]), _output(FINGERPRINT, "TYPE_INT32", [2])],
        instance_group=[_instances("KIND_AUTO")],
        dynamic_batching=model_config_pb2.ModelDynamicBatching(),
        default_model_filename=MODEL_FILE,
        model_warmup=[_warmup(size, pixels) for size in (1, MAX_BATCH_SIZE)],
    )
    if half:
        config.optimization.graph.level = _HALF_GRAPH_LEVEL
    return config


def _input(name: str, data_type: str, dims: list[int]) -> Any:
    return model_config_pb2.ModelInput(name=name, data_type=data_type, dims=dims)


def _output(name: str, data_type: str, dims: list[int]) -> Any:
    return model_config_pb2.ModelOutput(name=name, data_type=data_type, dims=dims)


def _step(model: str, *, takes: Iterable[str], gives: Iterable[str]) -> Any:
    """Inside the ensemble every tensor keeps the name that it has in the models."""
    return model_config_pb2.ModelEnsembling.Step(
        model_name=model,
        model_version=-1,
        input_map={name: name for name in takes},
        output_map={name: name for name in gives},
    )


def _instances(kind: str) -> Any:
    return model_config_pb2.ModelInstanceGroup(kind=kind, count=1)


def _warmup(batch_size: int, pixels: list[int]) -> Any:
    warmup = model_config_pb2.ModelWarmup
    return warmup(
        name=f"batch-{batch_size}",
        batch_size=batch_size,
        inputs={
            PIXELS: warmup.Input(data_type="TYPE_UINT8", dims=pixels, zero_data=True),
            STATUS: warmup.Input(data_type="TYPE_INT32", dims=[1], zero_data=True),
        },
    )


def read_config(path: Path) -> ModelConfig:
    """Parse a config.pbtxt. Raises RepositoryError where it is none."""
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise RepositoryError(
            f"{path} is no model configuration ({error}); correct it, or delete it and export again."
        ) from None


def _leading_comment(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    count = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "".join(lines[:count])


def _copy_shapes(source: ModelConfig, target: ModelConfig) -> None:
    """Give every tensor of ``target``, its warm-up's too, the dims that the one of that name has in ``source``."""
    dims = {tensor.name: tensor.dims for tensor in (*source.input, *source.output)}
    tensors = [(tensor.name, tensor) for tensor in (*target.input, *target.output)]
    for warmup in target.model_warmup:
        tensors.extend(warmup.inputs.items())
    for name, tensor in tensors:
        if name in dims:
            tensor.dims[:] = dims[name]


def _copy_graph_level(source: ModelConfig, target: ModelConfig) -> None:
    """Give ``target`` the level of ``source``, unless an operator has set one that no export sets."""
    level = source.optimization.graph.level
    if level and not target.optimization.graph.level:
        target.optimization.graph.level = level
    elif not level and target.optimization.graph.level == _HALF_GRAPH_LEVEL:
        target.optimization.graph.ClearField("level")
        if not target.optimization.graph.ByteSize():
            target.optimization.ClearField("graph")
        if not target.optimization.ByteSize():
            target.ClearField("optimization")
