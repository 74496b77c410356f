"""The first exchange with a server: which model does it serve?"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from clip_client._model import ModelInfo

if TYPE_CHECKING:
    from clip_client._transport import Transport


async def ask_for_model(transport: Transport, *, timeout_s: float) -> ModelInfo:
    """One inference that asks the preprocessor for nothing but the passport, then the ensemble's batch size.

    Raises ProtocolMismatch where the server is not of this contract, and what the error table says for the rest.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    passport = await transport.passport(request_id=uuid.uuid4().hex, timeout_s=timeout_s)
    max_batch_size = await transport.max_batch_size(timeout_s=max(0.001, deadline - loop.time()))
    return ModelInfo.from_json(passport, max_batch_size=max_batch_size)
