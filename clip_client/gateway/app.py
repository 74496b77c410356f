"""The gateway from top to bottom: who may ask, the body, the vectors, and the answer or its refusal."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import httpx
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from clip_client._errors import ClipError
from clip_client.gateway import forms, immich, openai
from clip_client.gateway.bodies import Bodies
from clip_client.gateway.endpoint import Endpoint, Service, json_response, no_body
from clip_client.gateway.errors import FORM, OPENAI, Refusal, refusal_of
from clip_client.gateway.fetch import Fetcher
from clip_client.gateway.metrics import REQUESTS, SECONDS, exposition
from clip_client.gateway.models import Models
from clip_client.gateway.openapi import document, page
from clip_client.gateway.settings import Settings

if TYPE_CHECKING:
    from starlette.requests import Request


_UPSTREAM_S: Final = 300.0
"""Immich's own service loads a model when that is first used, which may include a download."""
_CLIENT_GONE: Final = 499
"""nginx's status for a client that has closed the connection; for the metrics."""


def app_from_environment() -> Starlette:
    """Make the application of a worker process."""
    return gateway_app(Settings.from_environment())


def gateway_app(settings: Settings, *, fetcher: Fetcher | None = None) -> Starlette:
    """Make the application. ``fetcher`` is for tests: it fetches URLs."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            fetches = fetcher or (Fetcher() if settings.fetch_urls else None)
            if fetches is not None:
                stack.push_async_callback(fetches.aclose)
            upstream = None
            if settings.immich_upstream is not None:
                upstream = httpx.AsyncClient(
                    base_url=str(settings.immich_upstream), timeout=_UPSTREAM_S, trust_env=False
                )
                await stack.enter_async_context(upstream)
            models = Models(settings, fetches)
            app.state.service = Service(await stack.enter_async_context(models), upstream)
            yield

    bodies = Bodies(settings)
    return Starlette(
        routes=[Route(endpoint.path, _handler(endpoint, bodies), methods=[endpoint.method]) for endpoint in ENDPOINTS],
        exception_handlers={HTTPException: _unknown_address},
        lifespan=lifespan,
    )


def _handler(endpoint: Endpoint[Any], bodies: Bodies) -> Callable[[Request], Awaitable[Response]]:
    """Return what answers requests to one address."""
    dialect = endpoint.dialect

    async def handle(request: Request) -> Response:
        started = time.perf_counter()
        try:
            if not endpoint.is_open:
                _check_token(request, bodies.settings.token)
            with bodies.of(request) as body:
                content = await endpoint.read(body)
                response = await _unless_gone(request, endpoint.answer(request.app.state.service, content))
        except Refusal as refusal:
            response = dialect.response(refusal)
        except ClipError as error:
            response = dialect.response(refusal_of(error))
        except ClientDisconnect:
            response = Response(status_code=_CLIENT_GONE)
        REQUESTS.labels(dialect.name, response.status_code).inc()
        SECONDS.labels(dialect.name).observe(time.perf_counter() - started)
        return response

    return handle


def _check_token(request: Request, token: str | None) -> None:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if token is not None and not (
        scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
    ):
        raise Refusal(401, "The bearer token is missing or wrong.", code="invalid_api_key")


async def _unless_gone(request: Request, answer: Awaitable[Response]) -> Response:
    """Await the answer, but cancel it if the client closes the connection, so that Triton does not work in vain."""
    work, gone = asyncio.ensure_future(answer), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _unknown_address(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    dialect = OPENAI if request.url.path.startswith("/v1/") else FORM
    return dialect.response(Refusal(error.status_code, f"{error.detail}: see / for what there is.", code="not_found"))


async def _metrics(_service: Service, _: None) -> Response:
    return Response(exposition(), media_type=CONTENT_TYPE_LATEST)


async def _document(_service: Service, _: None) -> Response:
    return json_response(document(ENDPOINTS))


async def _page(_service: Service, _: None) -> Response:
    return HTMLResponse(page(ENDPOINTS))


ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    *openai.ENDPOINTS,
    *immich.ENDPOINTS,
    *forms.ENDPOINTS,
    Endpoint("GET", "/metrics", FORM, no_body, _metrics, "Metrics for Prometheus"),
    Endpoint("GET", "/openapi.json", FORM, no_body, _document, "This page for programs"),
    Endpoint("GET", "/", FORM, no_body, _page, "This page"),
)
