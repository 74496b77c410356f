"""The dialects: their addresses, and the forms that they give to refusals."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from pydantic_core import to_json
from starlette.responses import Response

from clip_client import _errors as errors

Dialect: TypeAlias = Literal["openai", "infinity", "form"]
_HEADERS: Final = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "5"}}
"""A restart of Triton takes 9 to 14 seconds, and requests wait for it in that time."""
DOWN: Final = (errors.DeadlineExceeded, errors.ModelNotReady, errors.Unavailable)  # the model does not answer
_MAY_PASS: Final = (*DOWN, errors.Overloaded, errors.ProtocolMismatch)
"""Failures that may pass. ProtocolMismatch means that the model has just changed."""


@dataclass(eq=False)
class Refusal(Exception):
    """A request that is not answered with vectors."""

    status: int  # HTTP status; 422 for a body without the dialect's form
    message: str
    code: str = "invalid_request"
    index: int | None = None  # position of the item that caused the refusal

    @classmethod
    def of(cls, error: errors.ClipError, index: int | None = None) -> Refusal:
        message = error.message.replace(errors.MORE_TIME, "send the request again after the seconds of Retry-After")
        if isinstance(error, errors.ItemError):
            status = {"TIMEOUT": 503, "INTERNAL": 500}.get(error.code, 400)
            return cls(status, f"Item {index}: {message}", error.code, index)
        status = 503 if isinstance(error, _MAY_PASS) else 502 if isinstance(error, errors.Unauthorized) else 500
        # Why the client refuses more work is not the caller's concern.
        kind = errors.Overloaded if isinstance(error, errors.Overloaded) else type(error)
        return cls(status, message, kind.__name__)


def refuse(dialect: Dialect, refusal: Refusal) -> Response:
    """Return the answer to a request that is refused. infinity's are OpenAI's, except to a body of the wrong form."""
    status, index = refusal.status, refusal.index
    content: dict[str, Any]
    if dialect == "form":
        content = {"detail": refusal.message, "code": refusal.code, **({} if index is None else {"index": index})}
    elif dialect == "infinity" and status == 422:
        where = ["body", "input", *([] if index is None else [index])]
        content = {"detail": [{"loc": where, "msg": refusal.message, "type": refusal.code}]}
    else:
        status = 400 if status == 422 else status
        kind = "server_error" if status >= 500 else "invalid_request_error"
        param = None if index is None else f"input.{index}"
        content = {"error": {"message": refusal.message, "type": kind, "param": param, "code": refusal.code}}
    return json_response(content, status)


def json_response(content: Any, status: int = 200) -> Response:
    """Return an answer in JSON. For vectors this takes a tenth of the time of Python's own encoder."""
    return Response(to_json(content), status, _HEADERS.get(status), "application/json")


@dataclass(frozen=True)
class Endpoint:
    """One address. ``answer`` gets the Service and the Body; it may raise Refusal and ClipError."""

    method: str
    path: str
    dialect: Dialect
    answer: Callable[..., Coroutine[Any, Any, Response]]
    summary: str
    body: dict[str, Any] | None = None  # media type -> its schema, in the form of OpenAPI
    is_open: bool = False  # callers need no token: probes have none

    def operation(self) -> dict[str, Any]:
        answers = {"200": {"description": "the answer"}, "default": {"description": "an error of the dialect"}}
        operation: dict[str, Any] = {"summary": self.summary, "responses": answers}
        if "{id}" in self.path:
            operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
        if self.body is not None:
            operation["requestBody"] = {"content": self.body}
        return operation
