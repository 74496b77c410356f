"""The one place that speaks gRPC to Triton, and the one table that says what Triton's errors mean.

Requests are plain ``ModelInferRequest`` messages with ``raw_input_contents`` over ``grpc.aio``, put together so that
each image is copied once before gRPC has it, and not three times as on the way through protobuf.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from clip_client._config import read_pem
from clip_client._errors import (
    ClipError,
    DeadlineExceeded,
    ModelNotReady,
    Overloaded,
    ProtocolMismatch,
    Unauthorized,
    Unavailable,
)
from clip_client._transports.base import ModelSettings, ServerDescription
from clip_client._transports.grpc_messages import (
    malformed,
    read_answer,
    read_strings,
    tensors,
    warm_up_malloc,
    with_strings,
)
from clip_client._transports.tracing import Metadata, request_span
from clip_client._transports.triton_statistics import read_statistics
from preprocess_ensemble import contract

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clip_client._config import ClientConfig
    from clip_client._endpoint import Endpoint
    from clip_client._transports.base import Answer
    from clip_client._transports.triton_statistics import ModelStatistics


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One row of :data:`ERROR_TABLE`."""

    code: grpc.StatusCode
    pattern: re.Pattern[str] | None
    """Searched in the server's text; None fits every text."""
    error: type[ClipError]
    sentence: str
    """For people; ``{endpoint}`` is the server's address. The server's own text is never repeated: Triton puts
    tracebacks and paths into it."""

    def build(self, endpoint: Endpoint, request_id: str | None) -> ClipError:
        """The error for one failed request."""
        return self.error(self.sentence.format(endpoint=endpoint), request_id=request_id)


def _row(code: str, pattern: str | None, error: type[ClipError], sentence: str) -> ErrorRow:
    return ErrorRow(grpc.StatusCode[code], re.compile(pattern, re.I | re.S) if pattern else None, error, sentence)


_UNREACHABLE = "No server answers at {endpoint}; is tritonserver running there, and is that its gRPC port?"
_LOST = "The connection to {endpoint} was lost."
_WRONG_SERVICE = (
    "What answers at {endpoint} is not Triton's gRPC port; use that of --grpc-port (8001), not the HTTP one."
)
_NOT_READY = (
    "The server at {endpoint} has no ready model clip_image; export one with clip-export and start the server on "
    "that repository."
)
_REFUSED = "The server at {endpoint} refused the credentials; check token= and token_header=."
_FULL = "The server at {endpoint} has more work than it can do."
_EXPIRED = "The server at {endpoint} did not answer in time."
_DEAD = (
    "The process of a model on {endpoint} has ended, or hangs; restart the server, or run it under clip-serve, which "
    "does that."
)
_NO_SHARED_MEMORY = (
    "The server at {endpoint} has too little shared memory for this request; give it more (docker run --shm-size=1g), "
    "or send fewer images in a request."
)
_ALONE = "The server at {endpoint} cannot answer the outputs error or status alone; request embedding with them."
_FAILED = "The server at {endpoint} failed on this request; its log has the reason."
_TOO_LARGE = "A request is larger than {endpoint} takes; lower max_request_bytes=."
_ODD_REQUEST = (
    "The server at {endpoint} does not take this client's requests; install the same clip-triton on both sides."
)

