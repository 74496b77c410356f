"""Checks before Triton is started. Triton would report these problems late, or not in one sentence."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from preprocess_ensemble.contract import DEFAULT_NAMES, ENCODER, ENSEMBLE, PREPROCESSOR
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.config import MODEL_FILE, installed_passport

if TYPE_CHECKING:
    from preprocess_ensemble.model_repository.passport import Passport


def check_repository(repository: Path) -> None:
    """Raise ReportedError unless ``repository`` has the ensemble and an exported model."""
    if not repository.is_dir():
        raise ReportedError(
            f"There is no model repository {repository}: name one with --repository DIR, or start with "
            "--model ViT-B-32."
        )
    if not (repository / ENSEMBLE / "config.pbtxt").is_file():
        raise ReportedError(
            f"{repository} has no model {ENSEMBLE}: start with --model ViT-B-32, or create it with "
            f"`clip-export --repository {repository}`."
        )
    encoder = repository / ENCODER
    config = encoder / "config.pbtxt"
    text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""
    elsewhere = re.search(r"default_model_filename\s*:\s*[\"'](?!model\.onnx[\"'])", text)
    if encoder.is_dir() and not elsewhere and not any(encoder.glob("*/model.onnx")):
        raise ReportedError(
            f"{encoder} has no model.onnx, because git holds no weights: run `clip-export --repository {repository}`."
        )
    preprocessor = repository / PREPROCESSOR
    if preprocessor.is_dir() and not any(preprocessor.glob("*/model.py")):
        raise ReportedError(
            f"{preprocessor} has no model.py: run `clip-export --repository {repository}` with the --model and "
            "--pretrained of the installed model, which adds what is missing."
        )
    if (passport := installed_passport(repository)) is not None:
        _check_text_tower(repository, passport)


def _check_text_tower(repository: Path, passport: Passport) -> None:
    """Raise ReportedError unless the text tower is complete if the model has one, and absent otherwise."""
    tokenize, encoder, ensemble = (repository / name for name in DEFAULT_NAMES.of_texts)
    configs = [folder / "config.pbtxt" for folder in (tokenize, encoder, ensemble)]
    remedy = (
        f"run `clip-export --repository {repository} --force` with the --model and --pretrained of the installed model"
    )
    if passport.text is None:
        left = [config.parent.name for config in configs if config.exists()]
        if left:
            raise ReportedError(
                f"{repository} has {', '.join(left)}, but the installed model has no text tower: remove these folders, "
                f"or {remedy}."
            )
        return
    files = [tokenize / "1" / name for name in ("model.py", *passport.text.tokenizer_sha256)]
    missing = [file for file in (*configs, *files, encoder / "1" / MODEL_FILE) if not file.exists()]
    if missing:
        raise ReportedError(f"The text tower of the installed model lacks {missing[0]}: {remedy}.")


def check_ports(addresses: Mapping[str, tuple[str, int]]) -> None:
    """Raise ReportedError unless all ``addresses`` can be opened. They map the name of an option to host and port."""
    taken: dict[int, str] = {}
    for name, (host, port) in addresses.items():
        if port in taken:
            raise ReportedError(f"--{taken[port]}-port and --{name}-port are both {port}: choose two different ports.")
        taken[port] = name
        try:
            address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        except socket.gaierror:
            raise ReportedError(
                f"The address {host!r} is unknown: use --host with an address of this machine."
            ) from None
        with socket.socket(address[0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address[4])
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    raise ReportedError(f"{host} is not an address of this machine: choose one with --host.") from None
                raise ReportedError(
                    f"Port {port} on {host} cannot be used ({error.strerror}): "
                    f"stop the program that uses it, or choose another port with --{name}-port."
                ) from None
