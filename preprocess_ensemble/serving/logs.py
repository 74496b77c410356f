"""The logs of ``clip-serve``: what Triton says, the file that keeps it, and log records as JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

logger = logging.getLogger(__name__)

_LINE: Final = re.compile(r"(?P<level>[IWEF])\d{4} [\d:.]+ \d+ \S+\] (?P<text>.*)")
"""Triton's default log format: ``E1121 13:04:26.771774 8809 model_lifecycle.cc:642] "text"``."""

_FATAL: Final = re.compile(r"(?:error|failed|(?:\S*/)?tritonserver): (?P<text>.*)", re.IGNORECASE)
"""What the server, or its launcher, prints before it gives up. Errors about an option begin with the server's path."""

_NOT_LOADED: Final = re.compile(r"failed to load '(?P<model>[^']+)' version \d+: (?P<reason>.*)")
_EXCEPTION: Final = re.compile(r"^(?:\w+: )?TritonModelException: ")

_EXPECTED: Final = re.compile(
    # On any machine without a GPU.
    r"CUDA driver version is insufficient|CudaDriverHelper|NVML|DCGM|no CUDA-capable device|pinned system memory"
    # For any model whose config.pbtxt is complete.
    r"|skipping model configuration auto-complete"
    # The next line repeats it with the model's name.
    r"|Failed to create instance"
)


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """One warning or error of Triton."""

    level: int
    """``logging.WARNING`` or ``logging.ERROR``."""
    text: str
    """One sentence without source line, quotes and traceback."""


def parse_line(line: str) -> LogEntry | None:
    """Parse one line of Triton's output; None if people need not see it."""
    match = _LINE.match(line)
    if match is None:
        fatal = _FATAL.match(line)
        return LogEntry(level=logging.ERROR, text=fatal["text"]) if fatal and not _EXPECTED.search(line) else None
    if match["level"] == "I" or _EXPECTED.search(line):
        return None
    return LogEntry(level=logging.WARNING if match["level"] == "W" else logging.ERROR, text=_plain(match["text"]))


def _plain(text: str) -> str:
    try:
        unquoted = str(json.loads(text)) if text.startswith('"') else text
    except ValueError:
        unquoted = text.strip('"')
    # The lines after the first are a traceback of the server.
    first = _without_repeats(unquoted.strip().partition("\n")[0])
    not_loaded = _NOT_LOADED.match(first)
    if not_loaded is None:
        return first
    reason = re.sub(r"^\w[\w ]*: ", "", not_loaded["reason"], count=1)
    return f"{not_loaded['model']} could not be loaded: {_EXCEPTION.sub('', reason)}"


def _without_repeats(text: str) -> str:
    """Leave out what repeats the end of what precedes it: Triton gives the reason of a failed warm-up for each row."""
    kept: list[str] = []
    for part in text.split("; "):
        if not kept or not kept[-1].endswith(part.strip("; ")):
            kept.append(part)
    return "; ".join(kept)


class LogFile:
    """Appends lines to the file ``path``.

    If the file is moved away (log rotation), a new one of the same name is opened. While no file can be written, lines
    are dropped: a full disk must not end the server or keep it from restarting.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._is_failing = False

    def write(self, line: bytes) -> None:
        """Append one line. The first of several failures in a row is logged."""
        try:
            if self._file is None or self._was_moved(self._file):
                file = self._path.open("ab", buffering=0)
                self.close()
                self._file = file
            self._file.write(line)
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                logger.error("cannot write %s (%s): Triton's log lines are lost", self._path, error.strerror)
            self._is_failing = True

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _was_moved(self, file: BinaryIO) -> bool:
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(file.fileno()))
        except FileNotFoundError:
            return True


class JsonFormatter(logging.Formatter):
    """Formats a record as ``{"time": ..., "level": ..., "logger": ..., "message": ...}``.

    The time is UTC with milliseconds.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, also if the message has several."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def print_line(line: str) -> None:
    """Write ``line`` to standard output, and go on if that is closed or a file on a full disk."""
    try:
        sys.stdout.write(line)
        sys.stdout.flush()
    except (OSError, AttributeError):  # sys.stdout is None if it was closed before the start
        sys.stdout = None  # otherwise Python would write the line again when it exits, and fail