ERROR_TABLE: Final[tuple[ErrorRow, ...]] = (
    # Triton, core/src/dynamic_batch_scheduler.cc and scheduler_utils.cc: a request that waited past its timeout.
    _row("UNAVAILABLE", r"request timeout expired", DeadlineExceeded, _EXPIRED),
    # Triton, server/src/grpc/grpc_utils.h: --grpc-restricted-protocol without its header, or with a wrong value.
    _row("UNAVAILABLE", r"this protocol is restricted", Unauthorized, _REFUSED),
    # Triton, core/src/scheduler_utils.cc: max_queue_size of a queue policy.
    _row("UNAVAILABLE", r"exceeds maximum queue size", Overloaded, _FULL),
    # Triton, core/src/model_repository_manager: a model that is loading, unloading or failed to load.
    _row("UNAVAILABLE", r"unknown model|not ready|no available versions|unload", ModelNotReady, _NOT_READY),
    # Triton, core: requests that come after SIGTERM ("Server is stopping, scheduler for model has stopped accepting").
    _row("UNAVAILABLE", r"server is stopping", Unavailable, "The server at {endpoint} is shutting down."),
    # Envoy, circuit breakers ("upstream connect error or disconnect/reset before headers. reset reason: overflow").
    _row("UNAVAILABLE", r"reset reason: overflow", Overloaded, _FULL),
    # gRPC core, TLS handshake: the other side speaks something that is not TLS.
    _row(
        "UNAVAILABLE",
        r"WRONG_VERSION_NUMBER|HTTP_REQUEST",
        ProtocolMismatch,
        "There is no TLS at {endpoint}; write grpc:// where the server has none, else check the port.",
    ),
    # gRPC core, TLS handshake: one side did not accept the other's certificate.
    _row(
        "UNAVAILABLE",
        r"CERTIFICATE_VERIFY_FAILED|Hostname Verification|(tls|ssl)v?\d* ?alert|(TLSV1|SSLV3)_ALERT|UNKNOWN_CA",
        Unauthorized,
        "The certificates of {endpoint} and this client do not fit; check ca_certificate= and client_certificate=.",
    ),
    # gRPC core, chttp2: what answers does not speak HTTP/2 ("Failed parsing HTTP/2", "Trying to connect an http1.x
    # server").
    _row("UNAVAILABLE", r"Failed parsing HTTP/2|http1\.x", ProtocolMismatch, _WRONG_SERVICE),
    # gRPC core: connected, and hung up on before the first answer. Triton's HTTP port does that, and so does a TLS
    # port, and a server that is just going down.
    _row(
        "UNAVAILABLE",
        r"failed to connect to all addresses.*Socket closed",
        Unavailable,
        "What listens at {endpoint} hangs up; is that Triton's gRPC port (8001 by default), and has it TLS (grpcs://)?",
    ),
    # gRPC core, resolver ("DNS resolution failed for ...", "errors resolving ...: Domain name not found").
    _row(
        "UNAVAILABLE",
        r"DNS resolution failed|errors resolving|Domain name not found",
        Unavailable,
        "The name in {endpoint} cannot be resolved.",
    ),
    # gRPC core, subchannels: nothing listens, or there is no route.
    _row("UNAVAILABLE", r"failed to connect|connection refused", Unavailable, _UNREACHABLE),
    # gRPC core: a connection that broke under a request ("Socket closed", "Stream removed", "Connection reset by
    # peer", GOAWAY, a keepalive "ping timeout"), and every other reason for this status.
    _row("UNAVAILABLE", None, Unavailable, _LOST),
    # Triton, python_backend/src/python_be.cc: the stub was killed; the server itself stays "ready".
    _row("INTERNAL", r"stub process .* is not healthy", Unavailable, _DEAD),
    # Triton, ensemble_scheduler.cc: a step whose model is reloading.
    _row("INTERNAL", r"unknown model|not ready|no available versions", ModelNotReady, _NOT_READY),
    # Triton, python_backend/src/shm_manager.cc: /dev/shm is full, or too small; the text names the region.
    _row("INTERNAL", r"shared memory", ClipError, _NO_SHARED_MEMORY),
    # gRPC core, chttp2: the stream was reset under the request.
    _row("INTERNAL", r"RST_STREAM", Unavailable, _LOST),
    # Triton: any exception in a model, with its traceback in the text.
    _row("INTERNAL", None, ClipError, _FAILED),
    # Triton, model_repository_manager: "Request for unknown model: 'clip_image' is not found", and "... has no
    # available versions" while it, or a step of the ensemble, is being reloaded.
    _row("NOT_FOUND", None, ModelNotReady, _NOT_READY),
    # Triton, infer_request.cc and the model's lifecycle: the model is there, its version is not.
    _row("INVALID_ARGUMENT", r"unknown model|not ready|no available versions", ModelNotReady, _NOT_READY),
    # Triton, ensemble_scheduler.cc: it leaves out the step that makes both, if only one of them is requested.
    _row("INVALID_ARGUMENT", r"unexpected deadlock", ProtocolMismatch, _ALONE),
    # Triton, infer_request.cc: names, types or shapes of tensors. Never about an image.
    _row("INVALID_ARGUMENT", None, ProtocolMismatch, _ODD_REQUEST),
    # gRPC: our own deadline, or the server noticed it first.
    _row("DEADLINE_EXCEEDED", None, DeadlineExceeded, _EXPIRED),
    # A proxy or a service mesh in front of Triton; gRPC maps HTTP 401 and 403 to these two.
    _row("UNAUTHENTICATED", None, Unauthorized, _REFUSED),
    _row("PERMISSION_DENIED", None, Unauthorized, _REFUSED),
    # gRPC: a message over a limit of the server. Splitting it would not be ours to decide silently.
    _row("RESOURCE_EXHAUSTED", r"larger than max|message size", ProtocolMismatch, _TOO_LARGE),
    # Envoy's and other proxies' circuit breakers; gRPC servers out of memory or streams.
    _row("RESOURCE_EXHAUSTED", None, Overloaded, _FULL),
    # gRPC: another service behind the port (gRPC maps HTTP 404 to this).
    _row("UNIMPLEMENTED", None, ProtocolMismatch, _WRONG_SERVICE),
    # Triton, core: a model's request for something that was taken back, or a server that shuts down. Our own
    # cancellation never gets here: it is a CancelledError.
    _row("CANCELLED", None, Unavailable, "The server at {endpoint} gave the request up."),
    # gRPC core: a broken stream ("Stream removed"), before or after the answer.
    _row("UNKNOWN", r"stream removed|http2|HTTP status", Unavailable, _LOST),
    # Envoy, its limit of a request's size: HTTP 413 has no counterpart among gRPC's codes.
    _row("UNKNOWN", r"payload too large", ProtocolMismatch, _TOO_LARGE),
    # Triton: TRITONSERVER_ERROR_UNKNOWN; gRPC: an exception in a Python servicer.
    _row("UNKNOWN", None, ClipError, _FAILED),
    # gRPC: an optimistic lock of the server lost; by definition safe to retry.
    _row("ABORTED", None, Unavailable, "The server at {endpoint} aborted the request."),
    # gRPC: the answer was damaged or lost on its way.
    _row("DATA_LOSS", None, Unavailable, _LOST),
    # Triton: TRITONSERVER_ERROR_ALREADY_EXISTS and the like concern model control, which this client never calls.
    _row("ALREADY_EXISTS", None, ClipError, _FAILED),
    _row("FAILED_PRECONDITION", None, ModelNotReady, _NOT_READY),
    _row("OUT_OF_RANGE", None, ProtocolMismatch, _ODD_REQUEST),
    # A call never ends in error with this one; the row keeps the table total.
    _row("OK", None, ClipError, _FAILED),
)
"""First row that fits wins. Triton's status alone does not say enough: UNAVAILABLE is a full queue, an expired request,
a wrong token and a lost connection, and INTERNAL is a dead process and any exception in a model."""


