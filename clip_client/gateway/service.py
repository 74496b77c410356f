"""The clients of the gateway, one for each named model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, Final

import numpy as np
from prometheus_client import Counter

from clip_client._client import ClipClient
from clip_client._config import ClientConfig
from clip_client._deadline import Deadline
from clip_client._errors import ClipError, ItemError, ProtocolMismatch
from clip_client._model import ModelInfo
from clip_client._results import EmbeddingBatch
from clip_client.gateway.dialect import DOWN, Refusal
from clip_client.gateway.items import Item

_logger = logging.getLogger("clip_client.gateway")

_ITEMS: Final = Counter("clip_gateway_items", "Images and texts, by outcome: ok, or the code of an error", ("outcome",))
_UNNAMED: Final = ("", "default/not-specified")  # names for any model; the second is infinity's default
HEALTH_S: Final = 5.0
"""Limit of a health check, and how long its result counts: probes then cost at most one canary."""


class Service:
    """Embeds items and checks health, while :meth:`run` runs in the event loop of the server."""

    def __init__(self, config: ClientConfig, models: Iterable[str]) -> None:
        self.clients = {name: ClipClient(config=config, model=name, transfer="original") for name in models}
        self._timeout_s, self._urls = config.timeout_s, ", ".join(config.urls)
        self._down: set[str] = set()
        self._health: tuple[Deadline, asyncio.Task[tuple[str, str | None]]] | None = None  # and when it is too old

    @asynccontextmanager
    async def run(self, _app: object) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for client in self.clients.values():
                await stack.enter_async_context(client)
            async with running([self._announce()]):
                yield
            if self._health is not None:
                self._health[1].cancel()

    async def _announce(self) -> None:
        """Log what each name stands for and where, or why it does not answer. Callers need not wait for it."""
        async for name, model in self.infos():
            if isinstance(model, ClipError):
                self._note(name, model.message)
            else:
                _logger.info("ready: model %s is %s, at %s", name, model.id, self._urls)

    async def infos(self) -> AsyncGenerator[tuple[str, ModelInfo | ClipError]]:
        """Yield the name of each model with its description, or with its error if it is not ready, as they arrive."""

        async def ask(name: str) -> tuple[str, ModelInfo | ClipError]:
            try:
                return name, await self.clients[name].model()
            except ClipError as error:
                return name, error

        async with running(map(ask, self.clients)) as asked:
            for one in asyncio.as_completed(asked):
                yield await one

    async def embed(
        self, name: str, items: Sequence[Item], *, dimension: int | None = None
    ) -> tuple[ModelInfo, EmbeddingBatch]:
        """Embed with the model of this name or id. Raises ClipError, and Refusal for what the model cannot answer."""
        try:
            try:
                return await self._embed(name, items, dimension)
            except ProtocolMismatch:  # the servers may have changed their model; the name may mean another model now
                return await self._embed(name, items, dimension)
        except (ClipError, Refusal) as error:
            refusal = error if isinstance(error, Refusal) else Refusal.of(error)
            _ITEMS.labels(refusal.code).inc(len(items))
            raise

    async def _embed(self, name: str, items: Sequence[Item], dimension: int | None) -> tuple[ModelInfo, EmbeddingBatch]:
        name = await self.named(name)
        client = self.clients[name]
        images = [row for row, item in enumerate(items) if isinstance(item, bytes)]
        texts = [row for row, item in enumerate(items) if isinstance(item, str)]
        towers: list[tuple[list[int], Any]] = [(images, client.embed), (texts, client.embed_text)]
        towers = [(rows, embed) for rows, embed in towers if rows]
        calls = (embed([items[row] for row in rows], timeout_s=self._timeout_s) for rows, embed in towers)
        try:
            model = await client.model()
            if dimension not in (None, 0, model.dimension):
                message = f"The vectors have {model.dimension} numbers, and cannot be shortened: leave dimensions out."
                raise Refusal(400, message, code="dimensions_not_supported")
            if texts and model.text is None:
                message = (
                    f"The model {model.id} has no text tower: export both with clip-export --towers image,text "
                    f"--name {name} and the model's own --model and --pretrained."
                )
                raise Refusal(400, message, code="no_text_tower", index=texts[0])
            async with running(calls) as tasks:
                batches: list[EmbeddingBatch] = await asyncio.gather(*tasks)
        except DOWN as error:
            self._note(name, error.message)
            raise
        self._note(name, "")
        vectors = np.empty((len(items), model.dimension), dtype=np.float32)
        errors: dict[int, ItemError] = {}
        truncated: list[int] = []
        for (rows, _), batch in zip(towers, batches, strict=True):
            if batch.model_id != model.id:
                raise ProtocolMismatch("The server changed its model during the request; send it again.")
            vectors[rows] = batch.vectors
            errors |= {rows[index]: failed for index, failed in batch.errors.items()}
            truncated += [rows[index] for index in batch.truncated]
        for failed in errors.values():
            _ITEMS.labels(failed.code).inc()
        _ITEMS.labels("ok").inc(len(items) - len(errors))
        return model, EmbeddingBatch(
            vectors=vectors, errors=errors, model_id=model.id, vector_id=model.vector_id, truncated=tuple(truncated)
        )

    def _note(self, name: str, problem: str) -> None:
        if bool(problem) != (name in self._down):
            self._down ^= {name}
            _logger.warning("model %s: %s", name, problem or "Triton answers again.")

    async def named(self, name: str) -> str:
        """Return the name of the model with this name or id. Raises ClipError, and Refusal if there is none."""
        if name in _UNNAMED:
            return next(iter(self.clients))
        if name in self.clients:
            return name
        known, failed = [], None
        async with aclosing(self.infos()) as infos:
            async for known_name, model in infos:
                if isinstance(model, ClipError):
                    failed = model
                elif name in (model.id, model.id.partition("@")[0]):
                    return known_name
                else:
                    known.append(f"{known_name} ({model.id})")
        if failed is not None:
            raise failed
        listed = ", ".join(sorted(known))
        raise Refusal(404, f"There is no model {name[:100]!r} here, only: {listed}.", code="model_not_found")

    async def require_health(self) -> str | None:
        """Return the id of the first model; raise Refusal with the step that fails. The check outlives its callers."""
        if self._health is None or (self._health[1].done() and self._health[0].expired):
            self._health = Deadline(HEALTH_S), asyncio.create_task(self._check())
        problem, model_id = await asyncio.shield(self._health[1])
        if problem:
            raise Refusal(503, problem, code="unhealthy")
        return model_id

    async def _check(self) -> tuple[str, str | None]:
        reports = await asyncio.gather(*(client.health(timeout_s=HEALTH_S) for client in self.clients.values()))
        failed = [(name, report.failed) for name, report in zip(self.clients, reports, strict=True)]
        for name, step in failed:
            self._note(name, step.message if step else "")
        return "; ".join(f"{name}: {step.name}: {step.message}" for name, step in failed if step), reports[0].model_id


@asynccontextmanager
async def running(calls: Iterable[Coroutine[Any, Any, Any]]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Run the calls as tasks. At the end of the block, cancel those that are not done."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
