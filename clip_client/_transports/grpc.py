"""The client of Triton over gRPC; only this module opens gRPC channels.

Requests are ``ModelInferRequest`` messages with ``raw_input_contents``, sent with ``grpc.aio``. They are assembled by
hand, which copies each item once; protobuf would copy it three times.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor

from clip_client._config import ClientConfig, read_pem
from clip_client._deadline import Deadline
from clip_client._endpoint import Endpoint
from clip_client._errors import ClipError, ModelNotReady, ProtocolMismatch, Unavailable, forked_process
from clip_client._model import ModelInfo, Tower
from clip_client._transports.base import Answer, Transport
from clip_client._transports.grpc_errors import MISSING, find_row, http_status
from preprocess_ensemble import contract
from preprocess_ensemble.pem_files import system_roots

Metadata = tuple[tuple[str, str], ...]

_channel_opened_in: int | None = None

_OF_IMAGES: Final[tuple[str, ...]] = (contract.EMBEDDING, contract.STATUS, contract.ERROR, contract.FINGERPRINT)
_OF_TEXTS: Final[tuple[str, ...]] = (*_OF_IMAGES, contract.TRUNCATED)
_LENGTH_DELIMITED: Final = 2  # protobuf's wire type of bytes and strings
_LENGTH: Final = struct.Struct("<I")  # before each element of a BYTES tensor
_MALFORMED: Final = (KeyError, ValueError, struct.error)  # of reading an answer against the wire contract
_ENSEMBLE: Final = contract.DEFAULT_NAMES.image.removeprefix(contract.DEFAULT_NAME)  # ends the names of all of images


class TritonTransport(Transport):
    """One gRPC channel to one Triton."""

    def __init__(self, endpoint: Endpoint, channel: grpc.aio.Channel, *, metadata: Metadata = ()) -> None:
        self.endpoint = endpoint
        self._names = endpoint.names
        self._image = self._names.image, contract.IMAGE, _OF_IMAGES
        self._text = self._names.text, contract.TEXT, _OF_TEXTS
        self._channel = channel
        self._metadata = metadata
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        # Bypass the stub's serializer, which would copy each image twice.
        self._model_infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        _warm_up_malloc()

    async def infer(
        self, items: Sequence[bytes], *, tower: Tower = Tower.IMAGE, request_id: str, timeout_s: float
    ) -> Answer:
        model, tensor, outputs = self._image if tower is Tower.IMAGE else self._text
        request = _request(model, tensor, items, outputs, request_id)
        if "opentelemetry.trace" in sys.modules:  # a program that traces has already imported it
            with _span(self.endpoint, tower, len(items), request_id) as trace:
                response = await self._call(self._model_infer, request, timeout_s, request_id, trace, model)
        else:
            response = await self._call(self._model_infer, request, timeout_s, request_id, model=model)
        return _read_answer(response, len(items), request_id)

    async def model(self, *, timeout_s: float) -> ModelInfo:
        """Ask the preprocessor for the passport, and the server for the ensemble's ``max_batch_size``."""
        deadline = Deadline(timeout_s)
        passport = await self._passport(uuid.uuid4().hex, timeout_s)
        response = await self.ask("ModelConfig", deadline.remaining, name=self._names.image)
        return ModelInfo.from_json(passport, max_batch_size=max(1, int(response.config.max_batch_size)))

    async def _passport(self, request_id: str, timeout_s: float) -> str:
        """Request only the optional output with the passport, for one empty image, which is then not decoded."""
        request = _request(self._names.preprocess, contract.IMAGE, [b""], (contract.PASSPORT,), request_id)
        try:
            response = await self._call(self._model_infer, request, timeout_s, request_id)
        except ModelNotReady:
            others = await self._other_models(timeout_s)
            names = sorted(name.removesuffix(_ENSEMBLE) for name in others if name.endswith(_ENSEMBLE))
            if names:
                raise ModelNotReady(
                    f"The server at {self.endpoint} has no ready model named {self._names.name!r}; it has "
                    f"{', '.join(map(repr, names))}. Name a model with model= (--model of the commands)."
                ) from None
            if others:
                raise ProtocolMismatch(
                    f"The Triton at {self.endpoint} does not serve {self._names.preprocess}; start it with "
                    "--model-repository triton_models, or point the client at the right server."
                ) from None
            raise
        try:
            (passport,) = _read_strings(_tensors(response)[contract.PASSPORT], 1)
        except _MALFORMED:
            raise _malformed(request_id) from None
        return passport

    async def server_live(self, *, timeout_s: float) -> bool:
        return bool((await self.ask("ServerLive", timeout_s)).live)

    async def models_ready(self, *, timeout_s: float) -> None:
        for name in self._names.of_images:
            if not (await self.ask("ModelReady", timeout_s, name=name)).ready:
                raise ModelNotReady(
                    f"The server at {self.endpoint} has no ready model {name}; see the server's log for why it was not "
                    "loaded, or export that model with clip-export and its --name, --model and --pretrained."
                )

    async def close(self) -> None:
        await self._channel.close()

    async def _other_models(self, timeout_s: float) -> set[str]:
        """Return the ready models of the server; empty if the wanted ensemble is among them.

        clip-serve does not let clients list models. It names its models in the server's metadata instead.
        """
        names: set[str] = set()
        with contextlib.suppress(ClipError):
            metadata = await self.ask("ServerMetadata", timeout_s)
            if metadata.name.startswith(contract.SERVER_ID):
                listed = metadata.name.removeprefix(contract.SERVER_ID).split(",")
                names = {f"{name}{_ENSEMBLE}" for name in listed if name}
        if not names:
            with contextlib.suppress(ClipError):
                names = {model.name for model in (await self.ask("RepositoryIndex", timeout_s, ready=True)).models}
        return set() if self._names.image in names else names

    async def ask(self, method: str, timeout_s: float, /, **fields: Any) -> Any:
        """Call a method of Triton's service with a small request of ``fields``; return the message of its answer."""
        request = getattr(service_pb2, f"{method}Request")(**fields)
        return await self._call(getattr(self._stub, method), request, timeout_s)

    async def _call(
        self, method: Any, request: Any, timeout_s: float, request_id: str = "", headers: Metadata = (), model: str = ""
    ) -> Any:
        try:
            return await method(request, timeout=timeout_s, metadata=self._metadata + headers)
        except grpc.aio.AioRpcError as error:
            details = f"{error.details()}"
            row = find_row(error.code(), details)
            for _, value in reversed(self._metadata):  # a proxy may repeat the token
                details = details.replace(value, "***")
            sentence = row.sentence.format(
                endpoint=self.endpoint,
                model=model or self._names.image,
                status=http_status(details),
                details=details,
                missing=MISSING[self.endpoint.tls],
            )
            failure = row.error(sentence, request_id=request_id or None)
        except grpc.aio.UsageError:
            failure = Unavailable("This client is closed.", request_id=request_id or None)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This task was not cancelled: the channel was closed, because the name of the server now leads elsewhere.
            failure = Unavailable(f"The connection to {self.endpoint} was closed.", request_id=request_id or None)
        # Raise the error outside the except block, so that gRPC's error is not its context. That error would show the
        # server's text, with paths and tracebacks. Its frames would also keep the call alive, and gRPC would go on
        # connecting for the call after the channel is closed.
        raise failure