def find_row(code: grpc.StatusCode, details: str) -> ErrorRow:
    """The row of :data:`ERROR_TABLE` for a status and the server's text."""
    return next(row for row in ERROR_TABLE if row.code is code and (row.pattern is None or row.pattern.search(details)))


class TritonTransport:
    """One gRPC channel to one Triton. Build it inside the event loop that uses it."""

    def __init__(
        self,
        endpoint: Endpoint,
        config: ClientConfig,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        server_name: str | None = None,
    ) -> None:
        """``server_name`` is the name to ask for, and to expect in the certificate, where the endpoint is a number."""
        self.endpoint = endpoint
        self._metadata = _metadata(config)
        warm_up_malloc()
        self._channel = _open_channel(endpoint, config, credentials, server_name)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        # Without the stub's serializer, which would copy each image twice.
        self._model_infer = self._channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )

    def __repr__(self) -> str:
        return f"<TritonTransport {self.endpoint}>"

    async def infer(self, images: Sequence[bytes], *, request_id: str, timeout_s: float) -> Answer:
        """Embed encoded images in one request of ``len(images)`` rows."""
        request = _request(contract.ENSEMBLE, images, _ANSWER_OUTPUTS, request_id)
        with request_span(self.endpoint, rows=len(images), request_id=request_id) as trace:
            response = await self._call(self._model_infer, request, timeout_s, request_id, trace)
        return read_answer(response, len(images), request_id)

    async def passport(self, *, request_id: str, timeout_s: float) -> str:
        """Ask the preprocessor for its optional output; one empty row, which it then does not even decode."""
        request = _request(contract.PREPROCESSOR, [b""], [contract.MODEL], request_id)
        try:
            response = await self._call(self._model_infer, request, timeout_s, request_id)
        except ModelNotReady:
            if await self._has_other_models(timeout_s):
                raise ProtocolMismatch(
                    f"The Triton at {self.endpoint} does not serve clip_preprocess; start it with "
                    "--model-repository triton_models, or point the client at the right server."
                ) from None
            raise
        raw = tensors(response, request_id).get(contract.MODEL)
        if raw is None:
            raise malformed(request_id)
        return read_strings(raw, 1, request_id)[0]

    async def max_batch_size(self, *, timeout_s: float) -> int:
        """``max_batch_size`` of the ensemble, from the server's own copy of its configuration."""
        request = service_pb2.ModelConfigRequest(name=contract.ENSEMBLE)
        response = await self._call(self._stub.ModelConfig, request, timeout_s, None)
        return max(1, int(response.config.max_batch_size))

    async def server_live(self, *, timeout_s: float) -> bool:
        """What the server says of itself."""
        response = await self._call(self._stub.ServerLive, service_pb2.ServerLiveRequest(), timeout_s, None)
        return bool(response.live)

    async def models_ready(self, *, timeout_s: float) -> None:
        """Raise ModelNotReady with the model's name where one of the three is not ready."""
        for name in (contract.PREPROCESSOR, contract.ENCODER, contract.ENSEMBLE):
            request = service_pb2.ModelReadyRequest(name=name)
            response = await self._call(self._stub.ModelReady, request, timeout_s, None)
            if not response.ready:
                raise ModelNotReady(
                    f"The server at {self.endpoint} has no ready model {name}; export one with clip-export, and look "
                    "into the server's log for why it was not loaded."
                )

    async def describe(self, *, timeout_s: float) -> ServerDescription:
        """The server's release, and how it runs each model; ``timeout_s`` is for each of the questions."""
        metadata = await self._call(self._stub.ServerMetadata, service_pb2.ServerMetadataRequest(), timeout_s, None)
        models = {}
        for name in (contract.PREPROCESSOR, contract.ENCODER, contract.ENSEMBLE):
            request = service_pb2.ModelConfigRequest(name=name)
            config = (await self._call(self._stub.ModelConfig, request, timeout_s, None)).config
            hints = config.optimization.execution_accelerators
            models[name] = ModelSettings(
                backend=config.backend,
                kinds=tuple(group.Kind.Name(group.kind) for group in config.instance_group),
                accelerators=tuple(
                    hint.name for hint in (*hints.gpu_execution_accelerator, *hints.cpu_execution_accelerator)
                ),
                parameters={key: value.string_value for key, value in config.parameters.items()},
            )
        return ServerDescription(name=metadata.name, version=metadata.version, models=models)

    async def statistics(self, *, timeout_s: float) -> dict[str, ModelStatistics]:
        """Model name -> Triton's counters since it was loaded."""
        response = await self._call(self._stub.ModelStatistics, service_pb2.ModelStatisticsRequest(), timeout_s, None)
        return read_statistics(response)

    async def close(self) -> None:
        """Close the channel at once."""
        await self._channel.close()

    async def _has_other_models(self, timeout_s: float) -> bool:
        request = service_pb2.RepositoryIndexRequest(ready=True)
        try:
            index = await self._call(self._stub.RepositoryIndex, request, timeout_s, None)
        except ClipError:
            return False
        names = {model.name for model in index.models}
        return bool(names) and contract.ENSEMBLE not in names

    async def _call(
        self, method: Any, request: Any, timeout_s: float, request_id: str | None, headers: Metadata = ()
    ) -> Any:
        try:
            return await method(request, timeout=timeout_s, metadata=self._metadata + headers)
        except grpc.aio.AioRpcError as error:
            failure = find_row(error.code(), f"{error.details()}").build(self.endpoint, request_id)
        except grpc.aio.UsageError:
            failure = Unavailable("This client is closed.", request_id=request_id)
        # Out here it has no context. gRPC's error would show the server's text, with paths and tracebacks, and through
        # its frames keep the call alive, for which gRPC goes on connecting after the channel is closed.
        raise failure


