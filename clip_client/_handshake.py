"""The first exchange with the servers: which model do they serve?"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from clip_client._errors import ClipError, ProtocolMismatch, Unauthorized, Unavailable
from clip_client._model import ModelInfo

if TYPE_CHECKING:
    from clip_client._balancing.balancer import Balancer
    from clip_client._transports.base import Transport


async def fetch_common_model(balancer: Balancer, *, timeout_s: float) -> ModelInfo:
    """Ask every server; those that are down do not count as long as one answers.

    Raises ProtocolMismatch where two servers serve different models, or one is not of this contract, Unauthorized
    where one refuses the credentials, and the first server's error where none answers.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    await balancer.ensure_resolved()
    servers = balancer.servers
    remaining = max(0.001, deadline - loop.time())
    answers = await asyncio.gather(*(_ask(server.transport, remaining) for server in servers))
    for answer in answers:
        if isinstance(answer, ProtocolMismatch | Unauthorized):
            raise answer
    models = {server: answer for server, answer in zip(servers, answers, strict=True) if isinstance(answer, ModelInfo)}
    if not models:
        raise next((answer for answer in answers if isinstance(answer, ClipError)), Unavailable("There is no server."))
    first = next(iter(models))
    for server, model in models.items():
        if model.fingerprint != models[first].fingerprint:
            raise ProtocolMismatch(
                f"{first.endpoint} serves {models[first].id} and {server.endpoint} serves {model.id}; "
                "all servers of one client must serve one model."
            )
    return models[first]


async def fetch_model(transport: Transport, *, timeout_s: float) -> ModelInfo:
    """One inference that asks the preprocessor for nothing but the passport, then the ensemble's batch size."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    passport = await transport.passport(request_id=uuid.uuid4().hex, timeout_s=timeout_s)
    max_batch_size = await transport.max_batch_size(timeout_s=max(0.001, deadline - loop.time()))
    return ModelInfo.from_json(passport, max_batch_size=max_batch_size)


async def _ask(transport: Transport, timeout_s: float) -> ModelInfo | ClipError:
    try:
        return await fetch_model(transport, timeout_s=timeout_s)
    except ClipError as error:
        return error
