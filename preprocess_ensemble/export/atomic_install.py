"""Replaces installed files as a whole: an interrupted or rejected export leaves the installed model in place."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from preprocess_ensemble.errors import ReportedError

_PREFIX: Final = ".staging-"
_LOCK: Final = ".export-lock"
"""The file that a running export locks; it stays."""
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def require_space(directory: Path, needed_bytes: int) -> None:
    """Raise ReportedError unless the file system of ``directory`` has ``needed_bytes`` free."""
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes:
        raise ReportedError(_no_space(directory, needed_bytes, f"{free_bytes / 1e6:.0f} MB are free"))


@contextmanager
def staging_directory(directory: Path, needed_bytes: int) -> Iterator[Path]:
    """Yield a new, empty directory inside ``directory``, so on the same file system; remove it at the end.

    Only one export at a time may use ``directory``. The directories of killed exports are removed first. Raises
    ReportedError if another export is running, or if the disk runs full; ``needed_bytes`` is for that message.
    """
    try:
        # The kernel releases the lock when its process ends, so each directory found here is abandoned. A soft lock, a
        # file that outlives a killed process, would not do.
        with FileLock(directory / _LOCK, timeout=0, fallback_to_soft=False):
            for abandoned in directory.glob(f"{_PREFIX}*"):
                shutil.rmtree(abandoned)
            with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=directory, ignore_cleanup_errors=True) as name:
                yield Path(name)
    except Timeout:
        raise ReportedError(f"Another export is writing to {directory}; wait until it ends.") from None
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        found = f"{shutil.disk_usage(directory).free / 1e6:.0f} MB are free"
        if error.errno != errno.ENOSPC:
            found = f"a limit stops it ({error.strerror})"
        raise ReportedError(_no_space(directory, needed_bytes, found)) from error


def install(files: Iterable[Path], commit_marker: Path, directory: Path) -> None:
    """Move finished ``files`` and then ``commit_marker`` into ``directory``, each atomically over its predecessor.

    The old marker is removed first and the new one moved last, so the files of a directory with a marker belong
    together. All bytes are on the disk before anything changes; the rest is a few renames, which need no space.
    """
    files = tuple(files)
    for file in (*files, commit_marker):
        _flush(file)
    (directory / commit_marker.name).unlink(missing_ok=True)
    for file in (*files, commit_marker):
        os.replace(file, directory / file.name)
    _flush(directory)


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
