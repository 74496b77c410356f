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

from preprocess_ensemble.contract import DEFAULT_NAME, DEFAULT_NAMES, EMBEDDING, PIXELS, TOKENS, ModelNames
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
"""The {step} step of the ensemble; its code is part of the installed package."""

from preprocess_ensemble.{module} import TritonPythonModel

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
    context_length: int | None = None
    """Number of token ids of a text; None if the model is exported without its text tower."""
    half: bool = False
    """Whether the weights are fp16."""


DEFAULT_SHAPES: Final = Shapes(height=224, width=224, dimension=512)


def configs(shapes: Shapes, names: ModelNames = DEFAULT_NAMES) -> dict[str, ModelConfig]:
    """Return model name -> ModelConfig. Everything is explicit, so the server has nothing to complete."""
    found = {}
    for name in _models(shapes, names):
        found[name] = _parse(_template(name, names), _TEMPLATES)
        _set_shapes(name, found[name], shapes, names)
    return found


def pending_files(repository: Path, shapes: Shapes, names: ModelNames = DEFAULT_NAMES) -> dict[Path, str]:
    """Return the files, with their text, that ``repository`` needs for a model of these ``shapes``.

    An existing config.pbtxt may contain an operator's changes: only its shapes are set, and its leading comment stays.
    If its shapes are right already, it is not in the result. Raises ReportedError if one cannot be read.
    """
    pending = {}
    made = {
        names.preprocess: ("model.py", _MODEL_PY.format(step="preprocessing", module="triton_model")),
        names.tokenize: ("model.py", _MODEL_PY.format(step="tokenizing", module="triton_tokenizer")),
        # Triton needs a version directory, and git does not track empty ones.
        names.image: (".gitkeep", ""),
        names.text: (".gitkeep", ""),
    }
    for name, (file, text) in made.items():
        path = repository / name / "1" / file
        if name in _models(shapes, names) and not path.exists():
            pending[path] = text
    for name in _models(shapes, names):
        path = repository / name / "config.pbtxt"
        exists = path.exists()
        text = _read(path) if exists else _template(name, names)
        config = _parse(text, path)
        before = config.SerializeToString(deterministic=True)
        _set_shapes(name, config, shapes, names)
        if config.SerializeToString(deterministic=True) != before:
            pending[path] = _leading_comment(text) + config_text(config)
        elif not exists:
            pending[path] = text
    return pending


def encoder_directory(repository: Path, names: ModelNames = DEFAULT_NAMES) -> Path:
    """Return the directory of the image encoder's only version, with model.onnx and model.json."""
    return repository / names.encoder / "1"


def text_encoder_directory(repository: Path, names: ModelNames = DEFAULT_NAMES) -> Path:
    """Return the directory of the text encoder's only version, with its model.onnx."""
    return repository / names.text_encoder / "1"


def tokenizer_directory(repository: Path, names: ModelNames = DEFAULT_NAMES) -> Path:
    """Return the directory that has the files of the tokenizer."""
    return repository / names.tokenize / "1"


def installed_passport(repository: Path, names: ModelNames = DEFAULT_NAMES) -> Passport | None:
    """Return the passport of the model in ``repository``, without loading the model.

    None if there is no model, if it is incomplete, or if this package cannot serve it.
    """
    directory = encoder_directory(repository, names)
    try:
        passport = Passport.from_json((directory / PASSPORT_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return passport if (directory / MODEL_FILE).exists() else None


def read_config(path: Path) -> ModelConfig:
    """Parse a config.pbtxt. Raises ReportedError if it is not one."""
    return _parse(_read(path), path)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _no_config(path, error) from None


def _parse(text: str, path: Path) -> ModelConfig:
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise _no_config(path, error) from None


def _no_config(path: Path, error: Exception) -> ReportedError:
    return ReportedError(f"{path} is not a model configuration ({error}); correct it, or delete it and export again.")


def config_text(config: ModelConfig) -> str:
    """Return the text of a config.pbtxt, without a comment."""
    text: str = text_format.MessageToString(config, use_short_repeated_primitives=True)
    return text


def _models(shapes: Shapes, names: ModelNames) -> tuple[str, ...]:
    return names.of_images if shapes.context_length is None else (*names.of_images, *names.of_texts)


def _template(name: str, names: ModelNames) -> str:
    """Return the text of a template for the model ``name``; in a template, "clip_" begins names of models only."""
    text = (_TEMPLATES / f"{DEFAULT_NAME}{name.removeprefix(names.name)}.pbtxt").read_text(encoding="utf-8")
    return text.replace(f"{DEFAULT_NAME}_", f"{names.name}_")


def _leading_comment(text: str) -> str:
    return "".join(takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True))) + "\n"


def _set_shapes(name: str, config: ModelConfig, shapes: Shapes, names: ModelNames) -> None:
    """Set the sizes of pixels, tokens and vectors, those of the warm-up too, and an encoder's level of optimisation.

    The level stays if an operator has set one that no export sets.
    """
    dims = {
        PIXELS: [shapes.height, shapes.width, 3],
        TOKENS: [shapes.context_length],
        EMBEDDING: [shapes.dimension],
    }
    tensors = [(tensor.name, tensor) for tensor in (*config.input, *config.output)]
    for warmup in config.model_warmup:
        tensors.extend(warmup.inputs.items())
    for tensor_name, tensor in tensors:
        if tensor_name in dims:
            tensor.dims[:] = dims[tensor_name]
    level = config.optimization.graph.level
    if name not in (names.encoder, names.text_encoder) or level not in (0, _HALF_GRAPH_LEVEL):
        return
    if shapes.half:
        config.optimization.graph.level = _HALF_GRAPH_LEVEL
    elif level:
        config.optimization.graph.ClearField("level")
        if not config.optimization.graph.ByteSize():
            config.optimization.ClearField("graph")
        if not config.optimization.ByteSize():
            config.ClearField("optimization")
