"""``clip-client health``: is the server whole, and if not, which step broke?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from clip_client.cli.connection import add_url_option, new_client

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
        "Exit code 0 where all is well, 1 where a step failed: fit for a probe.",
    )
    add_url_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print each step; 1 if one of them failed."""
    report = asyncio.run(_check(arguments.url))
    for step in report.steps:
        outcome = {True: "ok", False: "failed", None: "-"}[step.ok]
        print(f"{outcome:7} {step.name}: {step.message}")
    return 0 if report.ok else 1


async def _check(url: str | None) -> HealthReport:
    async with new_client(url) as clip:
        return await clip.health(timeout_s=_TIMEOUT_S)
