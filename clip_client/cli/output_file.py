"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from clip_client.cli.failure import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def check_place(path: Path) -> None:
    """Raise CommandFailed where ``path`` surely cannot be written: better before the long work than after it."""
    if path.is_dir():
        raise CommandFailed(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise CommandFailed(f"cannot write {path}: there is no folder {path.parent}")


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that takes the place of ``path`` at the end of the block.

    It is written beside ``path``; if the block raises it is removed, and what was at ``path`` stays. Where ``path`` is
    something other than a file, such as ``/dev/stdout``, that is written itself. Raises CommandFailed where the file
    cannot be written.
    """
    check_place(path)
    in_place = path.exists() and not path.is_file()
    target = path if in_place else path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        file = open(target, "wb")
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error.strerror}") from None
    try:
        with file:
            yield file
        if not in_place:
            os.replace(target, path)
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if not in_place:
            target.unlink(missing_ok=True)
