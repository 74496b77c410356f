"""Checks that say what fails, and why: ``clip-client health`` for a server, ``doctor`` also for this machine."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
from dataclasses import asdict
from typing import Final

from clip_client import ClipClient, HealthReport
from clip_client._client import URL_VARIABLE
from clip_client.cli.errors import CommandFailed
from clip_client.cli.options.connection import add_server_options, add_timeout_option, client_config
from clip_client.cli.output import add_json_option, write_json

_TIMEOUT_S: Final = 10.0
"""Default of ``--timeout``: a probe needs a quick answer, and a healthy server responds in a fraction of a second."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
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
    add_json_option(parser, "the steps")
    parser.add_argument("--quiet", "-q", action="store_true", help="print only the step that failed, on standard error")


def run(arguments: argparse.Namespace) -> int:
    """Print each step; return 1 if a step failed."""
    report = asyncio.run(_check(arguments))
    failed = report.failed
    steps = [{**asdict(step), "error": step.error and step.error.__name__} for step in report.steps]
    has_json = write_json(arguments.json, {"ok": report.ok, "model": report.model_id, "steps": steps})
    if arguments.quiet:
        if failed is not None:
            raise CommandFailed(f"not healthy: {failed.name}: {failed.message}")
        return 0
    if has_json:
        return 0 if failed is None else 1
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
    async with ClipClient(config=client_config(arguments)) as clip:
        return await clip.health(timeout_s=arguments.timeout_s)


def add_doctor_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "doctor",
        usage="%(prog)s [options]",
        help="check the server and this installation",
        description="Show which Triton server responds, with its model and provider, and which packages are installed "
        "here; name missing parts and how to install them. Without --url, if no server responds, check the model on "
        "this machine, which other commands then use. The exit code is 1 if photos cannot be embedded.",
    )
    add_server_options(parser, may_be_local=True)
    add_timeout_option(parser, default_s=10.0, meaning="time limit for each request to the server")
    add_json_option(parser, "the findings")


def run_doctor(arguments: argparse.Namespace) -> int:
    """Run every check and print it; return 1 if there is a problem."""
    from clip_client.cli.doctor import Level, check_machine, check_server, table_lines  # they load importlib.metadata

    config = client_config(arguments)
    origin = "--url" if arguments.url else URL_VARIABLE if os.environ.get(URL_VARIABLE) else "the default"
    checks, answers = asyncio.run(check_server(config, origin=origin, timeout_s=arguments.timeout_s))
    checks += check_machine(server_answers=answers)
    is_well = all(check.level is not Level.PROBLEM for check in checks)
    if not write_json(arguments.json, {"ok": is_well, "findings": [asdict(check) for check in checks]}):
        # Print without rich: this command has to work without optional packages.
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 120
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        for line in table_lines(checks, width=width, colour=colour):
            print(line)
    return 0 if is_well else 1
