"""``clip-client health``: does a server embed, and if not, at which step does it fail?"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict
from typing import Final

from clip_client import ClipClient, HealthReport
from clip_client.cli.errors import CommandFailed
from clip_client.cli.options.connection import add_server_options, add_timeout_option, client_config
from clip_client.cli.output import add_output_options, add_quiet_option, write_json

_TIMEOUT_S: Final = 10.0
"""A probe needs a quick answer, and a healthy server responds in a fraction of a second."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "health",
        usage="%(prog)s [options]",
        help="check a server, step by step",
        description="Check a server step by step. The last steps compare the vectors of a test image and, if the model "
        "has a text tower, of a test text. The exit code suits a probe: 0 if all steps pass, 1 if a step fails, 2 for "
        "wrong usage.",
    )
    add_server_options(parser)
    add_timeout_option(parser, default_s=_TIMEOUT_S, meaning="time limit for all steps together")
    add_output_options(parser, json="the steps")
    add_quiet_option(parser)


def run(arguments: argparse.Namespace) -> int:
    report = asyncio.run(_check(arguments))
    failed = report.failed
    steps = [{**asdict(step), "error": step.error and step.error.__name__} for step in report.steps]
    has_json = write_json(arguments.json, {"ok": report.ok, "model": report.model_id, "steps": steps})
    if arguments.quiet:
        if failed is not None:
            raise CommandFailed(f"not healthy: {failed.name}: {failed.message}")
        return 0
    several = len({step.server for step in report.steps}) > 1
    server = ""
    for step in () if has_json else report.steps:
        if several and step.server != server:
            server = step.server
            print(server)
        outcome = {True: "ok", False: "failed", None: "-"}[step.ok]
        print(f"{outcome:7} {step.name}: {step.message}")
    return 0 if failed is None else 1


async def _check(arguments: argparse.Namespace) -> HealthReport:
    async with ClipClient(config=client_config(arguments)) as clip:
        return await clip.health(timeout_s=arguments.timeout_s)
