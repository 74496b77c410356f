"""``http://host:port``: a plain service instead of Triton, with the same answers.

It is any service that answers ``POST /embed``, ``GET /model`` and ``GET /healthz`` as ``benchmarks/baseline`` does, so
that a program moves from one to the other by its URL alone.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

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
from clip_client._transports.base import Answer, Transport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ERRORS: Final[Mapping[int, tuple[type[ClipError], str]]] = {
    401: (Unauthorized, "The server at {url} refused the credentials; check token=."),
    403: (Unauthorized, "The server at {url} refused the credentials; check token=."),
    404: (ProtocolMismatch, "What answers at {url} is not the plain service; check host and port."),
    405: (ProtocolMismatch, "What answers at {url} is not the plain service; check host and port."),
    413: (ProtocolMismatch, "A request is larger than {url} takes; lower max_request_bytes=."),
    422: (ProtocolMismatch, "The server at {url} does not take this client's requests; update the older of the two."),
    429: (Overloaded, "The server at {url} has more work than it can do."),
    502: (Unavailable, "The proxy at {url} does not reach its server."),
    503: (ModelNotReady, "The server at {url} has no model ready."),
    504: (DeadlineExceeded, "The server at {url} did not answer in time."),
}
"""Status of HTTP -> what it means here; the server's own text is never repeated."""


class HttpTransport(Transport):
    """Connections to one plain service. Build it inside the event loop that uses it."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        """``url`` is ``http://host:port`` or ``https://host:port``. Raises ClipError where aiohttp is missing."""
        try:
            import aiohttp
        except ModuleNotFoundError:
            raise ClipError('http:// needs aiohttp: pip install "clip-triton[http]"') from None
        self.url = url
        self._aiohttp = aiohttp
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        # How many requests are under way is the adaptive limit's business, not the connector's.
        self._session = aiohttp.ClientSession(
            base_url=url, headers=headers, connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout()
        )

    def __repr__(self) -> str:
        return f"<HttpTransport {self.url}>"

    async def infer(self, images: Sequence[bytes], *, request_id: str, timeout_s: float) -> Answer:
        """Embed encoded images; see :class:`Transport`."""
        form = self._aiohttp.FormData(default_to_multipart=True)
        for image in images:
            form.add_field("images", image, filename="image", content_type="application/octet-stream")
        document = await self._ask("POST", "/embed", timeout_s, request_id, data=form)
        return _read_answer(document, len(images), request_id)

    async def passport(self, *, request_id: str, timeout_s: float) -> str:
        """The model's passport as JSON text."""
        return json.dumps(await self._ask("GET", "/model", timeout_s, request_id))

    async def max_batch_size(self, *, timeout_s: float) -> int:
        """How many images one request may carry; it stands beside the passport."""
        document = await self._ask("GET", "/model", timeout_s, None)
        try:
            return max(1, int(document["max_batch_size"]))
        except (KeyError, TypeError, ValueError):
            raise _malformed(None) from None

    async def server_live(self, *, timeout_s: float) -> bool:
        """Whether anything of this kind answers."""
        await self._ask("GET", "/healthz", timeout_s, None)
        return True

    async def models_ready(self, *, timeout_s: float) -> None:
        """The port answers only once the model is loaded."""
        await self._ask("GET", "/healthz", timeout_s, None)

    async def close(self) -> None:
        """Close every connection."""
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
                        (ClipError, "The server at {url} failed on this request; its log has the reason."),
                    )
                    raise kind(sentence.format(url=self.url), request_id=request_id)
                return json.loads(await response.read())
        except asyncio.TimeoutError:
            raise DeadlineExceeded(f"The server at {self.url} did not answer in time.", request_id=request_id) from None
        except self._aiohttp.ClientConnectorError:
            raise Unavailable(
                f"No server answers at {self.url}; is the service running there?", request_id=request_id
            ) from None
        except self._aiohttp.ClientError:
            raise Unavailable(f"The connection to {self.url} was lost.", request_id=request_id) from None
        except ValueError:
            raise _malformed(request_id) from None
        except RuntimeError:
            # aiohttp's only word for a session that was closed.
            raise Unavailable("This client is closed.", request_id=request_id) from None


def _read_answer(document: Any, rows: int, request_id: str) -> Answer:
    """Make rows of NaN of the embeddings that are null; raises ProtocolMismatch for what is no answer."""
    try:
        results = document["results"]
        good = [result["embedding"] for result in results if result["embedding"] is not None]
        statuses = np.array([int(result["status"]) for result in results], np.int32)
        dimension = int(document["dimension"])
        vectors = np.full((rows, dimension), np.nan, np.float32)
        vectors[statuses == 0] = np.array(good, np.float32).reshape(-1, dimension)
        answer = Answer(
            vectors=vectors,
            statuses=statuses,
            errors=tuple(str(result["error"]) for result in results),
            fingerprints=np.tile(np.array(document["fingerprint"], np.int32), (rows, 1)),
        )
    except (KeyError, TypeError, ValueError):
        raise _malformed(request_id) from None
    if statuses.shape != (rows,) or answer.fingerprints.shape != (rows, 2):
        raise _malformed(request_id)
    return answer


def _malformed(request_id: str | None) -> ProtocolMismatch:
    return ProtocolMismatch("The server's answer is not one of the plain service.", request_id=request_id)
