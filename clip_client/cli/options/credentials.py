"""The options for TLS and for the token of a Triton server, the same in every command that calls one."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any, Final

from preprocess_ensemble.command_line import user_path

TOKEN_VARIABLE: Final = "CLIP_TOKEN"
"""Holds the token; an option cannot hold it, because other users could read it in ``ps``."""

_MOST_TOKEN_BYTES: Final = 65_536  # proxies already refuse headers of a quarter of this size
_MOST_PEM_BYTES: Final = 2**20  # five times the size of the roots of a whole system
_OPTIONS: Final = {  # argument of a client, as its errors name it -> option
    "ca_certificate": "--tls-ca",
    "client_certificate": "--tls-certificate",
    "client_key": "--tls-key",
    "server_name": "--tls-name",
    "token=": "--token-file",
}


def add_credential_options(parser: argparse.ArgumentParser, title: str = "TLS and token") -> None:
    group = parser.add_argument_group(title)
    for field, about in (
        ("ca_certificate", "PEM file of authorities to trust instead of the system's; needs a grpcs:// URL"),
        ("client_certificate", "PEM file of this client's certificate or chain, if the server requires one"),
        ("client_key", "PEM file of the key of --tls-certificate"),
        ("server_name", "host name to expect in the server's certificate, if it differs from the URL"),
    ):
        kind: dict[str, Any] = {"type": user_path, "metavar": "FILE"} if field != "server_name" else {"metavar": "HOST"}
        group.add_argument(_OPTIONS[field], dest=field, help=about, **kind)
    group.add_argument(
        "--token-file",
        type=user_path,
        metavar="FILE",
        help=f"file with the token for the server, in one line (default: the environment variable {TOKEN_VARIABLE}, "
        "else none)",
    )


def read_credentials(arguments: argparse.Namespace) -> dict[str, Any]:
    if (arguments.client_certificate is None) != (arguments.client_key is None):
        raise ValueError("--tls-certificate and --tls-key belong together: give both or neither")
    return {
        "token": read_token(arguments.token_file, "--token-file", TOKEN_VARIABLE),
        "ca_certificate": _read(arguments.ca_certificate, "--tls-ca"),
        "client_certificate": _read(arguments.client_certificate, "--tls-certificate"),
        "client_key": _read(arguments.client_key, "--tls-key"),
        "server_name": arguments.server_name,
    }


def with_options(sentence: str) -> str:
    """Return a sentence about a ClientConfig with options in place of its fields' names, except in file names."""
    for field, option in _OPTIONS.items():
        sentence = re.sub(rf"(?<![\w/.-]){field}(?![\w-]|\.\w)", option, sentence)
    return sentence


def read_token(file: Path | None, option: str, variable: str) -> str | None:
    content = _read(file, option, limit=_MOST_TOKEN_BYTES)
    if content is None:
        return os.environ.get(variable) or None
    token = content.decode("ascii", "replace").strip()
    if not token or "\n" in token:
        raise ValueError(f"{file} must hold the token in one line: see {option}")
    return token


def _read(path: Path | None, option: str, *, limit: int = _MOST_PEM_BYTES) -> bytes | None:
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): see {option}") from None
    if len(content) > limit:
        raise ValueError(f"{path} has more than {limit} bytes: see {option}")
    return content
