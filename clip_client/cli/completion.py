"""``clip-client --completion``: print a script with which a shell completes the command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any, Final

from clip_client.cli.errors import need

_SHELLS: Final = ("bash", "zsh", "fish", "tcsh")


def add_completion_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--completion",
        choices=_SHELLS,
        action=_CompletionAction,
        help="print a script that lets this shell complete commands, options and paths, and exit",
    )


class _CompletionAction(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        need("shtab")
        import shtab

        for action in _actions(parser):
            names = action.metavar if isinstance(action.metavar, str) else ""
            if re.search("PATH|PHOTO|FILE|DIR", names):
                action.complete = shtab.DIRECTORY if names == "DIR" else shtab.FILE  # type: ignore[attr-defined]
        print(shtab.complete(parser, values))
        parser.exit()


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from _actions(subparser)
