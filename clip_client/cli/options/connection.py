"""Options for the server of a command and its credentials, for a model on this machine, and for a cluster."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final

from clip_client import ClientConfig, ClipClient, ClipError, ModelNotReady
from clip_client._client import URL_VARIABLE, make_config
from clip_client._config import read_pem
from clip_client._encoding import IMAGE_ENCODINGS
from clip_client._endpoint import EndpointKind
from clip_client.cli.errors import CommandFailed, CommandMisused, need
from clip_client.cli.options.credentials import add_credential_options, read_credentials, with_options
from clip_client.dedup.types import OnProgress
from preprocess_ensemble.command_line import count, seconds
from preprocess_ensemble.contract import DEFAULT_NAME
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.location import (
    REPOSITORY_VARIABLE,
    default_repository,
    has_model,
    user_repository,
)
from preprocess_ensemble.pem_files import check_client_files

_OPENING: Final = "opening the model"
_EXPORT: Final = (sys.executable, "-m", "preprocess_ensemble.export.command")
_NOTICE: Final = """\
clip-client: there is no model on this machine yet. ViT-B-32 with the LAION-2B weights is a download of 605 MB, once.
The model made from it takes 350 MB, in
  {repository}
"""


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--transfer`` and the server options, for a command that embeds photos on a server or in this process."""
    add_server_options(parser, may_be_local=True)
    parser.add_argument(
        "--transfer",
        choices=IMAGE_ENCODINGS,
        default="thumbnail",
        help="what to send: a thumbnail, a smaller thumbnail, or the original file (default: thumbnail); vectors of "
        "different kinds are never mixed",
    )


def add_server_options(parser: argparse.ArgumentParser, *, may_be_local: bool = False) -> None:
    """Add ``--url`` and the TLS and token options. Without a URL, ``may_be_local`` allows a model in this process."""
    parser.set_defaults(otherwise="auto:" if may_be_local else None, transfer=None)
    else_local = " if a server responds there, else the model on this machine" if may_be_local else ""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--url",
        metavar="U",
        help="gRPC address of the server: host:port, grpc://host:port or grpcs://host:port; or local:DIR to run the "
        "model repository DIR in this process (default: the environment variable CLIP_URL, else "
        f"localhost:8001{else_local})",
    )
    group.add_argument(
        "--model", metavar="NAME", help="name of the model on the server, from clip-export --name (default: clip)"
    )
    add_credential_options(parser)


def add_timeout_option(parser: argparse.ArgumentParser, *, default_s: float, meaning: str) -> None:
    parser.add_argument(
        "--timeout",
        dest="timeout_s",
        type=seconds,
        default=default_s,
        metavar="S",
        help=f"{meaning}, in seconds (default: {default_s:g})",
    )


def client_config(arguments: argparse.Namespace, *, timeout_s: float | None = None) -> ClientConfig:
    """Read the server settings from the options, else from the environment. Raises CommandMisused."""
    try:
        credentials = read_credentials(arguments)
        config = make_config(
            arguments.url or os.environ.get(URL_VARIABLE) or arguments.otherwise,
            timeout_s=timeout_s,
            transfer=arguments.transfer,
            model=arguments.model,
            **credentials,
        )
        check_client_files(arguments.ca_certificate, arguments.client_certificate, arguments.client_key)
        for field in ("ca_certificate", "client_certificate", "client_key"):
            read_pem(field, credentials[field])
        return config
    except ReportedError as error:
        raise CommandMisused(str(error)) from None
    except ValueError as error:
        raise CommandMisused(with_options(str(error))) from None


