"""The gateway from top to bottom: the token, the body, the vectors, and the answer or a refusal."""

from __future__ import annotations

import asyncio
import hmac
import os
import time
from collections.abc import Awaitable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from clip_client._errors import ClipError
from clip_client.gateway import embeddings
from clip_client.gateway.body import Bodies, Body
from clip_client.gateway.dialect import FORM, OPENAI, Endpoint, Refusal, json_response
from clip_client.gateway.service import Service
from clip_client.gateway.settings import MULTIPROCESS_VARIABLE, SETTINGS_VARIABLE, Settings

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send


_REQUESTS: Final = Counter("clip_gateway_requests", "Requests, by dialect and HTTP status", ("dialect", "status"))
_SECONDS: Final = Histogram("clip_gateway_seconds", "Time of a request with its body, by dialect", ("dialect",))
_PIECE: Final = 2**18
"""Bytes of an answer that are sent at a time; the rest waits until the caller has taken them."""


def gateway_app(settings: Settings | None = None) -> Starlette:
    """Make the application, by default with the settings in the file that the environment names."""
    settings = settings or Settings.model_validate_json(Path(os.environ[SETTINGS_VARIABLE]).read_bytes())
    service, bodies = Service(settings), Bodies(settings)
    return Starlette(
        routes=[Route(one.path, _Handler(one, service, bodies), methods=[one.method]) for one in ENDPOINTS],
        exception_handlers={HTTPException: _unknown_address},
        lifespan=lambda _: service,
    )


class _Handler:
    """Answers the requests to one address, as an ASGI application."""

    def __init__(self, endpoint: Endpoint, service: Service, bodies: Bodies) -> None:
        self._endpoint = endpoint
        self._service = service
        self._bodies = bodies
        self._token = bodies.settings.callers_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, dialect = time.perf_counter(), self._endpoint.dialect.name
        with self._bodies.of(Request(scope, receive)) as body:
            response = await self._response(body)
            _REQUESTS.labels(dialect, response.status_code).inc()
            _SECONDS.labels(dialect).observe(time.perf_counter() - started)
            await _send_in_pieces(response, scope, receive, send)

    async def _response(self, body: Body) -> Response:
        endpoint = self._endpoint
        try:
            if self._token is not None and not endpoint.is_open:
                _check_token(body.request, self._token)
            response = await _unless_gone(body, endpoint.answer(self._service, body))
            body.hold(len(response.body), is_answer=True)
        except Refusal as refusal:
            return endpoint.dialect.refuse(refusal)
        except ClipError as error:
            return endpoint.dialect.refuse(Refusal.of(error))
        except ClientDisconnect:
            return Response(status_code=499)  # nginx's status for a client that has left; for the metrics
        return response


def _check_token(request: Request, token: str) -> None:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise Refusal(401, "The bearer token is missing or wrong.", code="invalid_api_key")


async def _unless_gone(body: Body, answer: Awaitable[Response]) -> Response:
    """Await the answer. If the caller closes the connection, cancel the work, so that Triton does not work in vain."""
    work, gone = asyncio.ensure_future(answer), asyncio.ensure_future(body.wait_for_disconnect())
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _send_in_pieces(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an answer in pieces, as the caller takes them. uvicorn would copy all of it into a buffer without limit."""

    async def send_pieces(message: Message) -> None:
        content, sent = message.get("body", b""), 0
        while len(content) - sent > _PIECE:
            await send({**message, "body": content[sent : sent + _PIECE], "more_body": True})
            sent += _PIECE
        await send({**message, "body": content[sent:]} if sent else message)

    await response(scope, receive, send_pieces)


def _unknown_address(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    dialect = OPENAI if request.url.path.startswith("/v1/") else FORM
    refusal = Refusal(error.status_code, f"{error.detail}: see / for what there is.", code="not_found")
    response = dialect.refuse(refusal)
    response.headers.update(error.headers or {})  # Allow, of a 405
    return response


async def _metrics(_service: Service, _body: Body) -> Response:
    registry = REGISTRY
    if MULTIPROCESS_VARIABLE in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


async def _document(_service: Service, _body: Body) -> Response:
    paths: dict[str, Any] = {one.shown_path: {one.method.lower(): one.operation()} for one in ENDPOINTS}
    token = {"token": {"type": "http", "scheme": "bearer"}}
    about = {"openapi": "3.1.0", "info": {"title": "clip-gateway", "version": "1"}, "security": [{}, {"token": []}]}
    return json_response({**about, "paths": paths, "components": {"securitySchemes": token}})


async def _page(_service: Service, _body: Body) -> Response:
    rows = [f"<dt><code>{one.method} {one.shown_path}</code><dd>{escape(one.summary)}" for one in ENDPOINTS]
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>clip-gateway</title><h1>clip-gateway</h1>'
    return HTMLResponse(f'{head}<dl>{"".join(rows)}</dl><a href="openapi.json">openapi.json</a></html>')


ENDPOINTS: Final = (
    *embeddings.ENDPOINTS,
    Endpoint("GET", "/metrics", FORM, _metrics, "Metrics for Prometheus"),
    Endpoint("GET", "/openapi.json", FORM, _document, "This page for programs"),
    Endpoint("GET", "/", FORM, _page, "This page"),
)
