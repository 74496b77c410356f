"""``clip-client health``: is the server whole, and if not, which step broke?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from clip_client.cli.errors import CommandFailed
from clip_client.cli.options.connection import add_server_options, add_timeout_option, new_client

if TYPE_CHECKING:
    import argparse

    from clip_client import HealthReport

_TIMEOUT_S: Final = 10.0
"""A probe wants an answer soon; a healthy server needs a fraction of a second."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "health",
        help="check a server, step by step",
        description="Check a server step by step, up to the vector of an image that came with the model. "
        "Exit code 0 where all is well, 1 where a step failed, 2 where the command was misused: fit for a probe.",
    )
    add_server_options(parser)
    add_timeout_option(parser, default_s=_TIMEOUT_S, meaning="time for all steps together")
    parser.add_argument(
        "--quiet", "-q", action="store_true", help="print nothing but, on standard error, the step that failed"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print each step; 1 if one of them failed."""
    report = asyncio.run(_check(arguments))
    failed = report.failed
    if arguments.quiet:
        if failed is not None:
            raise CommandFailed(f"not healthy: {failed.name}: {failed.message}")
        return 0
    several = len({step.server for step in report.steps}) > 1
    server = ""
    for step in report.steps:
        if several and step.server != server:
            server = step.server
            print(server)
        outcome = {True: "ok", False: "failed", None: "-"}[step.ok]
        print(f"{outcome:7} {step.name}: {step.message}")
    return 0 if failed is None else 1


async def _check(arguments: argparse.Namespace) -> HealthReport:
    async with new_client(arguments) as clip:
        return await clip.health(timeout_s=arguments.timeout_s)
