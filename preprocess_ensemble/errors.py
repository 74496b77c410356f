"""Errors that people read, how they quote an exception of a library, and the outcome of an image or text."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from preprocess_ensemble.contract import ImageStatus

_BRING_OPENCV: Final = frozenset(("dedup", "laptop", "ray"))  # extras


class ReportedError(Exception):
    """The work cannot be done. The message is for people: the item, the limit or the cause, and the remedy."""


def pip_install(extras: str = "") -> str:
    """Return the command that installs this package with ``extras``. It needs a clone: no package index has it.

    If ``extras`` bring OpenCV and nvidia-pytriton is installed, the command names ``server`` too: otherwise pip would
    install an OpenCV that brings numpy 2, which breaks nvidia-pytriton.
    """
    if _BRING_OPENCV.intersection(extras.split(",")):
        from importlib import metadata  # its import takes a tenth of that of clip_client

        with contextlib.suppress(metadata.PackageNotFoundError):
            metadata.version("nvidia-pytriton")
            extras += ",server"
    package = f"'.[{extras}]'" if extras else "."
    return f"pip install {package} in a clone of clip-triton"


def first_line(error: BaseException) -> str:
    """Return the first line of ``error``'s text without its full stop, or the exception's name if it has no text."""
    return str(error).strip().partition("\n")[0].rstrip(".: ") or type(error).__name__


class Rejected(ValueError):
    """An image or text cannot be embedded; ``message`` is one sentence for people, without a path or a traceback."""

    def __init__(self, status: ImageStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Outcome:
    status: ImageStatus
    message: str = ""  # one sentence for the client; empty if the row is good
    log: str = ""
    """Traceback of an internal error, never to be sent, because it may hold paths."""
