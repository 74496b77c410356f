"""``clip-client doctor``: what is there, what is missing, and what to do about it."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from clip_client._client import URL_VARIABLE
from clip_client.cli.doctor.check import CLIENT, SERVER, Check, Level
from clip_client.cli.doctor.server_checks import check_server
from clip_client.cli.options.connection import OTHERWISE, add_server_options, add_timeout_option, client_config
from clip_client.dedup.text import counted

_TIMEOUT_S: Final = 10.0

_TITLES: Final = {SERVER: "The server, or the model in this process", CLIENT: "This machine"}
_MARKS: Final = {Level.OK: " ", Level.HINT: "-", Level.PROBLEM: "!"}
_COLOURS: Final = {Level.OK: "", Level.HINT: "\x1b[33m", Level.PROBLEM: "\x1b[1;31m"}
_PLAIN: Final = "\x1b[0m"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "doctor",
        usage="%(prog)s [options]",
        help="check the server and this installation",
        description="Show which Triton server responds, with its model and provider, and what is installed here; name "
        "what is missing and how to fix it. If you name no server and none responds, the model on this machine is "
        "checked, which embed, dedup and similar use then. The exit code is 1 if photos cannot be embedded.",
    )
    add_server_options(parser, otherwise=OTHERWISE)
    add_timeout_option(parser, default_s=_TIMEOUT_S, meaning="time limit for each request to the server")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run every check and print it; return 1 if there is a problem."""
    checks = asyncio.run(_check_all(arguments))
    is_well = all(check.level is not Level.PROBLEM for check in checks)
    if arguments.json:
        print(json.dumps({"ok": is_well, "findings": [asdict(check) for check in checks]}, indent=2))
    else:
        # No rich and no other optional package: this command has to work without them.
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 120
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        for line in table_lines(checks, width=width, colour=colour):
            print(line)
    return 0 if is_well else 1


async def _check_all(arguments: argparse.Namespace) -> list[Check]:
    from clip_client.cli.doctor.machine_checks import check_machine  # it loads importlib.metadata

    config = client_config(arguments, otherwise="auto:")
    origin = "--url" if arguments.url else URL_VARIABLE if os.environ.get(URL_VARIABLE) else "the default"
    checks, answers = await check_server(config, origin=origin, timeout_s=arguments.timeout_s)
    return [*checks, *check_machine(server_answers=answers)]


def table_lines(checks: Sequence[Check], *, width: int, colour: bool) -> Iterator[str]:
    """Write the checks for people, in lines of at most ``width`` characters or 40, and then what there is to fix."""
    names = 2 + max(len(check.name) for check in checks)
    values = textwrap.TextWrapper(width=max(40, width), subsequent_indent=" " * (names + 2), break_on_hyphens=False)
    for about, title in _TITLES.items():
        yield title
        for check in checks:
            if check.about == about:
                line = values.fill(f"{_MARKS[check.level]} {check.name:{names}}{check.value}")
                yield f"{_COLOURS[check.level]}{line}{_PLAIN}" if colour and _COLOURS[check.level] else line
                if check.remedy:
                    yield values.fill(" " * (names + 2) + check.remedy)
        yield ""
    problems = sum(check.level is Level.PROBLEM for check in checks)
    hints = sum(check.level is Level.HINT for check in checks)
    if problems:
        yield f"! {counted(problems, 'problem')} to fix before photos can be embedded"
    if hints:
        yield f"- {counted(hints, 'hint')}"
    if not problems and not hints:
        yield "no problems found"
