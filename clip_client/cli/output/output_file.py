"""Files that are written completely or not at all, and folders that one process at a time writes to."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final

from clip_client.cli.errors import CommandFailed
from clip_client.dedup.store.lock import AlreadyLocked, exclusive_lock
from preprocess_ensemble.whole_file import whole_file

STDOUT: Final = Path("-")
"""Names standard output where a file is expected."""


def check_place(path: Path) -> None:
    """Raise CommandFailed if ``path`` cannot be written: before the long work rather than after it."""
    if os.path.isdir(path):
        raise CommandFailed(f"cannot write {path}: it is a folder")
    if not os.path.isdir(path.parent):
        raise CommandFailed(f"cannot write {path}: there is no folder {path.parent}")


@contextmanager
def replacing(path: Path, *, final: Callable[[], Path] | None = None) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces ``path`` at the end of the block.

    It is written beside ``path``; if the block raises, it is removed and ``path`` stays as it was. If ``path`` exists
    and is not a regular file, such as ``/dev/stdout``, it is written directly. ``final`` is called at the end and may
    name another file in the same folder to replace instead. Raises CommandFailed if the file cannot be written.
    """
    check_place(path)
    try:
        # Not Path's methods, which raise if a folder above may not be read.
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as file:
                yield file
        else:
            with whole_file(path, final=final) as file:
                yield file
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def output(path: Path) -> Iterator[IO[bytes]]:
    """Open standard output for ``-``, and any other path as :func:`replacing` does."""
    if path != STDOUT:
        with replacing(path) as file:
            yield file
    else:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make ``folder`` if it does not exist, and keep other processes out of the same block for the same folder.

    Raises CommandFailed if another process is in the block, or if the folder cannot be made or locked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandFailed(f"cannot write into {folder}: {error.strerror}") from None
    with ExitStack() as held:
        try:
            held.enter_context(exclusive_lock(folder / ".lock"))
        except AlreadyLocked:
            raise CommandFailed(f"another clip-client is writing into {folder}; wait for it, or stop it") from None
        except OSError as error:
            reason = error.strerror or error
            raise CommandFailed(f"cannot lock {folder}: {reason}; choose a folder on another disk") from None
        yield