@asynccontextmanager
async def connected(
    config: ClientConfig, *, quiet: bool = False, hint: str = "", show: OnProgress | None = None
) -> AsyncIterator[ClipClient]:
    """Give a client whose model is known; with ``auto:`` the model may run, and first be exported, on this machine.

    ``hint`` is one more remedy for a machine without a model. ``show`` reports that a model is opened, which takes
    seconds in this process. Standard error says whether the server or this process embeds, unless ``quiet``. Raises the
    ClipError of the server, and CommandFailed with the remedies if ``auto:`` finds no server and no model.
    """
    first = config.endpoints[0]
    is_auto = first.kind is EndpointKind.AUTO
    async with AsyncExitStack() as stack:
        clip = await stack.enter_async_context(ClipClient(config=config))
        # Without a model, show nothing yet: the question whether to get one comes first.
        shows = show is not None and first.kind is not EndpointKind.GRPC and has_model(default_repository())
        try:
            if show is not None and shows:
                show(_OPENING, 0, None)
            await clip.model()
            if show is not None and shows:
                show(_OPENING, 1, 1)
        except ClipError as error:
            if not clip.is_local:
                raise
            is_missing = isinstance(error, ModelNotReady) and not has_model(default_repository())
            # Do not export into a repository that the user has named: a wrong path would look like a missing model.
            is_default = first.model == DEFAULT_NAME and not first.repository and REPOSITORY_VARIABLE not in os.environ
            if not (is_missing and is_default and export_default_model()):
                if not is_auto:
                    raise
                why = "no model is on this machine" if is_missing else f"this machine's model cannot be used ({error})"
                raise CommandFailed(
                    f"{why}, and no server responds at {first.address}: {hint}get a model with clip-export, start a "
                    "server with clip-serve, or name one with --url"
                ) from error
            # Open a new client, because the first has chosen the repository without a model.
            clip = await stack.enter_async_context(ClipClient(config=config))
            await clip.model()
        if is_auto and not clip.is_local and not quiet:
            # If the model runs in this process, the library itself prints a notice.
            print(f"clip-client: using the server at {first.address}", file=sys.stderr)
        yield clip


def export_default_model() -> bool:
    """Export the default model with ``clip-export``, after a question on a terminal; return whether that succeeded."""
    repository = user_repository()
    sys.stderr.write(_NOTICE.format(repository=repository))
    if sys.stdin.isatty() and sys.stderr.isatty():
        sys.stderr.write("Get it now? [Y/n] ")
        sys.stderr.flush()
        if sys.stdin.readline().lower() not in ("\n", "y\n", "yes\n"):
            return False
    repository.mkdir(parents=True, exist_ok=True)
    # Export in a separate process, which returns its memory.
    return subprocess.run([*_EXPORT, "--repository", str(repository)], check=False).returncode == 0


def cluster_config(arguments: argparse.Namespace, config: ClientConfig) -> ClientConfig:
    """Resolve ``auto:`` for the workers. Raises CommandMisused if they may be on other machines."""
    first = config.endpoints[0]
    if first.kind is not EndpointKind.AUTO:
        return config
    if arguments.address is not None:
        raise CommandMisused("--address needs a --url that every machine of the cluster reaches, not auto:")

    async def found() -> str:
        async with connected(config, quiet=arguments.quiet) as clip:
            return f"local:{first.repository or ''}" if clip.is_local else first.address

    return replace(config, urls=(asyncio.run(found()),))


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("more than one machine")
    group.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="work in this process, or on a Ray cluster; all its machines must see the photos (default: local)",
    )
    group.add_argument(
        "--address",
        metavar="A",
        help="with --engine ray: address of the cluster, host:port, or auto for the cluster of this machine (default: "
        "Ray on this machine only)",
    )
    group.add_argument(
        "--workers",
        type=count,
        metavar="N",
        help="with --engine ray: at most N worker processes (default: one for every four CPUs of each machine)",
    )


def uses_ray(arguments: argparse.Namespace) -> bool:
    if arguments.engine == "local":
        if arguments.address is not None or arguments.workers is not None:
            raise CommandMisused("--address and --workers need --engine ray")
        return False
    need("ray.data", extras="ray")
    return True
