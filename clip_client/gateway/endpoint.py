"""One address of the gateway: how its body is read, what answers it, and what the OpenAPI document says about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic_core import to_json
from starlette.responses import Response

if TYPE_CHECKING:
    import httpx
    from pydantic import BaseModel

    from clip_client.gateway.bodies import Body
    from clip_client.gateway.errors import Dialect
    from clip_client.gateway.models import Models

Content = TypeVar("Content")


@dataclass(frozen=True)
class Service:
    """What answers are made with."""

    models: Models
    upstream: httpx.AsyncClient | None
    """Calls Immich's own machine-learning service."""


async def no_body(_: Body) -> None:
    """Read nothing, for GET."""


@dataclass(frozen=True)
class Endpoint(Generic[Content]):
    """``read`` may raise Refusal, and ``answer`` also ClipError: both become answers of the dialect."""

    method: str
    path: str
    dialect: Dialect
    read: Callable[[Body], Awaitable[Content]]
    answer: Callable[[Service, Content], Awaitable[Response]]
    summary: str
    schema: type[BaseModel] | dict[str, Any] | None = None
    """Of the body: that of a JSON body, or of a form as a JSON schema."""
    is_open: bool = False
    """Whether it needs no token, as probes have none."""


def json_response(content: Any) -> Response:
    """Return JSON; vectors take a tenth of the time of Python's own encoder."""
    return Response(to_json(content), media_type="application/json")
