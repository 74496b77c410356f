"""The lock that keeps other processes out of a folder."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path


class AlreadyLocked(Exception):
    """The lock is held already."""


def exclusive_lock(path: Path, *, wait_s: float = 0) -> AbstractContextManager[object]:
    """Take the lock file ``path``, and hold it until the end of the block; wait for it at most ``wait_s`` seconds.

    The operating system releases the lock when the process ends, even if it is killed; the file stays. Raises
    AlreadyLocked if it is held, even by this process, and OSError if the file cannot be made or locked.
    """
    from filelock import FileLock, Timeout

    try:
        # Refuse soft locks: such a lock is a file that outlives a killed process.
        return FileLock(path, timeout=wait_s, fallback_to_soft=False).acquire()
    except Timeout:
        raise AlreadyLocked(str(path)) from None
