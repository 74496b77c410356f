"""Writes and checks each tower of a model: the graph, the tokenizer's files, and what the passport says about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from preprocess_ensemble.export import parity
from preprocess_ensemble.export.model_source import ExportableModel, GraphOptions
from preprocess_ensemble.export.onnx_file import IR_VERSION, OPSET
from preprocess_ensemble.export.tokenizer_files import write_tokenizer
from preprocess_ensemble.model_repository.passport import (
    Canary,
    Passport,
    TextTower,
    compute_fingerprint,
    compute_text_fingerprint,
    rounded,
)
from preprocess_ensemble.text.tokenizer import Tokenizer

_MAX_FILE_BYTES: Final = 2_000_000_000
"""A protobuf message is limited to 2 GiB; larger weights go to a separate file."""
_GRAPH_BYTES: Final = 8_000_000
"""Room for the nodes of a graph, the passport and the configuration: everything but the weights."""
_TOKENIZER_BYTES: Final = 40_000_000
"""Room for the files of a tokenizer; the largest, that of SigLIP 2, has 34 MB."""


@dataclass(frozen=True, kw_only=True)
class ImageTower:
    """An image tower that has been written and checked."""

    passport: Passport
    """Without a text tower."""
    files: list[Path]
    """The weights' own file if they have one, then the model."""
    agreement: str
    """What was measured, for people."""


@dataclass(frozen=True, kw_only=True)
class WrittenTextTower:
    """A text tower that has been written and checked."""

    passport: TextTower
    files: list[Path]
    """The weights' own file if they have one, then the model."""
    tokenizer_files: list[Path]
    agreement: str
    """What was measured, for people."""


def needed_bytes(exportable: ExportableModel, *, image: bool, text: bool) -> int:
    """Return how much room these towers need on the disk."""
    weights = [exportable.weights_bytes] * image
    if text and exportable.text is not None:
        weights.append(exportable.text.weights_bytes)
    # Twice the weights if they are moved to a separate file.
    return sum(size * (2 if _has_data_file(size) else 1) + _GRAPH_BYTES for size in weights) + _TOKENIZER_BYTES * text


def _has_data_file(weights_bytes: int) -> bool:
    return weights_bytes + _GRAPH_BYTES > _MAX_FILE_BYTES


def fingerprint_of(exportable: ExportableModel, precision: str) -> tuple[int, int]:
    """Return the fingerprint of the image tower."""
    return compute_fingerprint(
        model=exportable.source.model,
        weights_sha256=exportable.weights_sha256,
        preprocess=exportable.config.to_mapping(),
        precision=precision,
    )


def write_image_tower(
    exportable: ExportableModel, stage: Path, precision: str, report: Callable[[str], None]
) -> ImageTower:
    """Write the image tower into the folder ``stage``, and check it. Raises ExportError."""
    options = GraphOptions(
        fingerprint=fingerprint_of(exportable, precision),
        precision=precision,
        has_data_file=_has_data_file(exportable.weights_bytes),
        report=report,
    )
    built = exportable.build(stage, options)
    agreement = parity.measure(built, options)
    passport = Passport(
        model=exportable.source.model,
        pretrained=exportable.source.pretrained,
        weights_sha256=exportable.weights_sha256,
        preprocess=exportable.config.to_mapping(),
        preprocess_id=exportable.config.id,
        dimension=len(agreement.canary),
        precision=precision,
        fingerprint=options.fingerprint,
        parity=agreement.parity,
        canary=Canary.of(parity.canary_image(), agreement.canary),
        opset=OPSET,
        ir_version=IR_VERSION,
    )
    return ImageTower(passport=passport, files=built.files, agreement=agreement.sentence)


def write_text_tower(
    exportable: ExportableModel, stage: Path, precision: str, report: Callable[[str], None]
) -> WrittenTextTower:
    """Write the text tower and its tokenizer into the folder ``stage``, and check it. Raises ExportError."""
    source = exportable.text
    assert source is not None
    config, sha256 = write_tokenizer(stage, source.config)
    tokenizer = Tokenizer.load(stage, config, sha256)
    exportable.check_tokenizer(tokenizer, report)
    tokens, _ = tokenizer.encode([parity.CANARY_TEXT])
    options = GraphOptions(
        fingerprint=compute_text_fingerprint(
            model=exportable.source.model,
            weights_sha256=exportable.weights_sha256,
            tokenizer=config.to_mapping(),
            tokenizer_sha256=sha256,
            precision=precision,
        ),
        precision=precision,
        has_data_file=_has_data_file(source.weights_bytes),
        report=report,
    )
    built = exportable.build_text(stage, options, tokens[0])
    agreement = parity.measure(built, options)
    passport = TextTower(
        tokenizer=config.to_mapping(),
        tokenizer_sha256=sha256,
        fingerprint=options.fingerprint,
        parity=agreement.parity,
        canary=parity.CANARY_TEXT,
        canary_vector=rounded(agreement.canary),
        logit_scale=source.logit_scale,
        logit_bias=source.logit_bias,
    )
    files = [stage / name for name in sha256]
    return WrittenTextTower(passport=passport, files=built.files, tokenizer_files=files, agreement=agreement.sentence)
