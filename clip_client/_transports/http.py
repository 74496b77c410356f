"""``http://host:port``: a plain service in place of Triton, with the same answers.

Any service works that answers ``POST /embed``, ``GET /model`` and ``GET /healthz`` as ``benchmarks/peers/baseline``
does. To move a program from one to the other, change its URL.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from clip_client import _errors
from clip_client._model import ModelInfo
from clip_client._transports.base import Answer, Transport
from preprocess_ensemble import contract

_ERRORS: Final[Mapping[int, tuple[type[_errors.ClipError], str]]] = {
    401: (_errors.Unauthorized, "The server at {url} refused the credentials; check token."),
    403: (_errors.Unauthorized, "The server at {url} refused the credentials; check token."),
    404: (_errors.ProtocolMismatch, "The address {url} is not the plain service; check host and port."),
    405: (_errors.ProtocolMismatch, "The address {url} is not the plain service; check host and port."),
    413: (
        _errors.ProtocolMismatch,
        "The server at {url} does not accept a request of this size; lower max_request_bytes of ClientConfig.",
    ),
    422: (
        _errors.ProtocolMismatch,
        "The server at {url} does not accept this client's requests; update the older of the two.",
    ),
    429: (_errors.Overloaded, "The server at {url} is overloaded."),
    502: (_errors.Unavailable, "The proxy at {url} cannot reach its server."),
    503: (_errors.ModelNotReady, "The server at {url} has no model ready."),
    504: (_errors.DeadlineExceeded, "The server at {url} did not answer in time."),
}
"""HTTP status -> error and sentence; the server's own text is never repeated."""


class HttpTransport(Transport):
    """Connections to one plain service. Build it inside the event loop that uses it."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        """``url`` is ``http://host:port`` or ``https://host:port``. Raises ClipError if aiohttp is missing."""
        try:
            import aiohttp
        except ModuleNotFoundError:
            raise _errors.ClipError("http:// needs aiohttp: pip install aiohttp") from None
        self.url = url
        self._aiohttp = aiohttp
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        # The adaptive limit bounds the requests in flight, so the connector need not.
        self._session = aiohttp.ClientSession(
            base_url=url, headers=headers, connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout()
        )

    def __repr__(self) -> str:
        return f"<HttpTransport {self.url}>"

    async def infer(self, images: Sequence[bytes], *, request_id: str, timeout_s: float) -> Answer:
        form = self._aiohttp.FormData(default_to_multipart=True)
        for image in images:
            form.add_field("images", image, filename="image", content_type="application/octet-stream")
        document = await self._ask("POST", "/embed", timeout_s, request_id, data=form)
        return _read_answer(document, len(images), request_id)

    async def model(self, *, timeout_s: float) -> ModelInfo:
        """Ask for the passport, with which the service sends how many images one request may carry."""
        document = await self._ask("GET", "/model", timeout_s, None)
        try:
            max_batch_size = max(1, int(document["max_batch_size"]))
        except (KeyError, TypeError, ValueError):
            raise _malformed(None) from None
        return ModelInfo.from_json(json.dumps(document), max_batch_size=max_batch_size)

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
                if response.status != 200:
                    kind, sentence = _ERRORS.get(
                        response.status,
                        (_errors.ClipError, "The server at {url} failed on this request; its log has the reason."),
                    )
                    raise kind(sentence.format(url=self.url), request_id=request_id)
                return json.loads(await response.read())
        except TimeoutError:
            raise _errors.DeadlineExceeded(
                f"The server at {self.url} did not answer in time.", request_id=request_id
            ) from None
        except self._aiohttp.ClientConnectorError:
            raise _errors.Unavailable(
                f"No server answers at {self.url}; is the service running there?", request_id=request_id
            ) from None
        except self._aiohttp.ClientError:
            raise _errors.Unavailable(f"The connection to {self.url} was lost.", request_id=request_id) from None
        except ValueError:
            raise _malformed(request_id) from None
        except RuntimeError:
            # aiohttp raises this if the session was closed.
            raise _errors.Unavailable("This client is closed.", request_id=request_id) from None


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
    except (KeyError, TypeError, ValueError):
        raise _malformed(request_id) from None
    if statuses.shape != (rows,) or answer.fingerprints.shape != (rows, 2):
        raise _malformed(request_id)
    return answer


def _malformed(request_id: str | None) -> _errors.ProtocolMismatch:
    return _errors.ProtocolMismatch(
        "The answer does not follow the protocol of the plain service.", request_id=request_id
    )
