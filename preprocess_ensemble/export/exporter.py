"""Exports an open_clip model to an ONNX file that takes raw pixels, checks it, and installs it.

The graph is written through PyTorch if PyTorch and open_clip are installed, and otherwise from a skeleton; the file is
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.export import parity
from preprocess_ensemble.export.atomic_install import install, require_space, staging_directory, write_atomically
from preprocess_ensemble.export.canary import canary_image
from preprocess_ensemble.export.model_source import (
    SKELETON_SUFFIX,
    ExportableModel,
    GraphRequest,
    ModelSource,
    WrongChoice,
)
from preprocess_ensemble.export.quantization import quantize
from preprocess_ensemble.export.skeleton_model import SkeletonModel
from preprocess_ensemble.export.state_dict import weights_sha256
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.model_repository.config import (
    PASSPORT_FILE,
    Shapes,
    encoder_directory,
    installed_passport,
    pending_files,
)
from preprocess_ensemble.model_repository.passport import Canary, Parity, Passport, compute_fingerprint

if TYPE_CHECKING:
    from torch import nn

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
    check: Callable[..., Parity] = parity.check,
    max_file_bytes: int = _MAX_FILE_BYTES,
) -> Passport:
    """Export ``model`` into the Triton model ``repository`` and return its passport.

    ``model`` is one of open_clip's model names, the path of a JSON file in its format, or that of a skeleton;
    ``pretrained`` is a tag, the path of a checkpoint, or ``random[:SEED]``. If the repository does not exist, it is
    created completely. If the same model is installed already, nothing is exported unless ``force``. ``report``
    receives one line before each step that takes time. ``check`` is the parity check; weights of more than
    ``max_file_bytes`` go to a separate file.

    Raises ExportError, ParityError, RepositoryError or InstallError. After an error or an interruption the model that
    was installed before stays.
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

    has_data_file = exportable.weights_bytes + _GRAPH_BYTES > max_file_bytes
    # Twice the weights if they are moved to a separate file.
    needed_bytes = exportable.weights_bytes * (2 if has_data_file else 1) + _GRAPH_BYTES
    require_space(directory, needed_bytes)
    with staging_directory(directory.parent, needed_bytes) as stage:
        pixels = parity.sample_pixels(*config.size)
        request = GraphRequest(
            stage=stage, pixels=pixels, fingerprint=fingerprint, precision=precision, has_data_file=has_data_file
        )
        built = exportable.build(request, report)
        files = built.files
        if precision == "int8":
            quantize(files[-1])
        report("comparing it with PyTorch" if built.measured is None else "checking it")
        measured = check(files[-1], pixels, built.expected, fingerprint, precision)
        if built.measured is not None:
            lowest = min(measured.min_cosine, built.measured.min_cosine)
            measured = replace(measured, images=built.measured.images, min_cosine=lowest)
        encoder = parity.Encoder(files[-1], precision)
        canary = _canary(lambda image: encoder(preprocess(decode(image), config)[None])[0][0])
        passport = _passport(source, weights, config, precision, measured, canary)
        passport_file = stage / PASSPORT_FILE
        passport_file.write_text(passport.to_json(), encoding="ascii")
        # Any problem of the repository shows here, before anything in it changes.
        pending = pending_files(repository, _shapes(passport))
        install(files, commit_marker=passport_file, directory=directory)
        _write_pending(pending)
        for weights_file in directory.glob("model-*.data"):
            if weights_file.name not in {file.name for file in files}:
                weights_file.unlink()
    report(f"installed {passport.id}: cosine to PyTorch {measured.min_cosine:.7f}, {measured.required} is required")
    if precision == "int8":
        report(
            "serve and compare int8 vectors with one version of ONNX Runtime: others give slightly different vectors"
        )
    return passport


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


def describe_model(
    model: str, pretrained: str, network: nn.Module, embed_canary: Callable[[bytes], Sequence[float]]
) -> Passport:
    """Return a passport for a network of :func:`load_model` that another service runs in fp32, without an export.

    It has the id and the fingerprint of the exported model, since the vectors are the same. ``embed_canary`` embeds
    one encoded image.
    """
    from preprocess_ensemble.export.pytorch.open_clip_model import find_source, preprocessing_of
    from preprocess_ensemble.export.pytorch.recording import numpy_state

    source = find_source(model, pretrained)
    # Exports are compared with this network.
    measured = Parity(images=0, min_cosine=1.0, required=parity.REQUIRED_COSINE["fp32"])
    canary = _canary(embed_canary)
    return _passport(source, weights_sha256(numpy_state(network)), preprocessing_of(network), "fp32", measured, canary)


def _passport(
    source: ModelSource, weights: str, config: PreprocessConfig, precision: str, measured: Parity, canary: Canary
) -> Passport:
    preprocessing = config.to_mapping()
    return Passport(
        model=source.model,
        pretrained=source.pretrained,
        weights_sha256=weights,
        preprocess=preprocessing,
        preprocess_id=config.id,
        dimension=len(canary.vector),
        precision=precision,
        fingerprint=compute_fingerprint(
            model=source.model, weights_sha256=weights, preprocess=preprocessing, precision=precision
        ),
        parity=measured,
        canary=canary,
        opset=parity.OPSET,
        ir_version=parity.IR_VERSION,
    )


def _canary(embed: Callable[[bytes], Sequence[float]]) -> Canary:
    image = canary_image()
    # Nine digits distinguish any two float32 numbers.
    return Canary(image=image, vector=tuple(float(f"{number:.9g}") for number in embed(image)))


def _shapes(passport: Passport) -> Shapes:
    height, width = passport.preprocess["size"]
    return Shapes(height=height, width=width, dimension=passport.dimension, half=passport.precision == "fp16")


def _write_pending(pending: dict[Path, str]) -> None:
    for path, text in pending.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
