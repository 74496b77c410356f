"""What an exception of a library says, for a sentence of ours."""

from __future__ import annotations

__all__ = ("first_line",)


def first_line(error: BaseException) -> str:
    """The first line without its full stop, or the exception's name; what follows is for the library's developers."""
    return str(error).strip().partition("\n")[0].rstrip(".: ") or type(error).__name__
