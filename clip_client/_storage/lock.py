"""The lock that keeps other processes out of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class AlreadyLocked(Exception):
    """Another process holds the lock."""


@contextmanager
def exclusive_lock(path: Path, *, wait_s: float = 0) -> Iterator[None]:
    """Hold the lock file ``path`` for the duration of the block; wait for it at most ``wait_s`` seconds.

    The operating system releases the lock when the process ends, even if it is killed; the file stays. Raises
    AlreadyLocked if another process holds it, and OSError if the file cannot be made or locked.
    """
    from filelock import FileLock, Timeout

    # Refuse soft locks: such a lock is a file that outlives a killed process.
    lock = FileLock(path, timeout=wait_s, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise AlreadyLocked(str(path)) from None
    try:
        yield
    finally:
        lock.release()