def transport_factory(config: ClientConfig) -> Callable[[Endpoint, str | None], TritonTransport]:
    """Read the certificates once; what is returned connects to one address. Raises ValueError for unreadable files."""
    credentials = _credentials(config) if any(endpoint.tls for endpoint in config.endpoints) else None

    def connect(endpoint: Endpoint, server_name: str | None) -> TritonTransport:
        chosen = credentials if endpoint.tls else None
        return TritonTransport(endpoint, config, credentials=chosen, server_name=server_name)

    return connect


_ANSWER_OUTPUTS: Final = (contract.EMBEDDING, contract.STATUS, contract.ERROR, contract.FINGERPRINT)


def _open_channel(
    endpoint: Endpoint, config: ClientConfig, credentials: grpc.ChannelCredentials | None, server_name: str | None
) -> Any:
    options = _channel_options(config)
    if endpoint.is_loopback:
        # gRPC asks the proxy that the environment names even for calls to this machine.
        options.append(("grpc.enable_http_proxy", 0))
    name = config.server_name or server_name
    if name is not None:
        options += [("grpc.default_authority", name), ("grpc.ssl_target_name_override", name)]
    if credentials is None:
        return grpc.aio.insecure_channel(endpoint.address, options)
    return grpc.aio.secure_channel(endpoint.address, credentials, options)


