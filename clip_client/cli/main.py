"""``clip-client``; exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 stopped by SIGTERM."""

from __future__ import annotations

import argparse
import errno
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from clip_client.cli.commands import decide, dedup, doctor, embed, health, purge, review, rules, search, similar, undo
from clip_client.cli.errors import CommandMisused, need
from clip_client.cli.output import read_outputs
from preprocess_ensemble.command_line import Parser, sigterm_like_ctrl_c
from preprocess_ensemble.errors import ReportedError

_COMMANDS = (embed, search, similar, dedup, review, undo, purge, decide, rules, health, doctor)
_GO_ON = ("dedup", "embed", "search")  # commands that continue when they are called again


def main(argv: Sequence[str] | None = None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Escape characters that the terminal's encoding lacks: a file name must not make the command fail.
        sys.stdout.reconfigure(errors="backslashreplace")
    # gRPC reads this when it is imported: its own log lines would stand before the sentence about an error.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    words = tuple(sys.argv[1:] if argv is None else argv)
    with sigterm_like_ctrl_c() as exit_code:
        try:
            return _run(words)
        except KeyboardInterrupt:
            goes_on = "; the work that is done is kept, and the same command continues it" if words[0] in _GO_ON else ""
            return _say(f"interrupted{goes_on}", exit_code())


def _run(words: Sequence[str]) -> int:
    parser = _parser()
    try:
        try:
            if not words:
                parser.exit(2, parser.format_help())
            arguments = parser.parse_args(words)
        finally:
            sys.stdout.flush()  # after --help; otherwise Python fails at its exit if the reader has closed the output
        arguments.words, arguments.outputs = words, read_outputs(arguments)
        exit_code: int = arguments.run(arguments)
        sys.stdout.flush()
    except CommandMisused as error:
        return _say(str(error), 2)
    except ReportedError as error:
        return _say(str(error), 1)
    except BrokenPipeError:
        return _without_output()
    except OSError as error:
        if _lacks_current_folder(error):
            return _say("the current folder no longer exists; change to another folder, and run the command again", 1)
        if error.errno != errno.ENOSPC:
            raise
        return _say("the output cannot be written: a disk is full", _without_output())
    return exit_code


def _lacks_current_folder(error: OSError) -> bool:
    if isinstance(error, FileNotFoundError) and error.filename is None:
        try:
            os.getcwd()
        except FileNotFoundError:
            return True
    return False


def _parser() -> Parser:
    parser = Parser(
        prog="clip-client",
        usage="%(prog)s COMMAND [options] ...",
        epilog="clip-client COMMAND --help explains a command and its options.",
        description="Embed photos with CLIP on a Triton server, search them by words, and find near-duplicate photos.",
    )
    parser.add_version_option()
    parser.add_argument(
        "--completion",
        choices=("bash", "zsh", "fish", "tcsh"),
        action=_CompletionAction,
        help="print a script that lets this shell complete commands, options and paths, and exit",
    )
    commands: Any = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, prog="clip-client")
    for command in _COMMANDS:
        command.add_to(commands)
    for command, subparser in zip(_COMMANDS, commands.choices.values(), strict=True):
        subparser.set_defaults(parser=subparser, run=command.run)
    return parser


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


def _without_output() -> int:
    """Close standard output, so that Python does not fail when it flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _say(message: str, exit_code: int) -> int:
    print(f"clip-client: {message}", file=sys.stderr)
    return exit_code