def transport_factory(
    config: ClientConfig, *, more_options: Sequence[tuple[str, int | str]] = ()
) -> Callable[[Endpoint, str | None], TritonTransport]:
    """Read the certificates once; return a function that, called in an event loop, connects to an address.

    ``more_options`` are further channel arguments of gRPC. Raises ValueError if a certificate cannot be read, and
    ForkedProcess if gRPC was used before the fork that made this process: its threads and locks do not survive a fork.
    """
    if _channel_opened_in is not None and _channel_opened_in != os.getpid():
        raise forked_process("gRPC was used", _channel_opened_in)
    credentials: grpc.ChannelCredentials | None = None
    if any(endpoint.tls for endpoint in config.endpoints):
        roots = read_pem("ca_certificate", config.ca_certificate)
        if roots is None and "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH" not in os.environ:
            roots = system_roots()
        credentials = grpc.ssl_channel_credentials(
            root_certificates=roots,
            private_key=read_pem("client_key", config.client_key),
            certificate_chain=read_pem("client_certificate", config.client_certificate),
        )
    metadata: Metadata = ()
    if config.token is not None:
        metadata = (("authorization", f"Bearer {config.token}"), (config.token_header, config.token))

    def connect(endpoint: Endpoint, server_name: str | None) -> TritonTransport:
        global _channel_opened_in
        _channel_opened_in = _channel_opened_in or os.getpid()
        options = [*channel_options(config, endpoint, server_name), *more_options]
        if credentials is None or not endpoint.tls:
            channel = grpc.aio.insecure_channel(endpoint.address, options)
        else:
            channel = grpc.aio.secure_channel(endpoint.address, credentials, options)
        return TritonTransport(endpoint, channel, metadata=metadata)

    return connect