def _channel_options(config: ClientConfig) -> list[tuple[str, int | str]]:
    keepalive_ms = int(config.keepalive_time_s * 1000)
    return [
        # gRPC stops at 4 MB by default; rows and bytes are limited by the client itself.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        # Pings only while a request waits (gRPC's default), and never more than two in a row, which Triton accepts.
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms),
        # gRPC measures the bandwidth by pings of its own, and sends no keepalive ping while such a one is on its way.
        ("grpc.http2.ping_timeout_ms", keepalive_ms),
        # A server that restarts must be found again within a second; gRPC's own back-off goes up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.min_reconnect_backoff_ms", 5000),
        # One retry layer only, and it is ours.
        ("grpc.enable_retries", 0),
        # Two clients of one process share neither a connection nor its back-off.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def _metadata(config: ClientConfig) -> tuple[tuple[str, str], ...]:
    if config.token is None:
        return ()
    return (("authorization", f"Bearer {config.token}"), (config.token_header, config.token))


def _credentials(config: ClientConfig) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=read_pem("ca_certificate", config.ca_certificate),
        private_key=read_pem("client_key", config.client_key),
        certificate_chain=read_pem("client_certificate", config.client_certificate),
    )


def _request(model: str, images: Sequence[bytes], outputs: Sequence[str], request_id: str) -> bytes:
    """A ``ModelInferRequest``, serialised."""
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    request.inputs.add(name=contract.IMAGE, datatype="BYTES", shape=[len(images), 1])
    for name in outputs:
        request.outputs.add(name=name)
    return with_strings(request.SerializeToString(), request.RAW_INPUT_CONTENTS_FIELD_NUMBER, images)
