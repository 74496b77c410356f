"""The argument parser of all commands: suggestions for misspelt names, remedies for removed ones, checked types."""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, Final, NoReturn, TypeVar

from preprocess_ensemble.refusals import refusal

Number = TypeVar("Number", int, float)

DISTRIBUTION: Final = "clip-triton"  # name of the package that pip installs
_INVALID_CHOICE: Final = re.compile(r"invalid choice: '?([^'\s]*)'? \(choose from (.*)\)")


class Parser(argparse.ArgumentParser):
    """Suggests names for a misspelt command, option or choice. The parser of a subcommand refuses unknown arguments."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        words = sys.argv[1:] if args is None else args
        if sentence := refusal(self.prog, words):
            self.exit(2, f"{sentence}\n")
        known: argparse.Namespace
        known, unknown = self.parse_known_args(words, namespace)
        if unknown:
            parser: Parser = getattr(known, "parser", self)
            parser.refuse(unknown)
        return known

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = list(args or ())
        return super().parse_known_args(args, namespace)

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if not options:
            # argparse takes the words of a list only if no option comes between them.
            words, lists = " ".join(unknown), (one for one in self._actions if not one.option_strings)
            takes_list = any(one.nargs in ("+", "*") and one.help is not argparse.SUPPRESS for one in lists)
            self.error(f"unexpected arguments: {words}" + (f"; put {words} before the options" if takes_list else ""))
        if options[0] in self._option_string_actions:
            self.error(f"{options[0]} after -- is not an option; put it before --")
        # The name of a setting in Python also leads to its option: --ca-certificate to --tls-ca.
        named = {action.dest.replace("_", "-"): option for option, action in self._option_string_actions.items()}
        names = list(self._option_string_actions)
        self.error(f"there is no option {options[0]}{_as_file(options) or _suggestion(options[0], names, named)}")

    def error(self, message: str) -> NoReturn:
        if message == "argument --json: expected one argument":
            message = "--json needs a FILE; - is standard output"
        if message.startswith("the following arguments are required"):
            message += _as_file(self._words)
        if found := _INVALID_CHOICE.search(message):
            message += _suggestion(found[1], [name.strip("'") for name in found[2].split(", ")])
        super().error(message)

    def add_version_option(self) -> None:
        self.add_argument(
            "--version", nargs=0, action=_VersionAction, default=argparse.SUPPRESS, help="show the version and exit"
        )


class _VersionAction(argparse.Action):
    """Prints the version, which is slow to find and therefore looked up only here."""

    def __call__(self, parser: argparse.ArgumentParser, *_rest: Any) -> None:
        from importlib import metadata

        try:
            version = metadata.version(DISTRIBUTION)
        except metadata.PackageNotFoundError:
            version = "from its source, not installed"
        sys.stdout.write(f"{parser.prog} {version}\n")
        parser.exit()


def _as_file(words: Sequence[str]) -> str:
    name = next((word for word in words if word.startswith("-") and os.path.lexists(word)), "")
    return f"; write ./{name} for the file of that name" if name else ""


def _suggestion(word: str, names: Sequence[str], synonyms: Mapping[str, str] = MappingProxyType({})) -> str:
    # Compare without the hyphens, which all options share.
    by_letters = {**synonyms, **{name.lstrip("-"): name for name in names}}
    close = difflib.get_close_matches(word.lstrip("-"), by_letters, n=1)
    return f"; did you mean {by_letters[close[0]]}?" if close else ""


def number_type(
    convert: Callable[[str], Number], accept: Callable[[Number], bool], *, expected: str
) -> Callable[[str], Number]:
    """Return the ``type`` of an option for numbers that ``accept`` allows; ``expected`` describes them to the user."""

    def parse(text: str) -> Number:
        with suppress(ValueError):
            number = convert(text)
            if accept(number):
                return number
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")

    return parse


count = number_type(int, lambda number: number >= 1, expected="a whole number of at least 1")
port = number_type(int, lambda number: 1 <= number <= 65535, expected="a port from 1 to 65535")
seconds = number_type(float, lambda number: 0 < number < math.inf, expected="a number of seconds above 0")


def try_port(host: str, number: int) -> None:
    """Open a TCP port of ``host``, over IPv4 if it has an IPv4 address, and close it. Raises OSError if that fails."""
    try:
        family, *_, address = min(socket.getaddrinfo(host, number, type=socket.SOCK_STREAM))
    except UnicodeError:  # an impossible name, such as a..b
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None
    with socket.socket(family) as probe:
        if os.name == "posix":
            # Ignore a connection that has just ended: it does not keep the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def user_path(text: str) -> Path:
    """Return a path of the command line. A leading ``~``, which shells leave in ``--store=~/x``, is the home folder."""
    return Path(os.path.expanduser(text))


@contextmanager
def sigterm_like_ctrl_c() -> Iterator[Callable[[], int]]:
    """Treat SIGTERM like Ctrl-C in the block, unless it is ignored; give a function that returns the exit code."""
    number, before = signal.SIGINT, signal.getsignal(signal.SIGTERM)

    def interrupt(_number: int, frame: FrameType | None) -> None:
        nonlocal number
        number = signal.SIGTERM
        # Call the handler of SIGINT, because that of a running event loop cancels its task. There is none in the
        # background of a script, where SIGINT is ignored.
        on_interrupt = signal.getsignal(signal.SIGINT)
        if not callable(on_interrupt):
            raise KeyboardInterrupt
        on_interrupt(signal.SIGINT, frame)

    replaces = threading.current_thread() is threading.main_thread() and before not in (signal.SIG_IGN, None)
    if replaces:
        signal.signal(signal.SIGTERM, interrupt)
    try:
        yield lambda: 128 + number  # as shells have it
    finally:
        if replaces:
            signal.signal(signal.SIGTERM, before)
