"""Files that are there whole or not at all, and folders that one run at a time writes to."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final

from clip_client.cli.errors import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PART: Final = ".part"


def check_place(path: Path) -> None:
    """Raise CommandFailed where ``path`` surely cannot be written: better before the long work than after it."""
    if os.path.isdir(path):
        raise CommandFailed(f"cannot write {path}: it is a folder")
    if not os.path.isdir(path.parent):
        raise CommandFailed(f"cannot write {path}: there is no folder {path.parent}")


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that takes the place of ``path`` at the end of the block.

    It is written beside ``path``; if the block raises it is removed, and what was at ``path`` stays. Where ``path`` is
    something other than a file, such as ``/dev/stdout``, that is written itself. Raises CommandFailed where the file
    cannot be written.
    """
    check_place(path)
    # Not Path's methods, which raise where a folder above may not be looked into.
    in_place = os.path.exists(path) and not os.path.isfile(path)
    target = path if in_place else path.with_name(f".{path.name}.{os.getpid()}{_PART}")
    try:
        file = open(target, "wb")
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error.strerror}") from None
    try:
        with file:
            yield file
            if not in_place:
                # The name must not reach the disk before the content does.
                file.flush()
                os.fsync(file.fileno())
        if not in_place:
            os.replace(target, path)
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if not in_place:
            target.unlink(missing_ok=True)


def remove_parts_of_shards(folder: Path) -> None:
    """Remove what :func:`replacing` left in ``folder`` when its process was killed; call it inside :func:`locked`."""
    for part in folder.glob(f".part-*.parquet.*{_PART}"):
        part.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make ``folder`` where it is not there, and keep other processes out of the same block for the same folder.

    The lock ends with the process, however that ends. Raises CommandFailed where another process is in the block, or
    the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "ab")
    except OSError as error:
        raise CommandFailed(f"cannot write into {folder}: {error.strerror}") from None
    with file:
        try:
            is_ours = _lock(file.fileno())
        except OSError as error:
            raise CommandFailed(f"cannot lock {folder}: {error.strerror}; name a folder of another disk") from None
        if not is_ours:
            raise CommandFailed(f"another clip-client is writing into {folder}; wait for it, or stop it")
        yield


if sys.platform == "win32":

    def _lock(descriptor: int) -> bool:
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:

    def _lock(descriptor: int) -> bool:
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
