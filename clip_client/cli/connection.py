"""Which server a command talks to."""

from __future__ import annotations

import argparse
import math
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from clip_client.cli.failure import CommandFailed, CommandMisused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from clip_client import ClipClient
    from clip_client._transfer import TransferName


def add_url_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--url``, of a command that is about servers."""
    _add_url(parser, otherwise="localhost:8001")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--url`` and ``--transfer``, of a command that embeds photos, wherever the model is."""
    from clip_client._transfer import TRANSFERS

    _add_url(parser, otherwise="localhost:8001 if a server answers there, else the model of this machine")
    parser.add_argument(
        "--transfer",
        choices=TRANSFERS,
        default="thumbnail",
        help="how photos travel: reduced to what the model needs, reduced further, or as the files that they are "
        "(default: thumbnail); vectors of different kinds are never mixed",
    )


def _add_url(parser: argparse.ArgumentParser, *, otherwise: str) -> None:
    parser.add_argument(
        "--url",
        metavar="U",
        help="the server's gRPC address, as host:port, grpc://host:port or grpcs://host:port; or local:DIR, a model "
        f"repository to use in this process (default: the environment variable CLIP_URL, else {otherwise})",
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


def new_client(url: str | None, *, timeout_s: float | None = None, transfer: TransferName | None = None) -> ClipClient:
    """Make a client for ``url``, else for what the environment names, else for this machine.

    Raises CommandMisused for what is no address.
    """
    from clip_client import ClipClient

    try:
        return ClipClient(url, timeout_s=timeout_s, transfer=transfer)
    except ValueError as error:
        raise CommandMisused(str(error)) from None


@asynccontextmanager
async def connected(
    url: str | None, *, timeout_s: float | None = None, transfer: TransferName | None = None
) -> AsyncIterator[ClipClient]:
    """Give a client whose model is known; where nobody named a server, this process may be what embeds.

    Which it is, is said on standard error. ``timeout_s`` and ``transfer`` are those of the client. Raises
    CommandMisused for what is no address, and a ClipError for what the server, or its absence, answers; as
    CommandFailed, with the ways out, where nobody named a server, none is there, and no model either.
    """
    from clip_client import ClipError
    from clip_client._client import URL_VARIABLE
    from clip_client._config import DEFAULT_URL

    named = url or os.environ.get(URL_VARIABLE)
    async with new_client(named or "auto:", timeout_s=timeout_s, transfer=transfer) as clip:
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
