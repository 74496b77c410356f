"""Export the towers of an open_clip model to ONNX files that take raw pixels and token ids; check and install them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import numpy as np

from preprocess_ensemble.contract import DEFAULT_NAME, ModelNames
from preprocess_ensemble.export import parity
from preprocess_ensemble.export.atomic_install import install, staging_directory, write
from preprocess_ensemble.export.exportable import ExportableModel, GraphOptions
from preprocess_ensemble.export.model_source import SKELETON_SUFFIX, WrongChoice
from preprocess_ensemble.export.onnx_file import IR_VERSION, OPSET
from preprocess_ensemble.export.skeleton import SkeletonModel
from preprocess_ensemble.export.tokenizer_files import write_tokenizer
from preprocess_ensemble.model_repository.config import (
    MODEL_FILE,
    PASSPORT_FILE,
    installed_passport,
    pending_files,
    version_directory,
)
from preprocess_ensemble.model_repository.location import HERE
from preprocess_ensemble.model_repository.passport import (
    GRAPH_REVISION,
    Canary,
    Passport,
    TextTower,
    compute_fingerprint,
    compute_text_fingerprint,
    rounded,
)
from preprocess_ensemble.model_repository.tensorrt import Tensorrt
from preprocess_ensemble.runtimes.agreement import sample_tokens
from preprocess_ensemble.text.tokenizer import Tokenizer

_MAX_FILE_BYTES: Final = 2_000_000_000  # a protobuf message is limited to 2 GiB; larger weights go to a separate file
_GRAPH_BYTES: Final = 8_000_000  # nodes of a graph, the passport and the configuration
_TOKENIZER_BYTES: Final = 40_000_000  # the largest tokenizer, that of SigLIP 2, has 34 MB


def export_model(
    *,
    model: str = "ViT-B-32",
    pretrained: str = "laion2b_s34b_b79k",
    weights_dtype: str = "fp32",
    repository: Path = Path("triton_models"),
    name: str = DEFAULT_NAME,
    text: bool = True,
    force: bool = False,
    tensorrt: Tensorrt | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Passport:
    """Export ``model`` into the Triton model ``repository`` and return its passport.

    The arguments are options of ``clip-export``, whose ``--help`` explains them. Without ``text``, an installed text
    tower stays if it belongs to the same image tower, and is removed otherwise. Towers that are already installed are
    exported again only with ``force``, or if this package writes a later revision of the graph. ``report`` receives one
    line before each step that takes time.

    Raises ReportedError. After an error or an interruption the previously installed model stays.
    """
    if tensorrt is not None:
        _check_tensorrt(weights_dtype, repository)
    try:
        names = ModelNames(name)
    except ValueError as error:
        raise WrongChoice(f"{error}.") from None
    report(f"loading {model}, weights {pretrained}")
    exportable = load_exportable(model, pretrained)

    directory = version_directory(repository, names.encoder)
    directory.mkdir(parents=True, exist_ok=True)
    installed = installed_passport(repository, names)
    same = installed if installed and installed.fingerprint == _fingerprint(exportable, weights_dtype) else None
    kept_text = same.text if same and _has_text_tower(repository, names, same) else None
    kept = None
    if same and not force and same.graph_revision == GRAPH_REVISION and same.pretrained == exportable.source.pretrained:
        kept = replace(same, text=kept_text)
    with_text = text and (force or kept_text is None or kept_text.graph_revision != GRAPH_REVISION)
    obsolete = [] if with_text or kept_text else _text_folders(repository, names)
    if kept is not None and not with_text and not obsolete:
        report(f"{kept.id} is installed already in {repository}; --force exports it again")
        write(pending_files(repository, kept, names, tensorrt))
        return kept

    weights = [exportable.image_bytes] * (kept is None) + [exportable.text_bytes] * with_text
    # Weights that are moved to a separate file take twice their size meanwhile.
    needed = sum(size * (2 if _has_data_file(size) else 1) + _GRAPH_BYTES for size in weights)
    needed += _TOKENIZER_BYTES * with_text
    measured = []
    with staging_directory(directory.parent, needed) as stage:
        files: dict[Path, Path] = {}
        passport = kept
        if passport is None:
            passport, written, sentence = _write_image_tower(exportable, stage, weights_dtype, report)
            passport = replace(passport, text=kept_text)
            measured.append(sentence)
            files |= {file: directory / file.name for file in written}
        if with_text:
            stage_of_text = stage / "text"
            stage_of_text.mkdir()
            tower, written, sentence = _write_text_tower(exportable, stage_of_text, weights_dtype, report)
            passport = replace(passport, text=tower)
            measured.append(f"text tower: {sentence}")
            tokenizer = version_directory(repository, names.tokenize)
            files |= {file: version_directory(repository, names.text_encoder) / file.name for file in written}
            files |= {stage_of_text / name: tokenizer / name for name in tower.tokenizer_sha256}
        passport_file = stage / PASSPORT_FILE
        passport_file.write_text(passport.to_json(), encoding="ascii")
        # Find problems of the repository before anything in it changes.
        pending = pending_files(repository, passport, names, tensorrt)
        adds = kept is not None and installed is not None and installed.text is None
        install(files, pending, obsolete, (passport_file, directory / PASSPORT_FILE), adds=adds)
        new = set(files.values())
        for folder in {file.parent for file in new}:
            for weights_file in folder.glob("model-*.data"):
                if weights_file not in new:
                    weights_file.unlink()
    removed = f"removed the text tower of {passport.id} in {repository}"
    report(f"installed {passport.id} in {repository}: {'; '.join(measured)}" if measured else removed)
    if weights_dtype == "int8":
        report(
            "serve and compare int8 vectors with one version of ONNX Runtime: other versions give slightly different "
            "vectors"
        )
    return passport


def _check_tensorrt(weights_dtype: str, repository: Path) -> None:
    if weights_dtype == "int8":
        raise WrongChoice("TensorRT does not take an int8 export: use --precision fp16 or fp32 with --tensorrt.")
    if (repository.resolve().parent / ".git").exists() and repository.name == HERE.name:
        raise WrongChoice(
            f"The configuration in {repository} belongs to this checkout, which must also work without a GPU: with "
            "--tensorrt, name another --repository."
        )


def load_exportable(model: str, pretrained: str) -> ExportableModel:
    """Return the model with its weights: through PyTorch if installed, else from its skeleton. Raises ExportError."""
    if model.endswith(".torchscript.pt"):
        raise WrongChoice(
            "SSCD models are not supported: clip-client dedup proves copies with any model, such as ViT-B-32."
        )
    if not model.endswith(SKELETON_SUFFIX):
        try:
            from preprocess_ensemble.export.pytorch.model import PyTorchModel
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("torch", "open_clip"):
                raise
        else:
            return PyTorchModel(model, pretrained)
    return SkeletonModel(model, pretrained)


def _fingerprint(exportable: ExportableModel, weights_dtype: str) -> tuple[int, int]:
    return compute_fingerprint(
        model=exportable.source.model,
        weights_sha256=exportable.weights_sha256,
        preprocess=exportable.config.to_mapping(),
        weights_dtype=weights_dtype,
    )


def _write_image_tower(
    exportable: ExportableModel, stage: Path, weights_dtype: str, report: Callable[[str], None]
) -> tuple[Passport, list[Path], str]:
    """Return the passport without a text tower, the files with the model last, and the measurement in words."""
    options = GraphOptions(
        fingerprint=_fingerprint(exportable, weights_dtype),
        weights_dtype=weights_dtype,
        has_data_file=_has_data_file(exportable.image_bytes),
        report=report,
    )
    files, measured, canary, sentence = parity.build(exportable, parity.check_pixels(exportable.config), stage, options)
    passport = Passport(
        model=exportable.source.model,
        pretrained=exportable.source.pretrained,
        weights_sha256=exportable.weights_sha256,
        preprocess=exportable.config.to_mapping(),
        preprocess_id=exportable.config.id,
        dimension=len(canary),
        weights_dtype=weights_dtype,
        fingerprint=options.fingerprint,
        parity=measured,
        canary=Canary(image=parity.canary_image(), vector=rounded(canary)),
        opset=OPSET,
        ir_version=IR_VERSION,
        exported_at=int(time.time()),
    )
    return passport, files, sentence


def _write_text_tower(
    exportable: ExportableModel, stage: Path, weights_dtype: str, report: Callable[[str], None]
) -> tuple[TextTower, list[Path], str]:
    config, sha256 = write_tokenizer(stage, exportable.text_config)
    tokenizer = Tokenizer.load(stage, config, sha256)
    exportable.check_tokenizer(tokenizer, report)
    rows = np.concatenate([sample_tokens(*exportable.token_kinds), tokenizer.encode([parity.CANARY_TEXT])[0]])
    options = GraphOptions(
        fingerprint=compute_text_fingerprint(
            model=exportable.source.model,
            weights_sha256=exportable.weights_sha256,
            tokenizer=asdict(config),
            tokenizer_sha256=sha256,
            weights_dtype=weights_dtype,
        ),
        weights_dtype=weights_dtype,
        has_data_file=_has_data_file(exportable.text_bytes),
        report=report,
    )
    files, measured, vector, sentence = parity.build(exportable, rows, stage, options)
    tower = TextTower(
        tokenizer=asdict(config),
        tokenizer_sha256=sha256,
        fingerprint=options.fingerprint,
        parity=measured,
        canary=parity.CANARY_TEXT,
        canary_vector=rounded(vector),
        logit_scale=exportable.logit_scale,
        logit_bias=exportable.logit_bias,
    )
    return tower, files, sentence


def _has_data_file(weights_bytes: int) -> bool:
    return weights_bytes + _GRAPH_BYTES > _MAX_FILE_BYTES


def _has_text_tower(repository: Path, names: ModelNames, passport: Passport) -> bool:
    if passport.text is None:
        return False
    tokenizer = version_directory(repository, names.tokenize)
    files = [tokenizer / name for name in passport.text.tokenizer_sha256]
    return all(file.exists() for file in (version_directory(repository, names.text_encoder) / MODEL_FILE, *files))


def _text_folders(repository: Path, names: ModelNames) -> list[Path]:
    """Return the folders of an exported text tower, the tokenizing step last: it is written first and removed last."""
    model_py = version_directory(repository, names.tokenize) / "model.py"
    if not model_py.exists() or "preprocess_ensemble" not in model_py.read_text(encoding="utf-8"):
        return []
    return [repository / name for name in reversed(names.of_texts) if (repository / name).is_dir()]
