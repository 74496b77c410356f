"""Exports an open_clip model to an ONNX file that takes raw pixels, checks it, and installs it.

The graph is written through PyTorch if PyTorch and open_clip are installed, and otherwise from a skeleton; the file is
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.export import parity
from preprocess_ensemble.export.atomic_install import install, require_space, staging_directory
from preprocess_ensemble.export.model_source import SKELETON_SUFFIX, ExportableModel, GraphOptions, WrongChoice
from preprocess_ensemble.export.onnx_file import IR_VERSION, OPSET, quantize
from preprocess_ensemble.export.parity import canary_image
from preprocess_ensemble.export.skeleton_model import SkeletonModel
from preprocess_ensemble.model_repository.config import (
    PASSPORT_FILE,
    Shapes,
    encoder_directory,
    installed_passport,
    pending_files,
)
from preprocess_ensemble.model_repository.passport import Canary, Parity, Passport, compute_fingerprint
from preprocess_ensemble.runtimes.onnx_session import open_session, session_options
from preprocess_ensemble.whole_file import whole_file

if TYPE_CHECKING:
    from torch import nn

    from preprocess_ensemble.runtimes.model import Session

PRECISIONS: Final = tuple(parity.REQUIRED_COSINE)

_MAX_FILE_BYTES: Final = 2_000_000_000
"""A protobuf message is limited to 2 GiB; larger weights go to a separate file."""
_GRAPH_BYTES: Final = 8_000_000
"""Room for the nodes of the graph, the passport and the configuration: everything but the weights."""


def export_model(
    *,
    model: str = "ViT-B-32",
    pretrained: str = "laion2b_s34b_b79k",
    precision: str = "fp32",
    repository: Path = Path("triton_models"),
    force: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> Passport:
    """Export ``model`` into the Triton model ``repository`` and return its passport.

    ``model`` is one of open_clip's model names, the path of a JSON file in its format, or that of a skeleton;
    ``pretrained`` is a tag, the path of a checkpoint, or ``random[:SEED]``. If the repository does not exist, it is
    created completely. If the same model is installed already, nothing is exported unless ``force``. ``report``
    receives one line before each step that takes time.

    Raises ReportedError. After an error or an interruption the model that was installed before stays.
    """
    if precision not in PRECISIONS:
        raise WrongChoice(f"Unknown precision {precision!r}; choose {' or '.join(PRECISIONS)}.")
    report(f"loading {model}, weights {pretrained}")
    exportable = load_exportable(model, pretrained)
    source, config, weights = exportable.source, exportable.config, exportable.weights_sha256
    fingerprint = compute_fingerprint(
        model=source.model, weights_sha256=weights, preprocess=config.to_mapping(), precision=precision
    )

    directory = encoder_directory(repository)
    directory.mkdir(parents=True, exist_ok=True)
    installed = installed_passport(repository)
    if installed and not force and (installed.fingerprint, installed.pretrained) == (fingerprint, source.pretrained):
        report(f"{installed.id} is installed already; --force exports it again")
        _write_pending(pending_files(repository, _shapes(installed)))
        return installed

    has_data_file = exportable.weights_bytes + _GRAPH_BYTES > _MAX_FILE_BYTES
    # Twice the weights if they are moved to a separate file.
    needed_bytes = exportable.weights_bytes * (2 if has_data_file else 1) + _GRAPH_BYTES
    require_space(directory, needed_bytes)
    with staging_directory(directory.parent, needed_bytes) as stage:
        options = GraphOptions(fingerprint=fingerprint, precision=precision, has_data_file=has_data_file, report=report)
        built = exportable.build(stage, options)
        file = built.files[-1]
        if precision == "int8":
            quantize(file)
        is_pytorchs = built.other_weights is None
        report("comparing it with PyTorch" if is_pytorchs else "checking it")
        pixels = parity.check_pixels(config)
        lowest, vectors = parity.check(_opened(file, precision), pixels, built.expected, fingerprint, precision)
        required = parity.REQUIRED_COSINE[precision]
        worst = lowest if built.other_weights is None else min(lowest, built.other_weights)
        measured = Parity(images=len(pixels) if is_pytorchs else 0, min_cosine=worst, required=required)
        passport = Passport(
            model=source.model,
            pretrained=source.pretrained,
            weights_sha256=weights,
            preprocess=config.to_mapping(),
            preprocess_id=config.id,
            dimension=vectors.shape[1],
            precision=precision,
            fingerprint=fingerprint,
            parity=measured,
            canary=Canary.of(canary_image(), vectors[-1]),
            opset=OPSET,
            ir_version=IR_VERSION,
        )
        passport_file = stage / PASSPORT_FILE
        passport_file.write_text(passport.to_json(), encoding="ascii")
        # Any problem of the repository shows here, before anything in it changes.
        pending = pending_files(repository, _shapes(passport))
        install(built.files, commit_marker=passport_file, directory=directory)
        _write_pending(pending)
        for weights_file in directory.glob("model-*.data"):
            if weights_file.name not in {file.name for file in built.files}:
                weights_file.unlink()
    if is_pytorchs:
        report(f"installed {passport.id}: cosine to PyTorch {lowest:.7f}, {required} is required")
    else:
        rounded = "" if precision == "fp32" else f", and {precision} one of {lowest:.7f} to fp32"
        report(
            f"installed {passport.id}: its graph has a cosine of {built.other_weights:.7f} to PyTorch with other "
            f"weights{rounded}; PyTorch's vectors of these weights are not known here"
        )
    if precision == "int8":
        report(
            "serve and compare int8 vectors with one version of ONNX Runtime: others give slightly different vectors"
        )
    return passport


def _opened(file: Path, precision: str) -> Session:
    """Open a model with the options that config.pbtxt gives it: see ``model_repository/config.py``."""
    from onnxruntime import GraphOptimizationLevel

    options = session_options()
    if precision == "fp16":
        options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session: Session = open_session(file, options)
    return session


def load_exportable(model: str, pretrained: str) -> ExportableModel:
    """Return the model with its weights: through PyTorch if it is installed, otherwise from its skeleton.

    Raises ExportError.
    """
    if not model.endswith(SKELETON_SUFFIX):
        try:
            from preprocess_ensemble.export.pytorch.model import PyTorchModel
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("torch", "open_clip"):
                raise
        else:
            return PyTorchModel(model, pretrained)
    return SkeletonModel(model, pretrained)


def load_model(model: str, pretrained: str) -> nn.Module:
    """Return the open_clip network that :func:`export_model` exports, in fp32, on the CPU, in evaluation mode.

    It needs PyTorch. Raises ExportError.
    """
    from preprocess_ensemble.export.pytorch.open_clip_model import find_source, load_open_clip_model

    return load_open_clip_model(find_source(model, pretrained))


def _shapes(passport: Passport) -> Shapes:
    height, width = passport.preprocess["size"]
    return Shapes(height=height, width=width, dimension=passport.dimension, half=passport.precision == "fp16")


def _write_pending(pending: dict[Path, str]) -> None:
    for path, text in pending.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(text.encode("ascii"))
