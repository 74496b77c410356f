"""The files of a command: the photos that it takes, and the store with caches, decisions and the journal of moves."""

from __future__ import annotations

import argparse
import codecs
import difflib
import glob
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clip_client._files import URL, printable
from clip_client._storage.sqlite import StoreError
from clip_client.cli.errors import CommandFailed, CommandMisused, need
from clip_client.dedup import Scan, Store, scan
from clip_client.dedup.store.store import default_directory
from clip_client.dedup.types import OnProgress
from preprocess_ensemble.command_line import user_path

_NEAR: Final = 0.75
"""Least ratio of :mod:`difflib` for a misspelt name: one wrong letter in four, or two swapped letters in eight."""


def add_walk_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="a photo, a folder (searched with all its subfolders), a pattern such as 'trip/**/*.jpg', or an Apple "
        "Photos library",
    )
    parser.add_argument(
        "--files-from", metavar="FILE", help="also take the paths in FILE, one on each line; - is standard input"
    )
    parser.add_argument(
        "--null", action="store_true", help="the paths in FILE end with a NUL byte, as find -print0 writes them"
    )
    parser.add_argument(
        "--hidden",
        dest="include_hidden",
        action="store_true",
        help="also take files and folders whose names begin with a dot",
    )
    parser.add_argument("--follow-links", action="store_true", help="also walk into symbolic links to folders")
    parser.add_argument(
        "--one-file-system",
        action="store_true",
        help="do not walk into other mounted file systems (default: walk into them)",
    )


@dataclass(frozen=True, kw_only=True)
class WalkOptions:
    paths: tuple[str, ...]  # all given paths, with patterns and lists resolved
    how: Mapping[str, bool]  # arguments of :func:`scan`

    def scan(self, more: Iterable[str] = (), *, raw: bool = False, show: OnProgress | None = None) -> Scan:
        """Walk the paths and ``more``; ``raw`` includes RAW files, ``show`` is called with the progress."""
        if show is not None:
            show("looking for photos", 0, None)
        return scan(
            [*self.paths, *more],
            raw=raw,
            on_progress=show and (lambda found: show("looking for photos", found, None)),
            **self.how,
        )


def read_walk_options(arguments: argparse.Namespace) -> WalkOptions:
    if not arguments.paths and arguments.files_from is None:
        arguments.parser.error("give a PATH, or a list of paths with --files-from")
    if arguments.null and arguments.files_from is None:
        arguments.parser.error("--null needs --files-from")
    named = [found for path in arguments.paths for found in _resolved(path)]
    for path in named:
        if not os.path.lexists(path):  # probably misspelt; a path from a list may be gone by now
            raise CommandFailed(why_missing(path))
    listed = [] if arguments.files_from is None else _listed(arguments.files_from, null=arguments.null)
    return WalkOptions(
        paths=(*named, *listed),
        how={name: getattr(arguments, name) for name in ("include_hidden", "follow_links", "one_file_system")},
    )


def _resolved(path: str) -> list[str]:
    if not path:
        raise CommandMisused("a PATH is empty; . is the current folder")
    # Look for a file first: the name of a file may look like a pattern.
    if not os.path.lexists(path):
        refuse_url(path)
        path = os.path.expanduser(path)
    if os.path.lexists(path) or not glob.has_magic(path):
        return [path]
    return sorted(glob.glob(path, recursive=True)) or [path]


def refuse_url(path: str) -> None:
    if URL.match(path):
        raise CommandMisused(f"{path} is a URL, and only files are read; download it first: curl -O {path}")


def need_photos(found: Scan, sentence: str, notes: Any = None) -> None:
    """If no photo was found, list what cannot be read, and raise CommandFailed with ``sentence``."""
    if not found.files:
        from rich.console import Console

        from clip_client.dedup.pages.terminal import print_failed

        print_failed(found.failed, found.skipped, notes or Console(stderr=True))
        raise CommandFailed(sentence)


def why_missing(path: str, what: str = "file or folder") -> str:
    """Say that ``path`` is not there, with the existing path that may be meant, or that a permission hides it."""
    try:
        os.lstat(path)
    except PermissionError:
        return f"{printable(path)} cannot be read: you have no permission to look into its folder"
    except (OSError, ValueError):
        pass
    return f"there is no {what} {printable(path)}{meant(path)}"


def meant(path: str) -> str:
    """Return "; did you mean ...?" for a missing path that nearly matches an existing path, else an empty text."""
    near = nearest(path)
    return f"; did you mean {shlex.quote(printable(near))}?" if near else ""


def nearest(path: str) -> str:
    """Return the existing path that a missing path nearly matches, or begins up to a space; empty if there is none."""
    found = os.sep if os.path.isabs(path) else ""
    for name in filter(None, path.split(os.sep)):
        try:
            names = os.listdir(found or ".")
        except OSError:
            return ""
        near = [name] if name in (*names, ".", "..") else difflib.get_close_matches(name, names, n=1, cutoff=_NEAR)
        near = near or sorted(one for one in names if one.startswith(f"{name} "))
        if not near:
            return ""
        found = os.path.join(found, near[0])
    return found


def _listed(source: str, *, null: bool) -> list[str]:
    try:
        data = sys.stdin.buffer.read() if source == "-" else user_path(source).read_bytes()
    except OSError as error:
        raise CommandFailed(f"the list {source} cannot be read: {error.strerror}") from None
    # Remove the mark with which Windows' editors and PowerShell begin a list.
    data = data.removeprefix(codecs.BOM_UTF8)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            data = os.fsencode(data.decode("utf-16"))
        except UnicodeError:
            raise CommandFailed(f"the list {source} begins like UTF-16 but is not UTF-16; save it as UTF-8") from None
    # Do not use splitlines: a name may contain a carriage return, which belongs to the line break only at a line's end.
    lines = data.split(b"\0") if null else [line.removesuffix(b"\r") for line in data.split(b"\n")]
    return [os.fsdecode(line) for line in lines if line]


def add_store_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store",
        type=user_path,
        metavar="DIR",
        help="folder for cached vectors, decisions and the journal of moves (default: the environment variable "
        "CLIP_STORE, else clip-client in your user data folder)",
    )


@contextmanager
def opened_store(directory: Path | None, *, has_moves: bool = False) -> Iterator[Store]:
    """Open the store; ``has_moves`` if no other store can do the work, so that no error advises one."""
    need("rich", "pyarrow", extras="cli,dedup")
    import sqlite3

    folder = directory or default_directory()
    try:
        with Store(folder) as store:
            if store.warning:
                print(f"clip-client: {printable(store.warning)}", file=sys.stderr)
            yield store
    except StoreError as error:
        if not has_moves:
            raise
        raise StoreError(error.message) from error
    except sqlite3.Error as error:  # while reading; errors of opening and writing are StoreErrors
        raise CommandFailed(
            f"a database of the store {folder} cannot be read ({error}); if it is cache.sqlite, move it away, "
            "because it can be made again; else restore it from a backup"
        ) from error
