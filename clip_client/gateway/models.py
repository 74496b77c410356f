"""The named models of a gateway: a client for each, which items go to them, and their health."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from clip_client._client import ClipClient
from clip_client._config import ClientConfig
from clip_client.gateway.errors import Refusal
from clip_client.gateway.items import ImageUrl, Item
from clip_client.gateway.metrics import ITEMS

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray

    from clip_client._errors import ItemError
    from clip_client._model import ModelInfo
    from clip_client.gateway.fetch import Fetcher, Hold
    from clip_client.gateway.settings import Settings

Result = TypeVar("Result")

_UNNAMED: Final = ("", "default/not-specified")
"""What a request names if it names no model; the second is infinity's default."""
_HEALTH_S: Final = 5.0
"""Seconds for which the result of a health check holds, so that probes cost at most one canary in that time."""


@dataclass(frozen=True, eq=False)
class Embedded:
    """The results of one request."""

    model: ModelInfo
    vectors: NDArray[np.float32]
    """Shape (N, D), float32, in the order of the items; the row of an item that failed is NaN."""
    errors: dict[int, ItemError]
    truncated: list[int]
    """Texts that are longer than the model's context."""
    images: int
    """How many of the items are images."""


class Models:
    """Use it as ``async with``, in the event loop of the server."""

    def __init__(self, settings: Settings, fetcher: Fetcher | None) -> None:
        config = ClientConfig(
            urls=settings.urls,
            timeout_s=settings.timeout_s,
            transfer="original",
            token=settings.client_token,
            max_image_bytes=settings.max_body_bytes,
        )
        self.clients = {name: ClipClient(config=config, model=name) for name in settings.models}
        self._settings = settings
        self._fetcher = fetcher
        self._stack = AsyncExitStack()
        self._health: asyncio.Task[str] | None = None
        self._checked_at = -_HEALTH_S

    async def __aenter__(self) -> Self:
        for client in self.clients.values():
            await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._health is not None:
            self._health.cancel()
        await self._stack.aclose()

    async def named(self, name: str) -> ClipClient:
        """Return the client of the model with this name, or with this id. Raises Refusal that lists the known ones."""
        if name in _UNNAMED:
            return next(iter(self.clients.values()))
        if name in self.clients:
            return self.clients[name]
        known = await self.infos()
        for known_name, model in known.items():
            if name in (model.id, model.id.partition("@")[0]):
                return self.clients[known_name]
        listed = ", ".join(f"{known_name} ({model.id})" for known_name, model in known.items())
        raise Refusal(404, f"There is no model {name!r} here; there is: {listed}.", code="model_not_found")

    async def infos(self) -> dict[str, ModelInfo]:
        """Return what is known of each model. Raises ClipError."""
        models = await _all([client.model(timeout_s=self._settings.timeout_s) for client in self.clients.values()])
        return dict(zip(self.clients, models, strict=True))

    async def fetched(self, items: Sequence[Item], hold: Hold) -> list[str | bytes]:
        """Return the items with the images at their URLs in their place; ``hold`` counts the bytes. Raises Refusal."""
        urls = {row: item.url for row, item in enumerate(items) if isinstance(item, ImageUrl)}
        if urls and self._fetcher is None:
            message = "is a URL, and this gateway fetches none: send a data URI, or start it with --fetch-urls."
            raise Refusal(400, f"Item {min(urls)} {message}", code="URL_REFUSED", index=min(urls))
        fetch = self._fetcher.fetch if self._fetcher else None
        images = await _all([fetch(row, url, hold) for row, url in urls.items()] if fetch else [])
        found = dict(zip(urls, images, strict=True))
        return [found[row] if isinstance(item, ImageUrl) else item for row, item in enumerate(items)]

    async def embed(self, name: str, items: Sequence[str | bytes], *, dimension: int | None = None) -> Embedded:
        """Embed texts and images with a model.

        Raises Refusal, also if the vectors have not ``dimension`` numbers, and ClipError.
        """
        client, timeout_s = await self.named(name), self._settings.timeout_s
        model = await client.model(timeout_s=timeout_s)
        if dimension not in (None, 0, model.dimension):
            message = f"The vectors have {model.dimension} numbers, and cannot be shortened: leave dimensions out."
            raise Refusal(400, message, code="dimensions_not_supported")
        images = {row: item for row, item in enumerate(items) if isinstance(item, bytes)}
        texts = {row: item for row, item in enumerate(items) if isinstance(item, str)}
        if texts and model.text is None:
            message = f"The model {model.id} has no text tower: export it with clip-export --towers image,text."
            raise Refusal(400, message, code="no_text_tower", index=next(iter(texts)))
        calls = []
        if images:
            calls.append((list(images), client.embed(list(images.values()), timeout_s=timeout_s)))
        if texts:
            calls.append((list(texts), client.embed_text(list(texts.values()), timeout_s=timeout_s)))
        vectors = np.full((len(items), model.dimension), np.nan, dtype=np.float32)
        errors: dict[int, ItemError] = {}
        truncated: list[int] = []
        for (rows, _), batch in zip(calls, await _all([call for _, call in calls]), strict=True):
            vectors[rows] = batch.vectors
            errors |= {rows[index]: failed for index, failed in batch.errors.items()}
            truncated += [rows[index] for index in batch.truncated]
        for error in errors.values():
            ITEMS.labels(error.code).inc()
        ITEMS.labels("ok").inc(len(items) - len(errors))
        return Embedded(model, vectors, dict(sorted(errors.items())), truncated, images=len(images))

    async def require_health(self) -> None:
        """Raise Refusal with the step that fails if a canary does not get its vector."""
        now = time.monotonic()
        if self._health is None or (self._health.done() and now - self._checked_at > _HEALTH_S):
            self._checked_at = now
            self._health = asyncio.create_task(self._check(), name="clip_gateway health")
        if problem := await asyncio.shield(self._health):
            raise Refusal(503, problem, code="unhealthy")

    async def _check(self) -> str:
        reports = await _all([client.health(timeout_s=_HEALTH_S) for client in self.clients.values()])
        failed = [(name, report.failed) for name, report in zip(self.clients, reports, strict=True)]
        return "; ".join(f"{name}: {step.name}: {step.message}" for name, step in failed if step is not None)


async def _all(calls: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Await all; if one fails, cancel the others and raise its error."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
