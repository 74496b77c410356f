"""Checks before Triton is started. Triton would report these problems late, or not in one sentence."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from preprocess_ensemble.contract import DEFAULT_NAME, DEFAULT_NAMES, ModelNames
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.config import MODEL_FILE, installed_passport
from preprocess_ensemble.model_repository.location import model_names

if TYPE_CHECKING:
    from preprocess_ensemble.model_repository.passport import Passport


def check_repository(repository: Path) -> None:
    """Raise ReportedError unless ``repository`` has an exported model, and all that belongs to each one it has."""
    if not repository.is_dir():
        raise ReportedError(
            f"There is no model repository {repository}: name one with --repository DIR, or start with "
            "--model ViT-B-32."
        )
    for name in model_names(repository) or [DEFAULT_NAME]:
        names = ModelNames(name)
        _check_image_tower(repository, names)
        if (passport := installed_passport(repository, names)) is not None:
            _check_text_tower(repository, names, passport)


def _check_image_tower(repository: Path, names: ModelNames) -> None:
    """Raise ReportedError unless the image tower is complete."""
    export = f"`clip-export --repository {repository}" + ("" if names == DEFAULT_NAMES else f" --name {names.name}")
    if not (repository / names.image / "config.pbtxt").is_file():
        raise ReportedError(
            f"{repository} has no model {names.image}: start with --model ViT-B-32, or create it with {export}`."
        )
    encoder = repository / names.encoder
    config = encoder / "config.pbtxt"
    text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""
    elsewhere = re.search(r"default_model_filename\s*:\s*[\"'](?!model\.onnx[\"'])", text)
    if encoder.is_dir() and not elsewhere and not any(encoder.glob("*/model.onnx")):
        raise ReportedError(f"{encoder} has no model.onnx, because git holds no weights: run {export}`.")
    preprocessor = repository / names.preprocess
    if preprocessor.is_dir() and not any(preprocessor.glob("*/model.py")):
        raise ReportedError(
            f"{preprocessor} has no model.py: run {export}` with the --model and --pretrained of the installed model, "
            "which adds what is missing."
        )


def _check_text_tower(repository: Path, names: ModelNames, passport: Passport) -> None:
    """Raise ReportedError unless the text tower is complete if the model has one, and absent otherwise."""
    tokenize, encoder, ensemble = (repository / name for name in names.of_texts)
    configs = [folder / "config.pbtxt" for folder in (tokenize, encoder, ensemble)]
    named = "" if names == DEFAULT_NAMES else f" --name {names.name}"
    remedy = (
        f"run `clip-export --repository {repository}{named} --force` with the --model and --pretrained of the "
        "installed model"
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
