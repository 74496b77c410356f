"""Which server a command talks to, and by what the two trust each other."""

from __future__ import annotations

import argparse
import math
import os
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clip_client.cli.errors import CommandFailed, CommandMisused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from clip_client import ClientConfig, ClipClient
    from clip_client._encoding import TransferName

TOKEN_VARIABLE: Final = "CLIP_TOKEN"
"""Environment variable with the token itself. No option takes it: other users would read it in ``ps``."""

_MOST_TOKEN_BYTES: Final = 65_536
"""A file that is larger was named by mistake; proxies refuse headers of a quarter of that."""


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--url`` and what secures the way there, of a command that is about servers."""
    _add_server(parser, otherwise="localhost:8001")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--transfer`` and the options of a server, of a command that embeds photos, wherever the model is."""
    from clip_client._encoding import IMAGE_ENCODINGS

    _add_server(parser, otherwise="localhost:8001 if a server answers there, else the model of this machine")
    parser.add_argument(
        "--transfer",
        choices=IMAGE_ENCODINGS,
        default="thumbnail",
        help="how photos travel: reduced to what the model needs, reduced further, or as the files that they are "
        "(default: thumbnail); vectors of different kinds are never mixed",
    )


def _add_server(parser: argparse.ArgumentParser, *, otherwise: str) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--url",
        metavar="U",
        help="the server's gRPC address, as host:port, grpc://host:port or grpcs://host:port; or local:DIR, a model "
        f"repository to use in this process (default: the environment variable CLIP_URL, else {otherwise})",
    )
    group.add_argument(
        "--tls-ca",
        type=Path,
        metavar="FILE",
        help="trust the authorities of this PEM file instead of the system's; the URL must be grpcs://",
    )
    group.add_argument(
        "--tls-certificate",
        type=Path,
        metavar="FILE",
        help="this client's own certificate or chain, where the server asks for one",
    )
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key")
    group.add_argument(
        "--tls-name",
        metavar="HOST",
        help="the name that the server's certificate must have, where the URL has another",
    )
    group.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"send the token in this file's one line (default: the environment variable {TOKEN_VARIABLE}, else none)",
    )


def add_timeout_option(parser: argparse.ArgumentParser, *, default_s: float, meaning: str) -> None:
    """Add ``--timeout``, which becomes ``timeout_s``."""
    parser.add_argument(
        "--timeout",
        dest="timeout_s",
        type=_seconds,
        default=default_s,
        metavar="S",
        help=f"{meaning}, in seconds (default: {default_s:g})",
    )


def client_config(
    arguments: argparse.Namespace,
    *,
    otherwise: str | None = None,
    timeout_s: float | None = None,
    transfer: TransferName | None = None,
) -> ClientConfig:
    """Read what the options, and behind them the environment, say of the server.

    ``otherwise`` is the URL where none is named. Raises CommandMisused for what does not fit together, and for files
    that cannot be read.
    """
    from clip_client._client import URL_VARIABLE, make_config

    named = arguments.url or os.environ.get(URL_VARIABLE)
    try:
        config = make_config(named or otherwise, timeout_s=timeout_s, transfer=transfer, token=_token(arguments))
        if (arguments.tls_certificate is None) != (arguments.tls_key is None):
            raise CommandMisused("--tls-certificate and --tls-key belong together")
        return replace(
            config,
            ca_certificate=_pem(arguments.tls_ca, "--tls-ca"),
            client_certificate=_pem(arguments.tls_certificate, "--tls-certificate"),
            client_key=_pem(arguments.tls_key, "--tls-key"),
            server_name=arguments.tls_name,
        )
    except ValueError as error:
        raise CommandMisused(str(error)) from None


def _pem(path: Path | None, option: str) -> bytes | None:
    return None if path is None else _read(path, option)


def _token(arguments: argparse.Namespace) -> str | None:
    if arguments.token_file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    token = _read(arguments.token_file, "--token-file", limit=_MOST_TOKEN_BYTES).decode("ascii", "replace").strip()
    if not token or "\n" in token:
        raise CommandMisused(f"{arguments.token_file} must hold a token in one line: see --token-file")
    return token


def _read(path: Path, option: str, *, limit: int = 2**20) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise CommandMisused(f"{path} cannot be read ({error.strerror}): see {option}") from None
    if len(content) > limit:
        raise CommandMisused(f"{path} has more than {limit} bytes: see {option}")
    return content


def new_client(arguments: argparse.Namespace) -> ClipClient:
    """Make a client for the server that is named, else for the one of this machine.

    Raises CommandMisused like :func:`client_config`.
    """
    from clip_client import ClipClient

    return ClipClient(config=client_config(arguments))


@asynccontextmanager
async def connected(arguments: argparse.Namespace, *, timeout_s: float | None = None) -> AsyncIterator[ClipClient]:
    """Give a client whose model is known; where nobody named a server, this process may be what embeds.

    Which it is, is said on standard error. ``timeout_s`` is that of the client. Raises CommandMisused like
    :func:`client_config`, and a ClipError for what the server, or its absence, answers; as CommandFailed, with the
    ways out, where nobody named a server, none is there, and no model either.
    """
    from clip_client import ClipClient, ClipError
    from clip_client._client import URL_VARIABLE
    from clip_client._endpoint import DEFAULT_URL

    named = arguments.url or os.environ.get(URL_VARIABLE)
    config = client_config(arguments, otherwise="auto:", timeout_s=timeout_s, transfer=arguments.transfer)
    async with ClipClient(config=config) as clip:
        try:
            await clip.model()
        except ClipError as error:
            if named or not clip.is_local:
                raise
            raise CommandFailed(
                f"no server answers at {DEFAULT_URL}, and this process cannot take its place: {error} Start a server "
                "with: clip-serve, or name one with --url"
            ) from error
        if not named and not clip.is_local:
            # Of the other case the library itself gives notice.
            print(f"clip-client: the server at {DEFAULT_URL} embeds", file=sys.stderr)
        yield clip


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"a number of seconds above 0 is needed, not {text!r}")
    return seconds
