"""Putting new files in the place of old ones, so that an interrupted or refused export leaves the old model at work."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.errors import ReportedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


__all__ = ("StagingError", "install", "require_space", "staging", "write_atomically")

_PREFIX: Final = ".staging-"
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StagingError(ReportedError):
    """The files cannot be written; the message is one sentence with the remedy."""


def require_space(directory: Path, needed_bytes: int) -> None:
    """Raise StagingError unless the file system of ``directory`` has ``needed_bytes`` free."""
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes:
        raise StagingError(_no_space(directory, needed_bytes, f"{free_bytes / 1e6:.0f} MB are free"))


@contextmanager
def staging(directory: Path, needed_bytes: int) -> Iterator[Path]:
    """Yield a new, empty directory inside ``directory``, on the same file system, and remove it at the end.

    One export at a time works in ``directory``. What a killed one left behind is removed first. Raises StagingError
    when another is at work, or when the disk turns out to be full; ``needed_bytes`` is for that message.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            # The kernel drops the lock with its process, however that ends; so each directory found here is abandoned.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StagingError(f"Another export is writing to {directory}; wait until it has ended.") from None
        for abandoned in directory.glob(f"{_PREFIX}*"):
            shutil.rmtree(abandoned)
        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=directory, ignore_cleanup_errors=True) as name:
            yield Path(name)
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        found = f"{shutil.disk_usage(directory).free / 1e6:.0f} MB are free"
        if error.errno != errno.ENOSPC:
            found = f"a limit stops it ({error.strerror})"
        raise StagingError(_no_space(directory, needed_bytes, found)) from error
    finally:
        os.close(handle)


def install(files: Iterable[Path], seal: Path, directory: Path) -> None:
    """Move finished ``files`` and then ``seal`` into ``directory``, each in one step over a file of the same name.

    The old seal goes first and the new one comes last, so a directory with a seal holds files that belong together.
    All bytes are on the disk before anything changes; from then on it takes a few renames, which need no space.
    """
    files = tuple(files)
    for file in (*files, seal):
        _flush(file)
    (directory / seal.name).unlink(missing_ok=True)
    for file in (*files, seal):
        os.replace(file, directory / file.name)
    _flush(directory)


def write_atomically(path: Path, text: str) -> None:
    """Write ``text``, as ASCII, to ``path`` in one step: whoever reads ``path`` sees the old text or the new one."""
    new = path.with_name(f"{_PREFIX}{path.name}")
    new.write_text(text, encoding="ascii")
    _flush(new)
    os.replace(new, path)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _no_space(directory: Path, needed_bytes: int, found: str) -> str:
    return (
        f"The export needs {needed_bytes / 1e6:.0f} MB in {directory} and {found}; "
        "make room there, or choose another --repository."
    )
