"""Which files a command takes; the same for every command that takes photos."""

from __future__ import annotations

import glob
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from clip_client.cli.errors import CommandFailed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from clip_client.dedup import Scan


def add_walk_options(parser: argparse.ArgumentParser) -> None:
    """Add ``PATH...``, ``--files-from``, ``--null``, ``--hidden``, ``--follow-links`` and ``--one-file-system``."""
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="photos; folders, which are searched with all below them; patterns such as 'trip/**/*.jpg'; libraries of "
        "Apple Photos",
    )
    parser.add_argument(
        "--files-from",
        metavar="FILE",
        help="also take the paths that FILE lists, one in a line; - is standard input",
    )
    parser.add_argument(
        "--null", action="store_true", help="paths in FILE end with a NUL byte, as find -print0 writes them"
    )
    parser.add_argument("--hidden", action="store_true", help="also take files and folders that begin with a dot")
    parser.add_argument("--follow-links", action="store_true", help="also walk into links to folders")
    parser.add_argument(
        "--one-file-system",
        action="store_true",
        help="do not walk into folders where another file system is mounted (default: walk into them)",
    )
    parser.set_defaults(refuse_usage=parser.error)


def named_paths(arguments: argparse.Namespace) -> list[str]:
    """Return every path that was named, patterns and lists resolved; a pattern that matches nothing stays as it is.

    Ends the command with its usage where none was named; raises CommandFailed for a list that cannot be read.
    """
    if not arguments.paths and arguments.files_from is None:
        arguments.refuse_usage("name a PATH, or a list of them with --files-from")
    if arguments.null and arguments.files_from is None:
        arguments.refuse_usage("--null says how --files-from FILE is written, and there is none")
    named = [found for path in arguments.paths for found in _resolved(path)]
    return named + ([] if arguments.files_from is None else _listed(arguments.files_from, null=arguments.null))


def scan_named(
    arguments: argparse.Namespace,
    paths: Iterable[str] | None = None,
    *,
    raw: bool = False,
    show: Callable[[str, int, int | None], None] | None = None,
) -> Scan:
    """Walk ``paths``, else what was named, as the options say; ``show`` is a bar for it."""
    from clip_client.dedup import scan

    return scan(
        named_paths(arguments) if paths is None else paths,
        include_hidden=arguments.hidden,
        follow_links=arguments.follow_links,
        one_file_system=arguments.one_file_system,
        raw=raw,
        on_progress=show and (lambda found: show("looking for photos", found, None)),
    )


def _resolved(path: str) -> list[str]:
    # A shell has resolved most patterns already, and a file may be called like one.
    if os.path.lexists(path) or not glob.has_magic(path):
        return [path]
    return sorted(glob.glob(path, recursive=True)) or [path]


def _listed(source: str, *, null: bool) -> list[str]:
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise CommandFailed(f"the list {source} cannot be read: {error.strerror}") from None
    # Not splitlines: a name may hold a carriage return, which only at the end of a line is that of another system.
    lines = data.split(b"\0") if null else [line.removesuffix(b"\r") for line in data.split(b"\n")]
    return [os.fsdecode(line) for line in lines if line]
