"""The handshake asks the servers for the model that they serve, once for all calls of a client."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Final

from clip_client._balancing.balancer import RETRIED, Balancer, Server, backoff_s
from clip_client._config import ClientConfig
from clip_client._deadline import Deadline
from clip_client._encoding import IMAGE_ENCODINGS
from clip_client._errors import ClipError, DeadlineExceeded, ProtocolMismatch, Unauthorized, Unavailable
from clip_client._model import ModelInfo

_PATIENCE_S: Final = 1.0  # for the other servers after one has answered


class Handshake:
    """Fetches the model when a call first needs it, and keeps it until an answer shows that the model has changed."""

    def __init__(self, balancer: Balancer, config: ClientConfig) -> None:
        self._balancer = balancer
        self._config = config
        self.known: ModelInfo | None = None  # None if the model has not been fetched yet, or has changed
        self._fetching: asyncio.Task[ModelInfo] | None = None
        self._latest = Deadline(config.timeout_s)  # of the callers that wait
        self._has_connected = False

    async def model(self, deadline: Deadline) -> ModelInfo:
        """Return the model. Calls share a running handshake."""
        if self.known is not None:
            return self.known
        task = self._fetching
        other = Deadline(self._config.timeout_s) if task is None else self._latest
        self._latest = max(deadline, other, key=lambda one: one.at)
        if task is None:
            task = self._fetching = asyncio.create_task(self._fetch_model(), name="clip_client handshake")
            # This reads the error of the task: otherwise asyncio would report it if all callers have left.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # A plain ``await task`` would end the handshake for all callers when one caller is cancelled or out of time.
        await asyncio.wait({task}, timeout=deadline.remaining)
        if not task.done():
            names = ", ".join(map(str, self._balancer.endpoints))
            raise DeadlineExceeded(f"{names} did not answer the handshake in time.")
        if task.cancelled():
            raise Unavailable("The client was closed during the handshake.")
        if (error := task.exception()) is not None:
            # Each caller gets a copy, because raising an exception adds to its traceback.
            raise copy.copy(error)
        return task.result()

    def invalidate_model(self, model: ModelInfo) -> None:
        if self.known is model:
            self.known = None

    async def aclose(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})

    async def _fetch_model(self) -> ModelInfo:
        """Ask every server. If no server was ever reached, fail at once; else retry, as servers may be restarting."""
        failures = 0
        try:
            while True:
                latest = self._latest
                try:
                    model = await self._common_model(latest)
                except ClipError as error:
                    failures += 1
                    pause_s = backoff_s(failures)
                    # A call that came meanwhile may have more time.
                    is_early = isinstance(error, DeadlineExceeded) and self._latest is not latest
                    may_pass = is_early or (self._has_connected and isinstance(error, RETRIED))
                    if not may_pass or self._latest.ends_within(pause_s):
                        raise
                    await asyncio.sleep(pause_s)
                else:
                    self._has_connected = True
                    self.known = replace(model, transfer=IMAGE_ENCODINGS[self._config.transfer].id)
                    return self.known
        finally:
            # A failed task would keep its call alive, and gRPC would keep connecting for that call.
            self._fetching = None

    async def _common_model(self, deadline: Deadline) -> ModelInfo:
        """Ask every server once. If one answers, servers that are down or hang are left out.

        Raises ProtocolMismatch if two servers serve different models or a server speaks another contract, Unauthorized
        if a server refuses the credentials, and the first server's error if none answers.
        """
        await self._balancer.ensure_resolved()
        servers = self._balancer.servers
        remaining = deadline.remaining
        tasks = [asyncio.ensure_future(server.transport.model(timeout_s=remaining)) for server in servers]
        waiting, has_model = set(tasks), False
        try:
            while waiting and not has_model:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                has_model = any(not task.cancelled() and task.exception() is None for task in done)
            if waiting:  # if a later server has another model, the fingerprints of its vectors will show that
                await asyncio.wait(waiting, timeout=_PATIENCE_S)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        models: list[tuple[Server, ModelInfo]] = []
        failures: list[ClipError] = []
        for server, outcome in zip(servers, outcomes, strict=True):
            if isinstance(outcome, ModelInfo):
                models.append((server, outcome))
            elif isinstance(outcome, ClipError) and not isinstance(outcome, ProtocolMismatch | Unauthorized):
                failures.append(outcome)
            elif not isinstance(outcome, asyncio.CancelledError):  # a server that did not answer in time
                raise outcome
        if not models:
            raise failures[0] if failures else Unavailable("There is no server.")
        first, model = models[0]
        for server, other in models:
            if other.fingerprint != model.fingerprint:
                raise ProtocolMismatch(
                    f"{first.endpoint} serves {model.id} and {server.endpoint} serves {other.id}; "
                    "all servers of one client must serve one model."
                )
        # The smallest limit, so that every server accepts a batch.
        model = replace(model, max_batch_size=min(other.max_batch_size for _, other in models))
        if len({other.text and other.text.fingerprint for _, other in models}) > 1:
            return replace(model, text=None)  # a server has no text tower, or a different one
        return model
