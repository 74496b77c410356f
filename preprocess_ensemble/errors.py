"""The base class of errors that people read, and how such an error quotes an exception of a library."""

from __future__ import annotations


class ReportedError(Exception):
    """The work cannot be done, and the user can do something about it.

    The message is for people: it names the item, the limit or the cause, and the remedy. Commands print the message
    without a traceback and exit with 1.
    """


def first_line(error: BaseException) -> str:
    """Return the first line of ``error``'s text without its full stop, or the exception's name if it has no text.

    Further lines are for the developers of the library that raised the error.
    """
    return str(error).strip().partition("\n")[0].rstrip(".: ") or type(error).__name__
