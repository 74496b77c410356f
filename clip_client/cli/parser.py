"""The argument parser of ``clip-client``: suggestions for misspelt names, types of options, shell completion."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from clip_client.cli.errors import need

Number = TypeVar("Number", int, float)

SHELLS: Final = ("bash", "zsh", "fish", "tcsh")

_INVALID_CHOICE: Final = re.compile(r"invalid choice: '?([^'\s]*)'? \(choose from (.*)\)")

DISTRIBUTION: Final = "clip-triton"
"""The name of the package that pip installs."""


class Parser(argparse.ArgumentParser):
    """Says what was probably meant by a misspelt command, option or choice; a subcommand's parser refuses its own."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse, or end with a usage, one sentence and exit code 2."""
        known: argparse.Namespace
        known, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser: Parser = getattr(known, "parser", self)
            parser.refuse(unknown)
        return known

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """End with exit code 2 because of arguments that the parser does not know."""
        options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if not options:
            self.error(f"unexpected arguments: {' '.join(unknown)}")
        self.error(f"there is no option {options[0]}{_suggestion(options[0], list(self._option_string_actions))}")

    def error(self, message: str) -> NoReturn:
        """End with the usage, the message and exit code 2."""
        if found := _INVALID_CHOICE.search(message):
            message += _suggestion(found[1], re.findall(r"[\w-]+", found[2]))
        super().error(message)


class VersionAction(argparse.Action):
    """Prints the version, which takes long to find out."""

    def __call__(self, parser: argparse.ArgumentParser, *_rest: Any) -> None:
        """Print and end."""
        from importlib import metadata

        try:
            version = metadata.version(DISTRIBUTION)
        except metadata.PackageNotFoundError:
            version = "from its source, not installed"
        print(f"{parser.prog} {version}")
        parser.exit()


class CompletionAction(argparse.Action):
    """Prints a script with which a shell completes the command line."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        """Print and end."""
        need("shtab")
        import shtab

        for action in _actions(parser):
            names = action.metavar if isinstance(action.metavar, str) else ""
            if re.search("PATH|PHOTO|FILE|DIR", names):
                action.complete = shtab.DIRECTORY if names == "DIR" else shtab.FILE  # type: ignore[attr-defined]
        print(shtab.complete(parser, values))
        parser.exit()


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield every option and argument of the parser and its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from _actions(subparser)


def _suggestion(word: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def number_type(
    convert: Callable[[str], Number], accept: Callable[[Number], bool], *, expected: str
) -> Callable[[str], Number]:
    """Return the ``type`` of an option whose number ``accept`` must hold for; ``expected`` tells the user which."""

    def parse(text: str) -> Number:
        with suppress(ValueError):
            number = convert(text)
            if accept(number):
                return number
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")

    return parse


count = number_type(int, lambda number: number >= 1, expected="a whole number of at least 1")


def user_path(text: str) -> Path:
    """Return a path of the command line; a leading ``~`` is the home folder, which shells leave in ``--store=~/x``."""
    return Path(os.path.expanduser(text))
