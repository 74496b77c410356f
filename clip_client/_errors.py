"""The exceptions of this package: :class:`ClipError`, and the classes that are derived from it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Final

from preprocess_ensemble.errors import ReportedError, pip_install

MORE_TIME: Final = "use a longer timeout_s"
"""The remedy of a call whose time ran out; ``clip-gateway`` gives its callers another, because they set no time."""


class ClipError(ReportedError):
    """Root of all errors that this package raises on purpose.

    ``message`` is one sentence for people. ``request_id`` names the request in the server's log, if the error belongs
    to one. ``ran_out_of_time`` is True for :class:`DeadlineExceeded`, and for :class:`Overloaded` if the client did not
    send an image because its answer would have come too late.
    """

    ran_out_of_time = False

    def __init__(self, message: str, *, request_id: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id

    def __str__(self) -> str:
        return f"{self.message} (request {self.request_id})" if self.request_id else self.message


class ItemError(ClipError):
    """One image or text could not be embedded; this does not affect the others in its batch.

    ``code`` is the name of an ``ImageStatus`` (``"TRUNCATED"``, ``"LIMIT"``, ...), ``"UNREADABLE"`` if the source could
    not be read, or ``"TIMEOUT"`` if the call's ``timeout_s`` ran out, or the client's while reading the source.
    An item with ``"TIMEOUT"`` is worth embedding again. ``index`` is the position in the caller's input;
    ``source`` is the path of an image if the caller passed a path, else ``None``.
    """

    item: ClassVar[str] = "item"

    def __init__(
        self, message: str, *, code: str, index: int = 0, source: str | None = None, request_id: str | None = None
    ) -> None:
        super().__init__(message, request_id=request_id)
        self.code, self.index, self.source = code, index, source

    def __reduce__(self) -> tuple[object, ...]:
        # Pickle rebuilds exceptions from positional arguments, and ``code`` is a keyword argument.
        return (partial(type(self), code=self.code), (self.message,), self.__dict__)

    def __repr__(self) -> str:
        where = f"index={self.index}" if self.source is None else f"index={self.index}, source={self.source!r}"
        return f"{type(self).__name__}({self.message!r}, code={self.code!r}, {where})"

    def __str__(self) -> str:
        where = self.source if self.source is not None else f"{self.item} {self.index}"
        return f"{where}: {self.code}: {super().__str__()}"


class ImageError(ItemError):
    """One image could not be embedded."""

    item = "image"


class TextError(ItemError):
    """One text could not be embedded."""

    item = "text"


class ItemErrors(ClipError):
    """Several items failed; raised by ``raise_for_errors`` only. ``errors`` maps the index to its ``ItemError``."""

    def __init__(self, errors: Mapping[int, ItemError]) -> None:
        first = next(iter(errors.values()))
        super().__init__(f"{len(errors)} {first.item}s failed, such as {first}")
        self.errors = dict(errors)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.errors,))


class Unavailable(ClipError):
    """No server could be reached, the connection was lost, or a model's process has ended. Safe to retry."""


class Overloaded(ClipError):
    """The server, or this client's limit for it, refused more work. Safe to retry later."""


class Shed(Overloaded):
    """The client did not send an image or text, because its answer would have come too late."""

    ran_out_of_time = True


class DeadlineExceeded(ClipError):
    """``timeout_s`` ran out before the response arrived."""

    ran_out_of_time = True


class ModelNotReady(ClipError):
    """A server answered, but its model is not ready, or lacks a text tower."""


class Unauthorized(ClipError):
    """The server refused the token or the certificate. Retrying cannot help."""


class ProtocolMismatch(ClipError):
    """The response does not fit the model or the contract that the handshake named."""


class ForkedProcess(ClipError, RuntimeError):
    """A process made by ``fork`` used a client of its parent, or gRPC after its parent had used gRPC.

    Start processes with the method ``spawn`` or ``forkserver``, and make a client in each process.
    """


def forked_process(used: str, pid: int) -> ForkedProcess:
    """Make the error of a process that was forked from the process ``pid``; ``used`` says what was used there."""
    return ForkedProcess(
        f"{used} in process {pid}, from which this process was forked: start processes with the method 'spawn' or "
        "'forkserver', and make a client in each."
    )


class VectorsError(ClipError, ValueError):
    """Vectors cannot be loaded, saved or compared; the message says why. The error does not come from a server."""


def require(package: str, extras: str | None = None) -> None:
    """Import ``package``. If that fails, raise ImportError with the command that installs it, or these extras."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        command = f"pip install {package}" if extras is None else pip_install(extras)
        message = f"this needs {package} ({error}); install it with: {command}"
        raise ImportError(message, name=package) from error
