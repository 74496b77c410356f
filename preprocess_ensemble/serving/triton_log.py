"""What Triton says, in a form for people: warnings and errors without source lines, quotes and tracebacks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

__all__ = ("Remark", "read_line")

_LINE: Final = re.compile(r"(?P<level>[IWEF])\d{4} [\d:.]+ \d+ \S+\] (?P<text>.*)")
"""Triton's default log format: ``E1121 13:04:26.771774 8809 model_lifecycle.cc:642] "text"``."""

_FATAL: Final = re.compile(r"(?:error|failed|(?:\S*/)?tritonserver): (?P<text>.*)", re.IGNORECASE)
"""What the server, or its launcher, prints before it gives up; with its path in front where it is about an option."""

_NOT_LOADED: Final = re.compile(r"failed to load '(?P<model>[^']+)' version \d+: (?P<reason>.*)")
_EXCEPTION: Final = re.compile(r"^(?:\w+: )?TritonModelException: ")

_EXPECTED: Final = re.compile(
    # Of a machine without a GPU.
    r"CUDA driver version is insufficient|CudaDriverHelper|NVML|DCGM|no CUDA-capable device|pinned system memory"
    # Of any model whose config.pbtxt is complete.
    r"|skipping model configuration auto-complete"
    # Said again, with the model's name, in the line that follows.
    r"|Failed to create instance"
)


@dataclass(frozen=True, kw_only=True)
class Remark:
    """One warning or error."""

    level: str
    """``"warning"`` or ``"error"``."""
    text: str


def read_line(line: str) -> Remark | None:
    """Read one line of Triton's output; ``None`` for what is of no concern to people."""
    match = _LINE.match(line)
    if match is None:
        fatal = _FATAL.match(line)
        return Remark(level="error", text=fatal["text"]) if fatal and not _EXPECTED.search(line) else None
    if match["level"] == "I" or _EXPECTED.search(line):
        return None
    return Remark(level="warning" if match["level"] == "W" else "error", text=_plain(match["text"]))


def _plain(text: str) -> str:
    try:
        unquoted = str(json.loads(text)) if text.startswith('"') else text
    except ValueError:
        unquoted = text.strip('"')
    # What follows the first line is a traceback of the server.
    first = unquoted.strip().partition("\n")[0]
    not_loaded = _NOT_LOADED.match(first)
    if not_loaded is None:
        return first
    reason = re.sub(r"^\w[\w ]*: ", "", not_loaded["reason"], count=1)
    return f"{not_loaded['model']} could not be loaded: {_EXCEPTION.sub('', reason)}"