def channel_options(config: ClientConfig, endpoint: Endpoint, server_name: str | None) -> list[tuple[str, int | str]]:
    keepalive_ms = int(config.keepalive_time_s * 1000)
    options: list[tuple[str, int | str]] = [
        # Lift gRPC's default limit of 4 MB, because this client limits rows and bytes itself.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        # Ping only while a request waits (gRPC's default), and at most twice in a row, which Triton accepts.
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms),
        # gRPC also measures the bandwidth by pings, and sends no keepalive ping while such a ping is in flight.
        ("grpc.http2.ping_timeout_ms", keepalive_ms),
        # Find a server that restarts within a second; gRPC's own back-off goes up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # This is the time limit of an attempt: an address that drops packets fails after 5 s, not after gRPC's 20.
        ("grpc.min_reconnect_backoff_ms", 5000),
        # Turn gRPC's retries off, because the sender retries.
        ("grpc.enable_retries", 0),
        # Let two clients of one process share neither a connection nor its back-off.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if endpoint.is_loopback or (server_name is not None and _is_without_proxy(server_name)):
        # Turn the proxy off: gRPC uses the environment's proxy even for calls to this machine, and compares no_proxy
        # with the numeric address instead of the name.
        options.append(("grpc.enable_http_proxy", 0))
    name = config.server_name or server_name
    if name is not None:
        options += [("grpc.default_authority", name), ("grpc.ssl_target_name_override", name)]
    return options


def _is_without_proxy(name: str) -> bool:
    """Whether ``no_proxy`` lists a host, by gRPC's rule for names: the name ends with an entry."""
    listed = os.environ.get("no_grpc_proxy", os.environ.get("no_proxy", "")).lower()
    return name.lower().endswith(tuple(filter(None, map(str.strip, listed.split(",")))))


@lru_cache(maxsize=256)  # four models of two towers, with batches of 1 to 32
def _head(model: str, tensor: str, rows: int, outputs: Sequence[str], id_size: int) -> tuple[bytes, bytes]:
    """Return what stands before the id of a request, and what stands between the id and the size of all items."""
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name=tensor, datatype="BYTES", shape=[rows, 1])
    for name in outputs:
        request.outputs.add(name=name)
    id_field, items_field = _tag(request.ID_FIELD_NUMBER), _tag(request.RAW_INPUT_CONTENTS_FIELD_NUMBER)
    return id_field + _varint(id_size), request.SerializeToString() + items_field


def _request(model: str, tensor: str, items: Sequence[bytes], outputs: Sequence[str], request_id: str) -> bytes:
    """Return a serialised request, whose last field is a BYTES tensor of the items.

    Concatenated messages of one type are one message (protobuf's encoding, "Last One Wins").
    """
    start, middle = _head(model, tensor, len(items), outputs, len(request_id))
    elements = [part for item in items for part in (_LENGTH.pack(len(item)), item)]
    return b"".join((start, request_id.encode(), middle, _varint(sum(map(len, elements))), *elements))


def _tag(field: int) -> bytes:
    return _varint(field << 3 | _LENGTH_DELIMITED)


