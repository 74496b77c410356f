"""A Triton for tests: real gRPC on a loopback port, without a model. It fails as a script says.

::

    async with FakeTriton() as server, ClipClient(server.url) as clip:
        server.script(Reply(status=grpc.StatusCode.UNAVAILABLE, details="Socket closed"))
        batch = await clip.embed([b"any bytes"])        # the first request fails, the retry is answered
        assert np.allclose(batch.vectors[0], server.vector(b"any bytes"))
        assert len(server.requests) == 2
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self, cast

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from preprocess_ensemble import contract
from preprocess_ensemble.model_repository.passport import Canary, Parity, Passport, TextTower

__all__ = ("PNG_1X1", "FakeTriton", "ReceivedRequest", "Reply", "fake_vector")

PNG_1X1: Final = base64.b64decode(  # the canary image of the fake
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

_CONTEXT_WORDS: Final = 77
"""The fake reports a longer text as truncated, but its vector is the vector of the whole text."""
_CANARY_TEXT: Final = "a photo of a cat"
_TEXT_FINGERPRINT: Final = (7654321, -1234567)
_PARITY: Final = Parity(images=1, min_cosine=1.0, required=0.9999)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The answer to one request for embeddings. The default answers at once and without errors."""

    delay_s: float = 0.0
    """Time before the fake does anything else; use ``float("inf")`` for a server that never answers."""
    status: grpc.StatusCode | None = None
    """Status that the request fails with, and the text with it."""
    details: str = ""
    row_errors: Mapping[int, tuple[int, str]] = field(default_factory=dict)
    """Row -> (number of an ``ImageStatus``, sentence): only these images or texts fail."""
    fingerprint: tuple[int, int] | None = None
    """Fingerprint of another model for the answer."""
    drop_outputs: frozenset[str] = frozenset()
    """Tensors to leave out of the answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedRequest:
    """One request for embeddings, as the fake received it."""

    request_id: str
    model: str
    """The ensemble: ``clip_image`` or ``clip_text``."""
    images: tuple[bytes, ...] = field(repr=False)
    """The images, or the texts in UTF-8."""
    timeout_s: float | None
    metadata: Mapping[str, str] = field(repr=False)


def fake_vector(image: bytes, dimension: int = 8) -> NDArray[np.float32]:
    """Return the unit vector (D,), float32, of a :class:`FakeTriton` for the bytes of an image or text."""
    seed = int.from_bytes(hashlib.sha256(image).digest()[:8], "little")
    vector = np.random.default_rng(seed).standard_normal(dimension).astype(np.float32)
    return cast("NDArray[np.float32]", vector / np.float32(np.linalg.norm(vector)))


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """An in-process server that follows the wire contract. ``async with`` starts and stops it.

    ``dimension`` and ``max_batch_size`` are the model's. ``name`` is the model's name in the repository, and
    ``has_text`` gives the model a text tower. ``vector`` replaces :func:`fake_vector`. With ``token`` the fake refuses
    requests without that token, as Triton does. With ``seconds_per_image`` it works on one request at a time and, like
    Triton, keeps working on cancelled requests. ``host`` is the loopback name or address to listen on.
    """

    def __init__(
        self,
        *,
        dimension: int = 8,
        max_batch_size: int = 32,
        vector: Callable[[bytes], NDArray[np.float32]] | None = None,
        model: str = "fake",
        name: str = contract.DEFAULT_NAME,
        has_text: bool = False,
        fingerprint: tuple[int, int] = (1234567, -7654321),
        token: str | None = None,
        seconds_per_image: float = 0.0,
        host: str = "localhost",
    ) -> None:
        self.dimension = dimension
        self.max_batch_size = max_batch_size
        self.vector = vector or (lambda image: fake_vector(image, dimension))
        self.model = model
        self.names = contract.ModelNames(name)
        self.has_text = has_text
        self.logit_scale = 100.0
        self.logit_bias: float | None = None
        self.fingerprint = fingerprint
        self.token = token
        self.seconds_per_image = seconds_per_image
        self.requests: list[ReceivedRequest] = []  # the last 100 for embeddings, in order of arrival
        self.requests_received = 0
        self.images_embedded = 0
        self.images_worked_on = 0  # images that took ``seconds_per_image``, answered or not
        self.in_flight = self.max_in_flight = 0  # requests that wait for their answer now, and the most so far
        self.handshakes = 0  # requests for the passport
        self.port = 0  # loopback port; the same after a restart
        self.live = True
        self.ready_models = {*self.names.of_images, *(self.names.of_texts if has_text else ())}
        self._script: deque[Reply] = deque()
        self._default = Reply()
        self._work = asyncio.Lock()
        self._working: set[asyncio.Task[None]] = set()
        self._host = host
        self._credentials: grpc.ServerCredentials | None = None
        self._server: Any = None

    @property
    def url(self) -> str:
        return f"{'grpc' if self._credentials is None else 'grpcs'}://{self._host}:{self.port}"

    def script(self, *replies: Reply) -> None:
        """Answer the next requests for embeddings with these replies, in order."""
        self._script.extend(replies)

    def answer_always(self, reply: Reply) -> None:
        """Answer with this reply when the script is empty."""
        self._default = reply

    def use_tls(self, *, certificate: bytes, key: bytes, client_ca: bytes | None = None) -> None:
        """Speak TLS with this PEM pair; with ``client_ca``, require client certificates. Call it before the start."""
        self._credentials = grpc.ssl_server_credentials([(key, certificate)], client_ca, client_ca is not None)

    def passport(self) -> dict[str, Any]:
        """Return the model's passport as the handshake sends it: a complete ``model.json``."""
        text = TextTower(
            tokenizer={"kind": "clip-bpe", "clean": "lower", "context_length": _CONTEXT_WORDS},
            tokenizer_sha256={},
            fingerprint=_TEXT_FINGERPRINT,
            parity=_PARITY,
            canary=_CANARY_TEXT,
            canary_vector=tuple(self.vector(_CANARY_TEXT.encode()).tolist()),
            logit_scale=self.logit_scale,
            logit_bias=self.logit_bias,
        )
        passport = Passport(
            model=self.model,
            pretrained="random:0",
            weights_sha256="0" * 64,
            preprocess={
                "size": [224, 224],
                "interpolation": "bicubic",
                "resize_mode": "shortest",
                "fill_color": 0,
                "mean": [0.5, 0.5, 0.5],
                "std": [0.5, 0.5, 0.5],
            },
            preprocess_id="shortest-bicubic-224x224",
            dimension=self.dimension,
            weights_dtype="fp32",
            fingerprint=self.fingerprint,
            parity=_PARITY,
            canary=Canary(image=PNG_1X1, vector=tuple(self.vector(PNG_1X1).tolist())),
            opset=17,
            ir_version=8,
            exported_at=1_700_000_000,
            text=text if self.has_text else None,
        )
        return dict(json.loads(passport.to_json()))

    async def start(self, *, port: int | None = None) -> None:
        """Listen on ``port``, else on the same port as before, else on any free port."""
        self.port = self.port if port is None else port
        server = self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, server)
        address, credentials = f"{self._host}:{self.port}", self._credentials
        self.port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        await server.start()

    async def stop(self) -> None:
        """Break every connection and stop listening."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.stop()

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=self.live)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="triton")

    async def ModelReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelReadyResponse(ready=request.name in self.ready_models)

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        models = [{"name": name, "state": "READY"} for name in sorted(self.ready_models)]
        return service_pb2.RepositoryIndexResponse(models=models)

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        await self._check_call(request.name, context)
        return service_pb2.ModelConfigResponse(config={"name": request.name, "max_batch_size": self.max_batch_size})

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        await self._check_call(request.model_name, context)
        if request.model_name == self.names.preprocess:
            self.handshakes += 1
            return _response(request, {contract.PASSPORT: ("BYTES", 1, _strings([json.dumps(self.passport())]))})
        images = tuple(deserialize_bytes_tensor(request.raw_input_contents[0]).tolist())
        self.requests_received += 1
        self.requests.append(
            ReceivedRequest(
                request_id=request.id,
                model=request.model_name,
                images=images,
                timeout_s=context.time_remaining(),
                metadata=dict(context.invocation_metadata() or ()),
            )
        )
        del self.requests[:-100]
        reply = self._script.popleft() if self._script else self._default
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            return await self._answer(request, images, reply, context)
        finally:
            self.in_flight -= 1

    async def _check_call(self, model: str, context: Any) -> None:
        metadata = dict(context.invocation_metadata() or ())
        if self.token is not None and metadata.get("triton-grpc-protocol-authorization") != self.token:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE,
                "This protocol is restricted, expecting header 'triton-grpc-protocol-authorization'",
            )
        if model not in self.ready_models:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{model}' is not found")

    async def _answer(self, request: Any, images: tuple[bytes, ...], reply: Reply, context: Any) -> Any:
        if reply.delay_s == float("inf"):
            await asyncio.Event().wait()
        elif reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        if self.seconds_per_image:
            task = asyncio.create_task(self._do_work(len(images)))
            self._working.add(task)
            task.add_done_callback(self._working.discard)
            await asyncio.shield(task)
        if reply.status is not None:
            await context.abort(reply.status, reply.details)
        self.images_embedded += len(images)
        return self._embedded(request, images, reply)

    async def _do_work(self, rows: int) -> None:
        async with self._work:
            await asyncio.sleep(rows * self.seconds_per_image)
            self.images_worked_on += rows

    def _embedded(self, request: Any, images: tuple[bytes, ...], reply: Reply) -> Any:
        rows = len(images)
        is_text = request.model_name == self.names.text
        vectors = np.full((rows, self.dimension), np.nan, dtype="<f4")
        statuses = np.zeros(rows, dtype="<i4")
        errors = [""] * rows
        empty = contract.ImageStatus.EMPTY, f"The {'text' if is_text else 'file'} is empty."
        for row, image in enumerate(images):
            if row not in reply.row_errors and (image.strip() if is_text else image):
                vectors[row] = self.vector(image)
            else:
                statuses[row], errors[row] = reply.row_errors.get(row, empty)
        fingerprint = reply.fingerprint or (_TEXT_FINGERPRINT if is_text else self.fingerprint)
        tensors = {
            contract.EMBEDDING: ("FP32", self.dimension, vectors.tobytes()),
            contract.STATUS: ("INT32", 1, statuses.tobytes()),
            contract.ERROR: ("BYTES", 1, _strings(errors)),
            contract.FINGERPRINT: ("INT32", 2, rows * np.array(fingerprint, dtype="<i4").tobytes()),
        }
        if is_text:
            truncated = np.array([len(text.split()) > _CONTEXT_WORDS for text in images])
            tensors[contract.TRUNCATED] = ("BOOL", 1, truncated.tobytes())
        return _response(request, {name: value for name, value in tensors.items() if name not in reply.drop_outputs})


def _strings(texts: list[str]) -> bytes:
    packed: bytes = serialize_byte_tensor(np.array([text.encode() for text in texts], dtype=np.object_)).item()
    return packed


def _response(request: Any, tensors: Mapping[str, tuple[str, int, bytes]]) -> Any:
    response = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
    rows = request.inputs[0].shape[0]
    for name, (datatype, width, raw) in tensors.items():
        response.outputs.add(name=name, datatype=datatype, shape=[rows, width])
        response.raw_output_contents.append(raw)
    return response
