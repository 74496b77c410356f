"""What answers are made with: a client for each named model, what fetches images, and Immich's own service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, Final

import httpx
import numpy as np
from prometheus_client import Counter

from clip_client._client import ClipClient
from clip_client._config import ClientConfig
from clip_client._errors import ClipError, ItemError, ProtocolMismatch
from clip_client._results import EmbeddingBatch
from clip_client.gateway.dialect import Refusal
from clip_client.gateway.fetch import Fetcher

if TYPE_CHECKING:
    from clip_client._model import ModelInfo
    from clip_client.gateway.body import Body, Item
    from clip_client.gateway.settings import Settings

_ITEMS: Final = Counter("clip_gateway_items", "Images and texts, by outcome: ok, or the code of an error", ("outcome",))
_UNNAMED: Final = ("", "default/not-specified")
"""What a request names if it names no model; the second is infinity's default."""
_HEALTH_S: Final = 5.0
"""Seconds for which the result of a health check holds, so that probes cost at most one canary in that time."""
_UPSTREAM_S: Final = 300.0
"""Immich's own service loads a model when that is first used, which may include a download."""


class Service:
    """Use it as ``async with``, in the event loop of the server. Tests pass what fetches URLs."""

    def __init__(self, settings: Settings, fetcher: Fetcher | None) -> None:
        config = ClientConfig(
            urls=settings.url,
            timeout_s=settings.timeout_s,
            transfer="original",
            token=settings.client_token,
            max_image_bytes=settings.max_body_bytes,
        )
        self.clients = {name: ClipClient(config=config, model=name) for name in settings.model}
        # Without kept connections: Immich's service closes one after two seconds, and a request might meet that.
        limits, there = httpx.Limits(max_keepalive_connections=0), str(settings.immich_upstream or "")
        self._http = httpx.AsyncClient(base_url=there, timeout=_UPSTREAM_S, trust_env=False, limits=limits)
        self.upstream = self._http if settings.immich_upstream else None
        self._fetcher = fetcher or Fetcher()
        self._fetches = settings.fetch_urls or fetcher is not None
        self._timeout_s = settings.timeout_s
        self._stack = AsyncExitStack()
        self._health: asyncio.Task[str] | None = None
        self._checked_at = 0.0

    async def __aenter__(self) -> None:
        for client in self.clients.values():
            await self._stack.enter_async_context(client)
        await self._stack.enter_async_context(self._http)
        self._stack.push_async_callback(self._fetcher.aclose)

    async def __aexit__(self, *raised: object) -> None:
        if self._health is not None:
            self._health.cancel()
        await self._stack.aclose()

    async def infos(self) -> AsyncGenerator[tuple[str, ModelInfo]]:
        """Yield the name of each model and what is known of it, those that are ready first.

        At the end it raises ClipError if a model is not ready, so that no caller of another one waits for it.
        """

        async def asked(name: str) -> tuple[str, ModelInfo]:
            return name, await self.clients[name].model(timeout_s=self._timeout_s)

        tasks = [asyncio.ensure_future(asked(name)) for name in self.clients]
        failed: ClipError | None = None
        try:
            for task in asyncio.as_completed(tasks):
                try:
                    yield await task
                except ClipError as error:
                    failed = error
        finally:
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # an error that nobody takes would be logged
        if failed is not None:
            raise failed

    async def embed(
        self, body: Body, name: str, items: Sequence[Item], *, dimension: int | None = None
    ) -> tuple[ModelInfo, EmbeddingBatch]:
        """Embed texts and images with the model of this name or id. Raises ClipError and Refusal, also if the vectors
        have not ``dimension`` numbers."""
        client = await self._named(name)
        model = await client.model(timeout_s=self._timeout_s)
        if dimension not in (None, 0, model.dimension):
            message = f"The vectors have {model.dimension} numbers, and cannot be shortened: leave dimensions out."
            raise Refusal(400, message, code="dimensions_not_supported")
        texts = {row: item for row, item in enumerate(items) if isinstance(item, str)}
        if texts and model.text is None:
            message = f"The model {model.id} has no text tower: export it with clip-export --towers image,text."
            raise Refusal(400, message, code="no_text_tower", index=next(iter(texts)))
        images = {row: item for row, item in enumerate(items) if isinstance(item, bytes)}
        images |= await self._fetched(body, {row: url for row, url in enumerate(items) if isinstance(url, httpx.URL)})
        towers: list[tuple[dict[int, Any], Any]] = [(images, client.embed), (texts, client.embed_text)]
        calls = [(list(rows), embed(list(rows.values()), timeout_s=self._timeout_s)) for rows, embed in towers if rows]
        vectors = np.full((len(items), model.dimension), np.nan, dtype=np.float32)
        errors: dict[int, ItemError] = {}
        truncated: list[int] = []
        for (rows, _), batch in zip(calls, await all_of([call for _, call in calls]), strict=True):
            if batch.model_id != model.id:
                raise ProtocolMismatch("The server changed its model during the request; send it again.")
            vectors[rows] = batch.vectors
            errors |= {rows[index]: failed for index, failed in batch.errors.items()}
            truncated += [rows[index] for index in batch.truncated]
        for error in errors.values():
            _ITEMS.labels(error.code).inc()
        _ITEMS.labels("ok").inc(len(items) - len(errors))
        errors = dict(sorted(errors.items()))
        return model, EmbeddingBatch(
            vectors=vectors, errors=errors, model_id=model.id, vector_id=model.vector_id, truncated=tuple(truncated)
        )

    async def _named(self, name: str) -> ClipClient:
        if name in _UNNAMED:
            return next(iter(self.clients.values()))
        if name in self.clients:
            return self.clients[name]
        known = []
        async with aclosing(self.infos()) as infos:
            async for known_name, model in infos:
                if name in (model.id, model.id.partition("@")[0]):
                    return self.clients[known_name]
                known.append(f"{known_name} ({model.id})")
        listed = ", ".join(sorted(known))
        raise Refusal(404, f"There is no model {name[:100]!r} here; there is: {listed}.", code="model_not_found")

    async def _fetched(self, body: Body, urls: dict[int, httpx.URL]) -> dict[int, bytes]:
        if urls and not self._fetches:
            message = "is a URL, and this gateway fetches none: send a data URI, or start it with --fetch-urls."
            raise Refusal(400, f"Item {min(urls)} {message}", code="URL_REFUSED", index=min(urls))
        try:
            async with asyncio.timeout(self._timeout_s):
                images = await all_of([self._fetcher.fetch(row, url, body.hold) for row, url in urls.items()])
        except TimeoutError:
            message = f"The images at the URLs did not arrive within --timeout-s ({self._timeout_s:g})."
            raise Refusal(503, message, code="DeadlineExceeded") from None
        return dict(zip(urls, images, strict=True))

    async def require_health(self) -> None:
        """Raise Refusal with the step that fails if a canary does not get its vector. A check outlives its callers."""
        now = time.monotonic()
        if self._health is None or (self._health.done() and now - self._checked_at > _HEALTH_S):
            self._checked_at, self._health = now, asyncio.create_task(self._check())
        if problem := await asyncio.shield(self._health):
            raise Refusal(503, problem, code="unhealthy")

    async def _check(self) -> str:
        reports = await all_of([client.health(timeout_s=_HEALTH_S) for client in self.clients.values()])
        failed = [(name, report.failed) for name, report in zip(self.clients, reports, strict=True)]
        return "; ".join(f"{name}: {step.name}: {step.message}" for name, step in failed if step)


async def all_of(calls: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Await all; if one fails, cancel the others and raise its error."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
