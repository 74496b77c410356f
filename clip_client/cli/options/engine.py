"""Where a command does its work: in this process, or on a Ray cluster."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clip_client._endpoint import EndpointKind
from clip_client.cli.errors import CommandMisused, need
from clip_client.cli.options.connection import connected
from clip_client.cli.parser import number_type

if TYPE_CHECKING:
    from clip_client import ClientConfig


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How to use Ray."""

    address: str | None
    workers: int | None

    def servers(self, config: ClientConfig, *, quiet: bool) -> ClientConfig:
        """Return the settings for the workers' clients: what ``auto:`` finds here need not be what a worker finds.

        Raises CommandMisused if the workers may run on other machines and no server was named.
        """
        if config.endpoints[0].kind is not EndpointKind.AUTO:
            return config
        if self.address is not None:
            raise CommandMisused("name the servers with --url: every machine of the cluster must reach them")
        return replace(config, urls=(asyncio.run(_found(config, quiet=quiet)),))


async def _found(config: ClientConfig, *, quiet: bool) -> str:
    async with connected(config, quiet=quiet) as clip:
        first = config.endpoints[0]
        return f"local:{first.repository or ''}" if clip.is_local else first.address


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--engine``, ``--address`` and ``--workers``."""
    group = parser.add_argument_group("more than one machine")
    group.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="work in this process, or on a Ray cluster whose machines all see the photos (default: local)",
    )
    group.add_argument(
        "--address",
        metavar="A",
        help="with --engine ray: the cluster, host:port, or auto for the one that this machine belongs to (default: "
        "Ray on this machine only)",
    )
    group.add_argument(
        "--workers",
        type=number_type(int, lambda count: count >= 1, expected="a whole number of 1 or more"),
        metavar="N",
        help="with --engine ray: the most worker processes (default: one for every four CPUs of each machine)",
    )


def read_engine_options(arguments: argparse.Namespace) -> EngineOptions | None:
    """Read what :func:`add_engine_options` added; None for the local engine.

    Raises CommandMisused for options of the other engine, and CommandFailed if Ray is missing.
    """
    if arguments.engine == "local":
        if arguments.address is not None or arguments.workers is not None:
            raise CommandMisused("--address and --workers need --engine ray")
        return None
    need("ray.data", extras="ray")
    return EngineOptions(address=arguments.address, workers=arguments.workers)
