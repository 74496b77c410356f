"""Which server a command talks to."""

from __future__ import annotations

import argparse
import math
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from clip_client.cli.failure import CommandFailed, CommandMisused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from clip_client import ClipClient


def add_url_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--url``."""
    parser.add_argument(
        "--url",
        metavar="U",
        help="the server's gRPC address, as host:port, grpc://host:port or grpcs://host:port "
        "(default: the environment variable CLIP_URL, else localhost:8001)",
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


def new_client(url: str | None, *, timeout_s: float | None = None) -> ClipClient:
    """Make a client for ``url``, else for what the environment names, else for this machine.

    Raises CommandMisused for what is no address.
    """
    from clip_client import ClipClient

    try:
        return ClipClient(url, timeout_s=timeout_s)
    except ValueError as error:
        raise CommandMisused(str(error)) from None


@asynccontextmanager
async def connected(url: str | None, *, timeout_s: float | None = None) -> AsyncIterator[ClipClient]:
    """Give a client whose server has answered; ``timeout_s`` is that of the client.

    Raises CommandMisused for what is no address, and a ClipError for what the server, or its absence, answers; as
    CommandFailed, with the way out, where nobody named a server and none is there.
    """
    from clip_client import Unavailable
    from clip_client._client import URL_VARIABLE
    from clip_client._config import DEFAULT_URL

    async with new_client(url, timeout_s=timeout_s) as clip:
        try:
            await clip.model()
        except Unavailable as error:
            if url or os.environ.get(URL_VARIABLE):
                raise
            raise CommandFailed(
                f"no server answers at {DEFAULT_URL}; start one with: clip-serve, or name one with --url"
            ) from error
        yield clip


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"a number of seconds above 0 is needed, not {text!r}")
    return seconds
