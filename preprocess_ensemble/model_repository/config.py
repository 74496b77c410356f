"""The configuration of the model repository that Triton serves: a template for each model, and the model's shapes.

The templates are those of a model of 224 px and 512 dimensions; the tracked ``triton_models/*/config.pbtxt`` are the
same text, which a test compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from preprocess_ensemble.contract import EMBEDDING, ENCODER, ENSEMBLE, PIXELS, PREPROCESSOR
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.passport import Passport

ModelConfig = Any
"""The generated messages have no type annotations."""

MODEL_FILE: Final = "model.onnx"
PASSPORT_FILE: Final = "model.json"

_TEMPLATES: Final = Path(__file__).with_name("templates")

_HALF_GRAPH_LEVEL: Final = 1
"""Extended optimisation: with full optimisation, ONNX Runtime 1.31 crashes on an fp16 model on a CPU."""

_MODEL_PY: Final = '''\
"""The preprocessing step of the ensemble; its code is part of the installed package."""

from preprocess_ensemble.triton_model import TritonPythonModel

__all__ = ("TritonPythonModel",)
'''


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
    found = {name: read_config(_TEMPLATES / f"{name}.pbtxt") for name in (ENSEMBLE, PREPROCESSOR, ENCODER)}
    for name, config in found.items():
        _set_shapes(name, config, shapes)
    return found


def pending_files(repository: Path, shapes: Shapes) -> dict[Path, str]:
    """Return the files, with their text, that ``repository`` needs for a model of these ``shapes``.

    An existing config.pbtxt may contain an operator's changes: only its shapes are set, and its leading comment stays.
    If its shapes are right already, it is not in the result. Raises ReportedError if one cannot be read.
    """
    pending = {}
    for name in (ENSEMBLE, PREPROCESSOR, ENCODER):
        path = repository / name / "config.pbtxt"
        source = path if path.exists() else _TEMPLATES / f"{name}.pbtxt"
        config = read_config(source)
        before = config.SerializeToString(deterministic=True)
        _set_shapes(name, config, shapes)
        if config.SerializeToString(deterministic=True) != before:
            pending[path] = _leading_comment(source) + config_text(config)
        elif source != path:
            pending[path] = source.read_text(encoding="utf-8")
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


def read_config(path: Path) -> ModelConfig:
    """Parse a config.pbtxt. Raises ReportedError if it is not one."""
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ReportedError(
            f"{path} is not a model configuration ({error}); correct it, or delete it and export again."
        ) from None


def config_text(config: ModelConfig) -> str:
    """Return the text of a config.pbtxt, without a comment."""
    text: str = text_format.MessageToString(config, use_short_repeated_primitives=True)
    return text


def _leading_comment(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return "".join(takewhile(lambda line: line.startswith("#"), lines)) + "\n"


def _set_shapes(name: str, config: ModelConfig, shapes: Shapes) -> None:
    """Set the sizes of pixels and vectors, those of the warm-up too, and the encoder's level of optimisation.

    The level stays if an operator has set one that no export sets.
    """
    dims = {PIXELS: [shapes.height, shapes.width, 3], EMBEDDING: [shapes.dimension]}
    tensors = [(tensor.name, tensor) for tensor in (*config.input, *config.output)]
    for warmup in config.model_warmup:
        tensors.extend(warmup.inputs.items())
    for tensor_name, tensor in tensors:
        if tensor_name in dims:
            tensor.dims[:] = dims[tensor_name]
    level = config.optimization.graph.level
    if name != ENCODER or level not in (0, _HALF_GRAPH_LEVEL):
        return
    if shapes.half:
        config.optimization.graph.level = _HALF_GRAPH_LEVEL
    elif level:
        config.optimization.graph.ClearField("level")
        if not config.optimization.graph.ByteSize():
            config.optimization.ClearField("graph")
        if not config.optimization.ByteSize():
            config.ClearField("optimization")
