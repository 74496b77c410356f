"""The file that Triton's output is appended to, which others rotate, and whose disk may fill up."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ("LogFile", "say")

logger = logging.getLogger(__name__)


class LogFile:
    """Append lines to ``path``: to a new file of that name once the old one was moved away, and to none while none can
    be written, since a server must not end, or fail to restart, for want of a log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._failing = False

    def write(self, line: bytes) -> None:
        """Append one line; a failure is logged, once in a row."""
        try:
            if self._file is None or self._was_moved(self._file):
                file = self._path.open("ab", buffering=0)
                self.close()
                self._file = file
            self._file.write(line)
            self._failing = False
        except OSError as error:
            if not self._failing:
                logger.error("triton's lines are lost while %s cannot be written (%s)", self._path, error.strerror)
            self._failing = True

    def close(self) -> None:
        """Close it."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _was_moved(self, file: BinaryIO) -> bool:
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(file.fileno()))
        except FileNotFoundError:
            return True


def say(line: str) -> None:
    """Write ``line`` to standard output, which may be closed, or a file on a full disk: no reason to end either."""
    try:
        sys.stdout.write(line)
        sys.stdout.flush()
    except (OSError, AttributeError):  # one that was closed from the start is None
        sys.stdout = None  # else Python would write the line again at its own end, and fail
