"""The gateway's path of a request: check the token, read the body, get vectors, and answer or refuse."""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final, cast

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from clip_client._config import ClientConfig
from clip_client._errors import ClipError
from clip_client.gateway import embeddings
from clip_client.gateway.body import Body
from clip_client.gateway.dialect import Endpoint, Refusal, json_response, refuse
from clip_client.gateway.service import Service, running

COUNTS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Folder of the common counts of worker processes; prometheus-client reads the variable when it is imported."""

_REQUESTS: Final = Counter("clip_gateway_requests", "Requests, by dialect and HTTP status", ("dialect", "status"))
_SECONDS: Final = Histogram("clip_gateway_seconds", "Time of a request with its body, by dialect", ("dialect",))


def gateway_app(config: ClientConfig, models: Sequence[str], callers_token: str | None = None) -> Starlette:
    """Make the application. A request may have as many bytes as an image of ``config``."""
    service = Service(config, models)

    async def answer(endpoint: Endpoint, request: Request) -> Response:
        dialect, body = endpoint.dialect, Body(request)
        with _SECONDS.labels(dialect).time():
            try:
                if callers_token is not None and not endpoint.is_open:
                    _check_token(request, callers_token)
                if request.method == "POST":
                    await body.read(config.max_image_bytes)
                response = await _unless_gone(request, endpoint.answer(service, body))
            except Refusal as refusal:
                response = refuse(dialect, refusal)
            except ClipError as error:
                response = refuse(dialect, Refusal.of(error))
            except ClientDisconnect:
                response = Response(status_code=499)  # nginx's status for a client that has left; for the metrics
        _REQUESTS.labels(dialect, response.status_code).inc()
        return response

    paths = [(one, one.path.replace("{id}", "{id:path}")) for one in ENDPOINTS]  # an id contains slashes
    return Starlette(
        routes=[Route(path, partial(answer, one), methods=[one.method]) for one, path in paths],
        exception_handlers={HTTPException: _unknown_address},
        lifespan=service.run,
    )


def _check_token(request: Request, token: str) -> None:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise Refusal(401, "The bearer token is missing or wrong.", code="invalid_api_key")


async def _unless_gone(request: Request, answer: Coroutine[Any, Any, Response]) -> Response:
    """Await the answer. If the caller closes the connection, cancel the work, so that Triton does not work in vain."""

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    async with running((answer, disconnect())) as (work, gone):
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return cast("Response", work.result())


def _unknown_address(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refusal = Refusal(error.status_code, f"{error.detail}: see /openapi.json for what there is.", code="not_found")
    response = refuse("openai" if request.url.path.startswith("/v1/") else "form", refusal)
    response.headers.update(error.headers or {})  # Allow, of a 405
    return response


async def _metrics(_service: Service, _body: Body) -> Response:
    registry = REGISTRY
    if COUNTS_FOLDER in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


async def _document(_service: Service, _body: Body) -> Response:
    paths: dict[str, Any] = {one.path: {one.method.lower(): one.operation()} for one in ENDPOINTS}
    token = {"token": {"type": "http", "scheme": "bearer"}}
    about = {"openapi": "3.1.0", "info": {"title": "clip-gateway", "version": "1"}, "security": [{}, {"token": []}]}
    return json_response({**about, "paths": paths, "components": {"securitySchemes": token}})


ENDPOINTS: Final = (
    *embeddings.ENDPOINTS,
    Endpoint("GET", "/metrics", "form", _metrics, "Metrics for Prometheus"),
    Endpoint("GET", "/openapi.json", "form", _document, "This document"),
)
