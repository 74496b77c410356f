"""Checks before Triton is started. Triton would report these problems late, or not in one sentence."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from preprocess_ensemble.command_line import try_port
from preprocess_ensemble.contract import DEFAULT_NAME, DEFAULT_NAMES, ModelNames
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.config import MODEL_FILE, installed_passport, read_config
from preprocess_ensemble.model_repository.location import REPOSITORY_VARIABLE, model_names


def check_repository(repository: Path, only: Sequence[str] = ()) -> None:
    """Raise ReportedError unless ``repository`` has models, and all (or those named in ``only``) are complete."""
    if not repository.is_dir():
        named = f", which {REPOSITORY_VARIABLE} names" if os.environ.get(REPOSITORY_VARIABLE) == str(repository) else ""
        raise ReportedError(
            f"There is no model repository {repository}{named}: name one with --repository DIR, or start with "
            "--model ViT-B-32."
        )
    known = model_names(repository)
    if unknown := [name for name in only if name not in known]:
        raise ReportedError(
            f"{repository} has no model named {unknown[0]!r}: name another with --only ({', '.join(known) or 'none'}), "
            "or export it with clip-export --name."
        )
    for name in only or known or [DEFAULT_NAME]:
        names = ModelNames(name)
        export = f"clip-export --repository {repository}" + ("" if names == DEFAULT_NAMES else f" --name {name}")
        _check_image_tower(repository, names, export)
        _check_text_tower(repository, names, export)


_OF_THE_MODEL: Final = "with the --model and --pretrained of the installed model"


def _check_image_tower(repository: Path, names: ModelNames, export: str) -> None:
    ensemble, encoder, preprocessor = (repository / name for name in (names.image, names.encoder, names.preprocess))
    if not (ensemble / "config.pbtxt").is_file():
        raise ReportedError(
            f"{repository} has no model {names.image}: start with --model ViT-B-32, or create it with `{export}`."
        )
    config = encoder / "config.pbtxt"
    elsewhere = config.is_file() and read_config(config).default_model_filename not in ("", MODEL_FILE)
    if encoder.is_dir() and not elsewhere and not any(encoder.glob(f"*/{MODEL_FILE}")):
        raise ReportedError(f"{encoder} has no {MODEL_FILE}, because git holds no weights: run `{export}`.")
    if preprocessor.is_dir() and not any(preprocessor.glob("*/model.py")):
        raise ReportedError(
            f"{preprocessor} has no model.py: run `{export}` {_OF_THE_MODEL}, which adds what is missing."
        )


def _check_text_tower(repository: Path, names: ModelNames, export: str) -> None:
    """Raise ReportedError unless the text tower is complete if the model has one, and absent otherwise."""
    if (passport := installed_passport(repository, names)) is None:
        return
    tokenize, encoder, ensemble = (repository / name for name in names.of_texts)
    configs = [folder / "config.pbtxt" for folder in (tokenize, encoder, ensemble)]
    remedy = f"run `{export} --force` {_OF_THE_MODEL}"
    if passport.text is None:
        if left := [config.parent.name for config in configs if config.exists()]:
            raise ReportedError(
                f"{repository} has {', '.join(left)}, but the installed model has no text tower: remove these folders, "
                f"or {remedy}."
            )
        return
    files = [tokenize / "1" / name for name in ("model.py", *passport.text.tokenizer_sha256)]
    if missing := [file for file in (*configs, *files, encoder / "1" / MODEL_FILE) if not file.exists()]:
        raise ReportedError(f"The text tower of the installed model lacks {missing[0]}: {remedy}.")


def check_ports(addresses: Mapping[str, tuple[str, int]]) -> None:
    """Raise ReportedError unless all ``addresses`` can be opened. They map the name of an option to host and port."""
    taken: dict[int, str] = {}
    for name, (host, port) in addresses.items():
        if port in taken:
            raise ReportedError(f"--{taken[port]}-port and --{name}-port are both {port}: choose two different ports.")
        taken[port] = name
        try:
            try_port(host, port)
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                option = "--http-host" if name == "http" else "--host"
                raise ReportedError(f"{host} is not an address of this machine: choose one with {option}.") from None
            raise ReportedError(
                f"Port {port} on {host} cannot be used ({error.strerror}): "
                f"stop the program that uses it, or choose another port with --{name}-port."
            ) from None
