"""Which server a command talks to."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from clip_client.cli.failure import CommandFailed, CommandMisused

if TYPE_CHECKING:
    import argparse
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


def new_client(url: str | None) -> ClipClient:
    """Make a client for ``url``, else for what the environment names, else for this machine.

    Raises CommandMisused for what is no address.
    """
    from clip_client import ClipClient

    try:
        return ClipClient(url)
    except ValueError as error:
        raise CommandMisused(str(error)) from None


@asynccontextmanager
async def connected(url: str | None) -> AsyncIterator[ClipClient]:
    """Give a client whose server has answered.

    Raises CommandMisused for what is no address, and a ClipError for what the server, or its absence, answers; as
    CommandFailed, with the way out, where nobody named a server and none is there.
    """
    from clip_client import Unavailable
    from clip_client._client import URL_VARIABLE
    from clip_client._config import DEFAULT_URL

    async with new_client(url) as clip:
        try:
            await clip.model()
        except Unavailable as error:
            if url or os.environ.get(URL_VARIABLE):
                raise
            raise CommandFailed(
                f"no server answers at {DEFAULT_URL}; start one with: clip-serve, or name one with --url"
            ) from error
        yield clip
