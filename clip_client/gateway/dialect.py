"""A dialect: its addresses, and the form that it gives to refusals."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json
from starlette.responses import Response

from clip_client import _errors as errors

if TYPE_CHECKING:
    from pydantic import BaseModel

_HEADERS: Final = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "5"}}
"""Headers of a status. A restart of Triton takes 9 to 14 seconds, and requests wait for it in that time."""
_PASSING: Final = (errors.DeadlineExceeded, errors.ModelNotReady, errors.Overloaded, errors.Unavailable)
_MAY_PASS: Final = (*_PASSING, errors.ProtocolMismatch)
"""Failures after which the same request may succeed. ProtocolMismatch means that the model has just changed."""


@dataclass(eq=False)
class Refusal(Exception):
    """A request that is not answered with vectors."""

    status: int
    """The HTTP status; 422 if the body does not have the form that the dialect demands."""
    message: str
    code: str = "invalid_request"
    index: int | None = None
    """Position of the item that caused the refusal; None if no item did."""

    @classmethod
    def of(cls, error: errors.ClipError, index: int | None = None) -> Refusal:
        """Return the refusal for a failure behind the gateway, or for a failure of the item at ``index``."""
        if isinstance(error, errors.ItemError):
            status = {"TIMEOUT": 503, "INTERNAL": 500}.get(error.code, 400)
            return cls(status, f"Item {index}: {error.message}", error.code, index)
        status = 503 if isinstance(error, _MAY_PASS) else 502 if isinstance(error, errors.Unauthorized) else 500
        # Why the client refuses more work is not the caller's concern.
        kind = errors.Overloaded if isinstance(error, errors.Overloaded) else type(error)
        return cls(status, error.message, kind.__name__)


@dataclass(frozen=True)
class Dialect:
    """The form of the answers of one service."""

    name: str
    """Name in the metrics."""
    body_of: Callable[[Refusal], dict[str, Any]]
    schema_status: int = 422
    """Status for a body of the wrong form."""

    def refuse(self, refusal: Refusal) -> Response:
        """Return the answer to a request that is refused."""
        status = self.schema_status if refusal.status == 422 else refusal.status
        return json_response(self.body_of(refusal), status)


def json_response(content: Any, status: int = 200) -> Response:
    """Return an answer in JSON. For vectors this takes a tenth of the time of Python's own encoder."""
    return Response(to_json(content), status, _HEADERS.get(status), "application/json")


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
FORM: Final = Dialect("form", _detail)


@dataclass(frozen=True)
class Endpoint:
    """One address. ``answer`` gets the Service and the Body; it may raise Refusal and ClipError."""

    method: str
    path: str
    dialect: Dialect
    answer: Callable[..., Coroutine[Any, Any, Response]]
    summary: str
    body: type[BaseModel] | dict[str, Any] | None = None
    """Class of a JSON body, or the JSON schema of each field of a form; the first field is required."""
    is_open: bool = False
    """True if callers need no token, for probes that have none."""

    @property
    def shown_path(self) -> str:
        """The path as OpenAPI writes it."""
        return self.path.replace(":path}", "}")

    def operation(self) -> dict[str, Any]:
        """Return the description of this address for OpenAPI."""
        answers = {"200": {"description": "the answer"}, "default": {"description": "an error of the dialect"}}
        operation: dict[str, Any] = {"summary": self.summary, "responses": answers}
        if "{id" in self.path:
            operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
        if isinstance(self.body, dict):
            schema = {"type": "object", "properties": self.body, "required": [next(iter(self.body))]}
            operation["requestBody"] = {"content": {"multipart/form-data": {"schema": schema}}}
        elif self.body is not None:
            operation["requestBody"] = {"content": {"application/json": {"schema": self.body.model_json_schema()}}}
        return operation
