"""Triton's configuration of each model: a template, which ``triton_models`` repeats, with the shapes of the model."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from preprocess_ensemble.contract import DEFAULT_NAME, DEFAULT_NAMES, EMBEDDING, PIXELS, TOKENS, ModelNames
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.passport import Passport
from preprocess_ensemble.model_repository.tensorrt import Tensorrt, take_off_tensorrt

ModelConfig = Any  # Triton's ModelConfig messages, which have no type annotations

MODEL_FILE: Final = "model.onnx"
PASSPORT_FILE: Final = "model.json"

_WARM_UP_FILE: Final = "full-context"
"""File with a row of tokens whose largest id is the last, because a text tower computes only up to the largest id."""

_TEMPLATES: Final = Path(__file__).with_name("templates")

_HALF_GRAPH_LEVEL: Final = 1
"""Level of extended optimisation. With full optimisation, ONNX Runtime 1.31 crashes on an fp16 model on a CPU."""

_MODEL_PY: Final = '''\
"""The {step} step of the ensemble; its code is part of the installed package."""

from preprocess_ensemble.{module} import TritonPythonModel

__all__ = ("TritonPythonModel",)
'''


def pending_files(
    repository: Path, passport: Passport, names: ModelNames = DEFAULT_NAMES, tensorrt: Tensorrt | None = None
) -> dict[Path, str]:
    """Return the files, with their text, that ``repository`` needs for a model, without those that need no change.

    With ``tensorrt`` the image encoder, and the text encoder of an fp16 export, run on TensorRT. Without ``tensorrt``,
    an encoder that an earlier export has set to TensorRT stays there. An int8 export never runs on TensorRT.

    An existing config.pbtxt may contain an operator's changes. Only its shapes, its level of optimisation, TensorRT and
    a warm-up with zeros for tokens are set; its leading comment stays. Raises ReportedError if a file cannot be read.
    """
    made = {
        names.preprocess: ("model.py", _MODEL_PY.format(step="preprocessing", module="triton_model")),
        names.tokenize: ("model.py", _MODEL_PY.format(step="tokenizing", module="triton_tokenizer")),
        # Triton needs a version directory, and git does not track empty directories.
        names.image: (".gitkeep", ""),
        names.text: (".gitkeep", ""),
    }
    pending = {}
    for name in (*names.of_images, *(() if passport.text is None else names.of_texts)):
        file, content = made.get(name, ("", ""))
        if file and not (beside := version_directory(repository, name) / file).exists():
            pending[beside] = content
        path = repository / name / "config.pbtxt"
        text = path.read_bytes() if path.exists() else _template(name, names)
        config = _parsed(text, path)
        before = config.SerializeToString(deterministic=True)
        _set_shapes(name, config, passport, names)
        if name in (names.encoder, names.text_encoder):
            earlier = Tensorrt.written_into(config)
            taken = ("fp16", "fp32") if name == names.encoder else ("fp16",)
            if (chosen := tensorrt or earlier) and passport.weights_dtype in taken:
                chosen.write_into(config, passport)
            elif earlier:
                take_off_tensorrt(config)
        if config.SerializeToString(deterministic=True) != before:
            comment = takewhile(lambda line: line.startswith(b"#"), text.splitlines(keepends=True))
            changed = text_format.MessageToString(config, use_short_repeated_primitives=True)
            pending[path] = f"{b''.join(comment).decode()}\n{changed}"
        elif not path.exists():
            pending[path] = text.decode()
        if name == names.text_encoder and passport.text is not None:
            # The row is int32; the id 1 is in any vocabulary.
            row = "\0" * 4 * (passport.text.tokenizer["context_length"] - 1) + "\1\0\0\0"
            warm_up = repository / name / "warmup" / _WARM_UP_FILE
            if not warm_up.exists() or warm_up.read_bytes() != row.encode():
                pending[warm_up] = row
    return pending


def version_directory(repository: Path, model: str = DEFAULT_NAMES.encoder) -> Path:
    return repository / model / "1"


def installed_passport(repository: Path, names: ModelNames = DEFAULT_NAMES) -> Passport | None:
    """Return the passport in ``repository``; None if the model is missing or incomplete, or cannot be served here."""
    directory = version_directory(repository, names.encoder)
    try:
        passport = Passport.from_json((directory / PASSPORT_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return passport if (directory / MODEL_FILE).exists() else None


def read_config(path: Path) -> ModelConfig:
    return _parsed(path.read_bytes(), path)


def _parsed(text: bytes, path: Path) -> ModelConfig:
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ReportedError(
            f"{path} is not a model configuration ({error}); correct it, or delete it and export again."
        ) from None


def _template(name: str, names: ModelNames) -> bytes:
    """Only names of models begin with "clip_" in templates."""
    text = (_TEMPLATES / f"{DEFAULT_NAME}{name.removeprefix(names.name)}.pbtxt").read_bytes()
    return text.replace(f"{DEFAULT_NAME}_".encode(), f"{names.name}_".encode())


def _set_shapes(name: str, config: ModelConfig, passport: Passport, names: ModelNames) -> None:
    """Set the sizes, also in the warm-up, and an encoder's level of optimisation unless an operator has set another."""
    dims = {
        PIXELS: [*passport.preprocess["size"], 3],
        TOKENS: [] if passport.text is None else [passport.text.tokenizer["context_length"]],
        EMBEDDING: [passport.dimension],
    }
    tensors = [(tensor.name, tensor) for tensor in (*config.input, *config.output)]
    for warmup in config.model_warmup:
        tensors.extend(warmup.inputs.items())
        # Replace zeros: they end at the first token, and would warm up only for texts of one token.
        if TOKENS in warmup.inputs and warmup.inputs[TOKENS].zero_data:
            warmup.inputs[TOKENS].input_data_file = _WARM_UP_FILE
    for tensor_name, tensor in tensors:
        if tensor_name in dims:
            tensor.dims[:] = dims[tensor_name]
    level = config.optimization.graph.level
    if name not in (names.encoder, names.text_encoder) or level not in (0, _HALF_GRAPH_LEVEL):
        return
    if passport.weights_dtype == "fp16":
        config.optimization.graph.level = _HALF_GRAPH_LEVEL
    elif level:
        config.optimization.graph.ClearField("level")
        if not config.optimization.graph.ByteSize():
            config.optimization.ClearField("graph")
        if not config.optimization.ByteSize():
            config.ClearField("optimization")
