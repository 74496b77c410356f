"""Exports an open_clip model to an ONNX file that takes raw pixels, checks it, and installs it.

The graph is written through PyTorch if PyTorch and open_clip are installed, and otherwise from a skeleton; the file is
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.contract import DEFAULT_NAME, ModelNames
from preprocess_ensemble.export.atomic_install import install, require_space, staging_directory, write
from preprocess_ensemble.export.model_source import SKELETON_SUFFIX, TORCHSCRIPT_SUFFIX, ExportableModel, WrongChoice
from preprocess_ensemble.export.parity import REQUIRED_COSINE
from preprocess_ensemble.export.skeleton_model import SkeletonModel
from preprocess_ensemble.export.towers import fingerprint_of, needed_bytes, write_image_tower, write_text_tower
from preprocess_ensemble.model_repository.config import (
    MODEL_FILE,
    PASSPORT_FILE,
    Shapes,
    encoder_directory,
    installed_passport,
    pending_files,
    text_encoder_directory,
    tokenizer_directory,
)

if TYPE_CHECKING:
    from torch import nn

    from preprocess_ensemble.model_repository.passport import Passport, TextTower

PRECISIONS: Final = tuple(REQUIRED_COSINE)


def export_model(
    *,
    model: str = "ViT-B-32",
    pretrained: str = "laion2b_s34b_b79k",
    precision: str = "fp32",
    repository: Path = Path("triton_models"),
    name: str = DEFAULT_NAME,
    text: bool = True,
    force: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> Passport:
    """Export ``model`` into the Triton model ``repository`` and return its passport.

    ``model`` is one of open_clip's model names, the path of a JSON file in its format, of a skeleton, or of one of
    SSCD's TorchScript files, which have their weights inside;
    ``pretrained`` is a tag, the path of a checkpoint, or ``random[:SEED]``. Several models can be in one repository,
    each with its ``name``. If the repository does not exist, it is created completely. ``text`` is whether to export
    the text tower as well; one that is installed stays if it belongs to the same image tower, else it is removed. What
    is installed already is not exported again unless ``force``. ``report`` receives one line before each step that
    takes time.

    Raises ReportedError. After an error or an interruption the model that was installed before stays.
    """
    if precision not in PRECISIONS:
        raise WrongChoice(f"Unknown precision {precision!r}; choose {' or '.join(PRECISIONS)}.")
    try:
        names = ModelNames(name)
    except ValueError as error:
        raise WrongChoice(f"{error}.") from None
    report(f"loading {model}, weights {pretrained}")
    exportable = load_exportable(model, pretrained)
    source = exportable.source

    directory = encoder_directory(repository, names)
    directory.mkdir(parents=True, exist_ok=True)
    installed = installed_passport(repository, names)
    fingerprint = fingerprint_of(exportable, precision)
    kept_text = None if installed is None or installed.fingerprint != fingerprint else installed.text
    if kept_text is not None and not _is_complete(repository, names, kept_text):
        kept_text = None
    kept = None
    if installed and not force and (installed.fingerprint, installed.pretrained) == (fingerprint, source.pretrained):
        kept = replace(installed, text=kept_text)
    with_text = text and exportable.text is not None and (force or kept_text is None)
    obsolete = [] if with_text or kept_text else _text_folders(repository, names)
    if kept is not None and not with_text and not obsolete:
        report(f"{kept.id} is installed already; --force exports it again")
        write(pending_files(repository, _shapes(kept), names))
        return kept

    needed = needed_bytes(exportable, image=kept is None, text=with_text)
    require_space(directory, needed)
    measured = []
    with staging_directory(directory.parent, needed) as stage:
        files: dict[Path, Path] = {}
        passport = kept
        if passport is None:
            image = write_image_tower(exportable, stage, precision, report)
            passport = replace(image.passport, text=kept_text)
            measured.append(image.agreement)
            files |= {file: directory / file.name for file in image.files}
        if with_text:
            stage_of_text = stage / "text"
            stage_of_text.mkdir()
            tower = write_text_tower(exportable, stage_of_text, precision, report)
            passport = replace(passport, text=tower.passport)
            measured.append(f"text tower: {tower.agreement}")
            files |= {file: text_encoder_directory(repository, names) / file.name for file in tower.files}
            files |= {file: tokenizer_directory(repository, names) / file.name for file in tower.tokenizer_files}
        passport_file = stage / PASSPORT_FILE
        passport_file.write_text(passport.to_json(), encoding="ascii")
        # Any problem of the repository shows here, before anything in it changes.
        pending = pending_files(repository, _shapes(passport), names)
        adds = kept is not None and installed is not None and installed.text is None
        install(files, pending, obsolete, (passport_file, directory / PASSPORT_FILE), adds=adds)
        new = set(files.values())
        for folder in {file.parent for file in new}:
            for weights_file in folder.glob("model-*.data"):
                if weights_file not in new:
                    weights_file.unlink()
    report(
        f"installed {passport.id}: {'; '.join(measured)}" if measured else f"removed the text tower of {passport.id}"
    )
    if precision == "int8":
        report(
            "serve and compare int8 vectors with one version of ONNX Runtime: others give slightly different vectors"
        )
    return passport


def _is_complete(repository: Path, names: ModelNames, text: TextTower) -> bool:
    """Return whether the files of an installed text tower are there."""
    model = text_encoder_directory(repository, names) / MODEL_FILE
    tokenizer = tokenizer_directory(repository, names)
    return model.exists() and all((tokenizer / file).exists() for file in text.tokenizer_sha256)


def _text_folders(repository: Path, names: ModelNames) -> list[Path]:
    """Return the folders of an exported text tower; none if the tokenizing step, which is last, is not of this package.

    That step is written first and removed last, so it is there whatever an export that was killed has left.
    """
    model_py = tokenizer_directory(repository, names) / "model.py"
    if not model_py.exists() or "preprocess_ensemble" not in model_py.read_text(encoding="utf-8"):
        return []
    return [repository / name for name in reversed(names.of_texts) if (repository / name).is_dir()]


def load_exportable(model: str, pretrained: str) -> ExportableModel:
    """Return the model with its weights: through PyTorch if it is installed, otherwise from its skeleton.

    Raises ExportError.
    """
    if model.endswith(TORCHSCRIPT_SUFFIX):
        try:
            from preprocess_ensemble.export.pytorch.torchscript import TorchScriptModel
        except ModuleNotFoundError as error:
            raise WrongChoice(f"{model} needs {error.name}: pip install 'clip-triton[export]'.") from None
        return TorchScriptModel(Path(model))
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
    context_length = passport.text.tokenizer["context_length"] if passport.text else None
    return Shapes(
        height=height,
        width=width,
        dimension=passport.dimension,
        context_length=context_length,
        half=passport.precision == "fp16",
    )
