"""``http://host:port``: a plain service in place of Triton, with the same answers.

Any service works that answers ``POST /embed``, ``GET /model`` and ``GET /healthz`` as ``benchmarks/peers/baseline``
does. To move a program from one to the other, change its URL.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from clip_client._errors import (
    ClipError,
    DeadlineExceeded,
    ModelNotReady,
    Overloaded,
    ProtocolMismatch,
    Unauthorized,
    Unavailable,
)
from clip_client._model import ModelInfo, Tower
from clip_client._transports.base import Answer, Transport
from preprocess_ensemble import contract

_REFUSED: Final = Unauthorized, "The server at {url} refused the credentials; check token."
_WRONG_SERVICE: Final = ProtocolMismatch, "The address {url} is not the plain service; check host and port."
_EXPIRED: Final = DeadlineExceeded, "The server at {url} did not answer in time."
_FAILED: Final = ClipError, "The server at {url} failed on this request; its log has the reason."
_ERRORS: Final[Mapping[int, tuple[type[ClipError], str]]] = {
    401: _REFUSED,
    403: _REFUSED,
    404: _WRONG_SERVICE,
    405: _WRONG_SERVICE,
    413: (
        ProtocolMismatch,
        "The server at {url} does not accept a request of this size; lower max_request_bytes of ClientConfig.",
    ),
    422: (ProtocolMismatch, "The server at {url} does not accept this client's requests; update the older of the two."),
    429: (Overloaded, "The server at {url} is overloaded."),
    502: (Unavailable, "The proxy at {url} cannot reach its server."),
    503: (ModelNotReady, "The server at {url} has no model ready."),
    504: _EXPIRED,
}
"""HTTP status -> error and sentence; the server's own text is never repeated."""


class HttpTransport(Transport):
    """Connections to one plain service. Build it inside the event loop that uses it."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        """``url`` is ``http://host:port`` or ``https://host:port``. Raises ClipError if aiohttp is missing."""
        try:
            import aiohttp
        except ModuleNotFoundError:
            raise ClipError("http:// needs aiohttp: pip install aiohttp") from None
        self.url = url
        self._aiohttp = aiohttp
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        # The adaptive limit bounds the requests in flight, so the connector need not.
        self._session = aiohttp.ClientSession(
            base_url=url, headers=headers, connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout()
        )

    async def infer(
        self, items: Sequence[bytes], *, tower: Tower = Tower.IMAGE, request_id: str, timeout_s: float
    ) -> Answer:
        """Embed images; no text gets here, because :meth:`model` says that there is no text tower."""
        form = self._aiohttp.FormData(default_to_multipart=True)
        for image in items:
            form.add_field("images", image, filename="image", content_type="application/octet-stream")
        document = await self._ask("POST", "/embed", timeout_s, request_id, data=form)
        return _read_answer(document, len(items), request_id)

    async def model(self, *, timeout_s: float) -> ModelInfo:
        """Ask for the passport, with which the service sends how many images one request may carry."""
        document = await self._ask("GET", "/model", timeout_s, None)
        try:
            max_batch_size = max(1, int(document["max_batch_size"]))
        except (KeyError, TypeError, ValueError):
            raise _malformed(None) from None
        model = ModelInfo.from_json(json.dumps(document), max_batch_size=max_batch_size)
        return replace(model, text=None)  # the passport may be that of a pair

    async def server_live(self, *, timeout_s: float) -> bool:
        await self._ask("GET", "/healthz", timeout_s, None)
        return True

    async def models_ready(self, *, timeout_s: float) -> None:
        """Check that the service answers, which it does only when its model is loaded."""
        await self._ask("GET", "/healthz", timeout_s, None)

    async def close(self) -> None:
        await self._session.close()
        # The sockets are closed by callbacks that the line above has only scheduled.
        await asyncio.sleep(0)

    async def _ask(self, method: str, path: str, timeout_s: float, request_id: str | None, **body: Any) -> Any:
        headers = {} if request_id is None else {"x-request-id": request_id}
        limit = self._aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(method, path, headers=headers, timeout=limit, **body) as response:
                if response.status == 200:
                    return json.loads(await response.read())
                kind, sentence = _ERRORS.get(response.status, _FAILED)
        except TimeoutError:
            kind, sentence = _EXPIRED
        except self._aiohttp.ClientConnectorError:
            kind, sentence = Unavailable, "No server answers at {url}; is the service running there?"
        except self._aiohttp.ClientError:
            kind, sentence = Unavailable, "The connection to {url} was lost."
        except ValueError:
            raise _malformed(request_id) from None
        except RuntimeError:  # aiohttp raises this if the session was closed
            kind, sentence = Unavailable, "This client is closed."
        raise kind(sentence.format(url=self.url), request_id=request_id)


def _read_answer(document: Any, rows: int, request_id: str) -> Answer:
    """Read an answer; an embedding that is null becomes a row of NaN. Raises ProtocolMismatch if it is malformed."""
    try:
        results = document["results"]
        good = [result[contract.EMBEDDING] for result in results if result[contract.EMBEDDING] is not None]
        statuses = np.array([int(result[contract.STATUS]) for result in results], np.int32)
        dimension = int(document["dimension"])
        vectors = np.full((rows, dimension), np.nan, np.float32)
        vectors[statuses == 0] = np.array(good, np.float32).reshape(-1, dimension)
        answer = Answer(
            vectors=vectors,
            statuses=statuses,
            errors=tuple(str(result[contract.ERROR]) for result in results),
            fingerprints=np.tile(np.array(document[contract.FINGERPRINT], np.int32), (rows, 1)),
        )
        if statuses.shape != (rows,) or answer.fingerprints.shape != (rows, 2):
            raise ValueError
        return answer
    except (KeyError, TypeError, ValueError):
        raise _malformed(request_id) from None


def _malformed(request_id: str | None) -> ProtocolMismatch:
    return ProtocolMismatch("The answer does not follow the protocol of the plain service.", request_id=request_id)