def _varint(number: int) -> bytes:
    """Encode a number as protobuf does: seven bits per byte, the lowest first; the top bit is set if more follow."""
    encoded: list[int] = []
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _tensors(response: Any) -> dict[str, bytes]:
    """Return name -> bytes of each tensor of a ``ModelInferResponse``. Raises one of _MALFORMED."""
    return {tensor.name: raw for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True)}


def _read_answer(response: Any, rows: int, request_id: str) -> Answer:
    """Read the answer of an ensemble to ``rows`` images or texts, without copies. Raises ProtocolMismatch."""
    try:
        raw = _tensors(response)
        vectors = np.frombuffer(raw[contract.EMBEDDING], "<f4").reshape(rows, -1)
        truncated = raw.get(contract.TRUNCATED, bytes(rows))  # answers to images do not have it
        others = _read_others(rows, raw[contract.STATUS], raw[contract.ERROR], raw[contract.FINGERPRINT], truncated)
    except _MALFORMED:
        raise _malformed(request_id) from None
    return Answer(vectors, *others)


@lru_cache(maxsize=64)  # good items differ only in their vectors
def _read_others(
    rows: int, statuses: bytes, errors: bytes, fingerprints: bytes, truncated: bytes
) -> tuple[tuple[int, ...], tuple[str, ...], tuple[tuple[int, ...], ...], tuple[bool, ...]]:
    """Return what an answer says of ``rows`` items besides their vectors. Raises one of _MALFORMED."""
    numbers = struct.unpack(f"<{2 * rows}i", fingerprints)
    sentences = _read_strings(errors, rows)
    if len(sentences) != rows:
        raise ValueError(f"{len(sentences)} errors of {rows} items")
    pairs = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    return struct.unpack(f"<{rows}i", statuses), sentences, pairs, struct.unpack(f"{rows}?", truncated)


def _read_strings(raw: bytes, count: int) -> tuple[str, ...]:
    """Return the elements of a BYTES tensor, usually ``count``, as text. Raises one of _MALFORMED."""
    if raw == bytes(4 * count):  # all elements are empty, which is the usual case
        return ("",) * count
    return tuple(text.decode("utf-8", "replace") for text in deserialize_bytes_tensor(raw))


def _malformed(request_id: str) -> ProtocolMismatch:
    return ProtocolMismatch(
        "The answer does not follow the wire contract; use one version of clip-triton on both sides.",
        request_id=request_id,
    )


def _warm_up_malloc() -> None:
    """Make glibc reuse the memory of one request for the next.

    glibc returns free memory at the top of its heap to the system above a threshold: twice the size of the largest
    block that was ever mapped and freed (``mallopt``, M_TRIM_THRESHOLD and M_MMAP_THRESHOLD). If a program's largest
    blocks are its requests, each request is returned and mapped again, page by page: 0.7 of 1.4 ms for every 500 KB.
    This function frees one block as large as the largest default request. The block is never written, so it takes no
    memory. With other allocators the function has no effect.
    """
    bytes(8 * 2**20)


@contextlib.contextmanager
def _span(endpoint: Endpoint, tower: Tower, rows: int, request_id: str) -> Iterator[Metadata]:
    """Open an OpenTelemetry span for one request; yield the headers that let the server's spans join it.

    If several calls share the request, the span joins the trace of the call whose image or text triggered it. An
    exception ends the span with its class and message, which come from this package. Attributes never have an image,
    text, file name or token.
    """
    from opentelemetry import propagate, trace

    attributes: dict[str, str | int] = {
        "rpc.system": "grpc",
        "rpc.service": "inference.GRPCInferenceService",
        "rpc.method": "ModelInfer",
        "server.address": endpoint.host,
        "server.port": endpoint.port,
        f"clip.{tower.value}s": rows,
        "clip.request_id": request_id,
    }
    tracer = trace.get_tracer("clip_client")
    with tracer.start_as_current_span("clip_client.infer", kind=trace.SpanKind.CLIENT, attributes=attributes):
        headers: dict[str, str] = {}
        propagate.inject(headers)
        yield tuple(headers.items())
