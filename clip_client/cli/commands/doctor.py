"""``clip-client doctor``: what keeps photos from being embedded, at a server or on this machine."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
from dataclasses import asdict

from clip_client._client import URL_VARIABLE
from clip_client.cli.options.connection import add_server_options, add_timeout_option, client_config
from clip_client.cli.output import add_output_options, write_json


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    add_output_options(parser, json="the findings")


def run(arguments: argparse.Namespace) -> int:
    from clip_client.cli.commands import doctor_checks  # it loads importlib.metadata

    config = client_config(arguments)
    origin = "--url" if arguments.url else URL_VARIABLE if os.environ.get(URL_VARIABLE) else "the default"
    checks, answers = asyncio.run(doctor_checks.check_server(config, origin=origin, timeout_s=arguments.timeout_s))
    checks += doctor_checks.check_machine(server_answers=answers)
    is_well = all(check.level is not doctor_checks.Level.PROBLEM for check in checks)
    if not write_json(arguments.json, {"ok": is_well, "findings": [asdict(check) for check in checks]}):
        # Print without rich: this command has to work without optional packages.
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 120
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        for line in doctor_checks.table_lines(checks, width=width, colour=colour):
            print(line)
    return 0 if is_well else 1
