"""Refusals, and the form that each dialect gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import JSONResponse

from clip_client._errors import (
    ClipError,
    DeadlineExceeded,
    ItemError,
    ModelNotReady,
    Overloaded,
    ProtocolMismatch,
    Unauthorized,
    Unavailable,
)

_RETRY_AFTER_S: Final = "5"
"""A restart of Triton takes 9 to 14 seconds, and requests wait for it meanwhile."""

_MAY_PASS: Final = (DeadlineExceeded, ModelNotReady, Overloaded, ProtocolMismatch, Unavailable)
"""Failures after which the same request may succeed; ProtocolMismatch is a model that has just changed."""


class Refusal(Exception):
    """A request that is not answered with vectors.

    ``status`` is the HTTP status, 422 if the body does not have the form that the dialect demands. ``code`` is for
    programs, and ``index`` the position of the item that is at fault, if it is one.
    """

    def __init__(self, status: int, message: str, *, code: str = "invalid_request", index: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.index = index

    @property
    def headers(self) -> Mapping[str, str]:
        """``Retry-After`` where another try may help, and what a 401 must have."""
        headers = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": _RETRY_AFTER_S}}
        return headers.get(self.status, {})


def refusal_of(error: ClipError) -> Refusal:
    """Return what callers are told about a failure of the service behind the gateway, or of one item."""
    if isinstance(error, ItemError):
        return refusal_of_item(error.index, error)
    status = 503 if isinstance(error, _MAY_PASS) else 502 if isinstance(error, Unauthorized) else 500
    return Refusal(status, error.message, code=type(error).__name__)


def refusal_of_item(index: int, error: ItemError) -> Refusal:
    """Return the refusal of a whole request because of the item at ``index``."""
    status = {"TIMEOUT": 503, "INTERNAL": 500}.get(error.code, 400)
    return Refusal(status, f"Item {index}: {error.message}", code=error.code, index=index)


@dataclass(frozen=True)
class Dialect:
    """One way to speak HTTP."""

    name: str
    """For the metrics."""
    body_of: Callable[[Refusal], dict[str, Any]]
    schema_status: int = 422
    """The status for a body of the wrong form."""

    def response(self, refusal: Refusal) -> JSONResponse:
        """Answer a request that is refused."""
        status = self.schema_status if refusal.status == 422 else refusal.status
        return JSONResponse(self.body_of(refusal), status, headers=refusal.headers)


def _openai(refusal: Refusal) -> dict[str, Any]:
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    param = None if refusal.index is None else f"input.{refusal.index}"
    return {"error": {"message": refusal.message, "type": kind, "param": param, "code": refusal.code}}


def _infinity(refusal: Refusal) -> dict[str, Any]:
    if refusal.status != 422:
        return _openai(refusal)
    where = ["body", "input"] if refusal.index is None else ["body", "input", refusal.index]
    return {"detail": [{"loc": where, "msg": refusal.message, "type": refusal.code}]}


def _detail(refusal: Refusal) -> dict[str, Any]:
    item = {} if refusal.index is None else {"index": refusal.index}
    return {"detail": refusal.message, "code": refusal.code, **item}


OPENAI: Final = Dialect("openai", _openai, schema_status=400)
INFINITY: Final = Dialect("infinity", _infinity)
IMMICH: Final = Dialect("immich", _detail)
FORM: Final = Dialect("form", _detail)
