"""The logs of ``clip-serve``: lines of Triton, the file that keeps them, and log records as JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Final

from preprocess_ensemble.errors import ReportedError

logger = logging.getLogger(__name__)

OUTPUT: Final = logging.getLogger(f"{__name__}.output")  # every line of Triton; only --log-file shows them
OUTPUT.setLevel(logging.INFO)
OUTPUT.propagate = False

_LINE: Final = re.compile(r"(?P<level>[WEF])\d{4} [\d:.]+ \d+ \S+\] (?P<text>.*)")
"""A warning or error of Triton: ``E1121 13:04:26.771774 8809 model_lifecycle.cc:642] "text"``."""

_RUNS_ON: Final = re.compile(r"I\d{4} [\d:.]+ \d+ \S+\] (?P<text>\"\w+: runs on .*)")
"""The only information that people see: the runtime that this package's backend has chosen for a model."""

_FATAL: Final = re.compile(r"(?:error|failed|(?:\S*/)?tritonserver|  what\(\)): +(?P<text>.*)", re.IGNORECASE)
"""Last line of the server, or of its launcher, when it gives up. Errors about an option begin with the server's path.
The C++ library prints ``what()`` of an uncaught exception."""

_NOT_LOADED: Final = re.compile(r"failed to load '(?P<model>[^']+)' version \d+: (?P<reason>.*)")
_EXCEPTION: Final = re.compile(r"^(?:\w+: )?TritonModelException: ")

_EXPECTED: Final = re.compile(
    # On any machine without a GPU.
    r"CUDA driver version is insufficient|CudaDriverHelper|NVML|DCGM|no CUDA-capable device|pinned system memory"
    # For any model whose config.pbtxt is complete.
    r"|skipping model configuration auto-complete"
    # Its own time limit, after that for running requests.
    r"|failed to stop server: Internal - Exit timeout expired"
    # The next line repeats it with the model's name.
    r"|Failed to create instance"
)


def parse_line(line: str) -> tuple[int, str] | None:
    """Return the level (INFO, WARNING or ERROR) and the plain sentence of a line; None if people need not see it."""
    if _EXPECTED.search(line):
        return None
    if match := _RUNS_ON.match(line):
        return logging.INFO, _plain(match["text"])
    if match := _LINE.match(line):
        return logging.WARNING if match["level"] == "W" else logging.ERROR, _plain(match["text"])
    fatal = _FATAL.match(line)
    return (logging.ERROR, fatal["text"]) if fatal else None


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
    """Leave out repeated reasons: Triton gives the reason of a failed warm-up once for each row."""
    kept: list[str] = []
    for part in text.split("; "):
        if not kept or not kept[-1].endswith(part.strip("; ")):
            kept.append(part)
    return "; ".join(kept)


class _OutputFile(WatchedFileHandler):
    """Appends lines to a file, or after log rotation to a new one. Drops lines on a full disk: the server goes on."""

    _is_failing = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.reopenIfNeeded()
            self.stream = self.stream or self._open()
            self.stream.write(f"{record.getMessage()}\n")
            self.stream.flush()
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                logger.error("cannot write %s (%s): Triton's log lines are lost", self.baseFilename, error.strerror)
            self._is_failing = True


@contextlib.contextmanager
def append_output_to(path: Path) -> Iterator[None]:
    """Append what is logged to OUTPUT to ``path`` inside the block. Raises ReportedError if it cannot be written."""
    try:
        file = _OutputFile(path, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise ReportedError(
            f"The log file {path} cannot be written ({error.strerror}): name another with --log-file."
        ) from None
    OUTPUT.addHandler(file)
    try:
        yield
    finally:
        OUTPUT.removeHandler(file)
        with contextlib.suppress(OSError):
            file.close()


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object: ``time`` (UTC, with milliseconds), ``level``, ``logger`` and ``message``."""

    def format(self, record: logging.LogRecord) -> str:
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
    """Write ``line`` to standard output, and continue if that is closed or a file on a full disk."""
    try:
        sys.stdout.write(line)
        sys.stdout.flush()
    except (OSError, AttributeError):  # sys.stdout is None if it was closed before the start
        sys.stdout = None  # otherwise Python would write the line again when it exits, and fail
