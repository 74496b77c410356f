"""The table of the errors of Triton, of gRPC and of proxies between them, with their meanings."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import grpc

from clip_client._errors import (
    ClipError,
    DeadlineExceeded,
    ModelNotReady,
    Overloaded,
    ProtocolMismatch,
    Unauthorized,
    Unavailable,
)


class ErrorRow(NamedTuple):
    code: grpc.StatusCode
    pattern: re.Pattern[str] | None  # to search for in the server's text; None matches every text
    error: type[ClipError]
    sentence: str
    """``{endpoint}`` is the server's address, ``{model}`` the requested model, ``{status}`` the HTTP status of a proxy,
    and ``{missing}`` one of MISSING. ``{details}`` is the server's own text, only of refused credentials: Triton puts
    tracebacks into others."""


def _row(code: str, pattern: str | None, error: type[ClipError], sentence: str) -> ErrorRow:
    return ErrorRow(grpc.StatusCode[code], re.compile(pattern, re.I | re.S) if pattern else None, error, sentence)


_UNREACHABLE = (
    "No server answers at {endpoint}; is clip-serve or tritonserver running there, or still loading, on that gRPC port?"
)
_HANGS_UP = (
    "The server at {endpoint} hangs up; is that Triton's gRPC port (8001 by default), and does it need {missing}?"
)
MISSING: Final = {
    False: "TLS (grpcs://)",
    True: "a client certificate that it trusts (client_certificate and client_key of ClientConfig, --tls-certificate "
    "and --tls-key of the commands)",
}
"""Whether the client uses TLS -> ``{missing}``, what a server that hangs up may also demand."""
_NO_ADDRESS = "The name in {endpoint} cannot be resolved."
_LOST = "The connection to {endpoint} was lost."
_WRONG_SERVICE = "{endpoint} is not Triton's gRPC port; use the port of --grpc-port (8001), not the HTTP port."
_NOT_READY = (
    "The server at {endpoint} has no ready model {model}; see the server's log for why it was not loaded, or export "
    "that model with clip-export and its --name, --model and --pretrained."
)
_REFUSED = "{endpoint} refused the credentials, saying {details!r:.200}; check token, and token_header of ClientConfig."
_FULL = "The server at {endpoint} is overloaded."
_EXPIRED = "The server at {endpoint} did not answer in time."
_DEAD = "The process of a model on {endpoint} has ended or hangs; restart the server, or run it under clip-serve."
_NO_SHARED_MEMORY = (
    "The server at {endpoint} has too little shared memory for this request; give it more (docker run --shm-size=1g), "
    "or send fewer images in a request."
)
_ALONE = "The server at {endpoint} cannot answer the outputs error or status alone; request embedding with them."
_FAILED = "The server at {endpoint} failed on this request; its log has the reason."
_TOO_LARGE = (
    "The server at {endpoint} does not accept a request of this size; lower max_request_bytes of ClientConfig, or "
    "raise the limit there."
)
_NO_TLS = "The server at {endpoint} does not speak TLS; write grpc:// if it has none, else check the port."
_UNTRUSTED = (
    "The TLS handshake with {endpoint} failed on a certificate; check ca_certificate and client_certificate of "
    "ClientConfig (--tls-ca and --tls-certificate of the commands)."
)
_UNKNOWN_AUTHORITY = (
    "The server at {endpoint} has a certificate of an authority that is not trusted here; give the authority's "
    "certificate as ca_certificate of ClientConfig (--tls-ca of the commands)."
)
_OUT_OF_DATE = "The certificate of {endpoint} has expired or is not valid yet; renew it, or set this machine's clock."
_OTHER_NAME = (
    "The server at {endpoint} has a certificate for another name; check the URL, or set server_name of ClientConfig "
    "(--tls-name of the commands) to the name in the certificate."
)
_BAD_PEM = (
    "The certificates for {endpoint} cannot be used: one of ca_certificate, client_certificate and client_key of "
    "ClientConfig (--tls-ca, --tls-certificate, --tls-key) is not in PEM form, or the key is another certificate's."
)
_PROXY_REDIRECTS = (
    "A proxy in front of {endpoint} redirects (HTTP status {status}), which gRPC does not follow; name the address "
    "that serves gRPC without a login page."
)
_PROXY_FORBIDS = (
    "A proxy in front of {endpoint} forbids the request (HTTP status {status}); see its rules of access, and check "
    "token if it reads one."
)
_PROXY_REFUSED = "A proxy in front of {endpoint} answers with HTTP status {status}; does it take gRPC, and that path?"
_PROXY_FAILED = "A proxy in front of {endpoint} cannot reach its server (HTTP status {status}); see its log."
_TOO_MANY_ROWS = "The server at {endpoint} takes fewer images or texts at a time than at the handshake; call again."
_ODD_REQUEST = "The server at {endpoint} refuses this client's requests; use one version of clip-triton on both sides."

ERROR_TABLE: Final[tuple[ErrorRow, ...]] = (
    # gRPC core, chttp2: a proxy such as nginx answered with a plain HTTP status. First come statuses that gRPC maps to
    # UNKNOWN ("Received http2 header with status: 413"), then the other codes.
    _row("UNKNOWN", r"http2 header with status: 413", ProtocolMismatch, _TOO_LARGE),
    _row("UNKNOWN", r"http2 header with status: 3", ProtocolMismatch, _PROXY_REDIRECTS),
    _row("UNKNOWN", r"http2 header with status: 5", Unavailable, _PROXY_FAILED),
    _row("UNKNOWN", r"http2 header with status", ProtocolMismatch, _PROXY_REFUSED),
    _row("INTERNAL", r"http2 header with status", ProtocolMismatch, _PROXY_REFUSED),
    _row("UNAVAILABLE", r"http2 header with status: 429", Overloaded, _FULL),
    _row("UNAVAILABLE", r"http2 header with status", Unavailable, _PROXY_FAILED),
    _row("PERMISSION_DENIED", r"http2 header with status", Unauthorized, _PROXY_FORBIDS),
    # Triton, core/src/dynamic_batch_scheduler.cc and scheduler_utils.cc: a request that waited past its timeout.
    _row("UNAVAILABLE", r"request timeout expired", DeadlineExceeded, _EXPIRED),
    # Triton, server/src/grpc/grpc_utils.h: --grpc-restricted-protocol without its header, or with a wrong value.
    _row("UNAVAILABLE", r"this protocol is restricted", Unauthorized, _REFUSED),
    # Triton, core/src/scheduler_utils.cc: max_queue_size of a queue policy.
    _row("UNAVAILABLE", r"exceeds maximum queue size", Overloaded, _FULL),
    # Triton, core/src/model_repository_manager: a model that is loading, unloading or failed to load.
    _row("UNAVAILABLE", r"unknown model|not ready|no available versions|unload", ModelNotReady, _NOT_READY),
    # Triton, core: requests after SIGTERM ("Server is stopping, scheduler for model has stopped accepting").
    _row("UNAVAILABLE", r"server is stopping", Unavailable, "The server at {endpoint} is shutting down."),
    # Envoy: circuit breakers ("upstream connect error or disconnect/reset before headers. reset reason: overflow"), the
    # overload manager while Envoy is short of memory, and limits of rates ("local_rate_limited").
    _row("UNAVAILABLE", r"reset reason: overflow|envoy overloaded|rate_limited", Overloaded, _FULL),
    # gRPC core, TLS handshake: the other side does not speak TLS.
    _row("UNAVAILABLE", r"WRONG_VERSION_NUMBER|HTTP_REQUEST", ProtocolMismatch, _NO_TLS),
    # gRPC core, TLS handshake: the certificate is trusted, but does not have the name.
    _row("UNAVAILABLE", r"Hostname Verification", Unauthorized, _OTHER_NAME),
    # gRPC core, TLS handshake: BoringSSL does not accept the server's certificate, and says why.
    _row("UNAVAILABLE", r"VERIFY_FAILED: .*(issuer|self.signed) cert", Unauthorized, _UNKNOWN_AUTHORITY),
    _row("UNAVAILABLE", r"VERIFY_FAILED: certificate (has expired|is not yet valid)", Unauthorized, _OUT_OF_DATE),
    # gRPC core, TLS handshake: one side did not accept the other's certificate.
    _row("UNAVAILABLE", r"VERIFY_FAILED|(tls|ssl)v?\d*[ _]?alert|UNKNOWN_CA", Unauthorized, _UNTRUSTED),
    # gRPC core: the client's own files cannot be used for TLS, with any server.
    _row("UNAVAILABLE", r"Failed to create security handshaker", Unauthorized, _BAD_PEM),
    # gRPC core, chttp2: the other side does not speak HTTP/2 ("Failed parsing HTTP/2", "Trying to connect an http1.x
    # server").
    _row("UNAVAILABLE", r"Failed parsing HTTP/2|http1\.x", ProtocolMismatch, _WRONG_SERVICE),
    # gRPC core: the other side hung up before the first answer, as Triton's HTTP port, a TLS port and a server that is
    # shutting down do.
    _row("UNAVAILABLE", r"failed to connect to all addresses.*Socket closed", Unavailable, _HANGS_UP),
    # gRPC core, resolver ("DNS resolution failed for ...", "errors resolving ...: Domain name not found").
    _row("UNAVAILABLE", r"DNS resolution failed|errors resolving|Domain name not found", Unavailable, _NO_ADDRESS),
    # gRPC core, subchannels: the port is closed, or a route is missing.
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
    # Triton, model_repository_manager: "Request for unknown model: 'clip_image' is not found", and "... has no
    # available versions" while it, or a step of the ensemble, is being reloaded.
    _row("NOT_FOUND", None, ModelNotReady, _NOT_READY),
    # Triton, infer_request.cc and the model's lifecycle: the model exists, but its version does not.
    _row("INVALID_ARGUMENT", r"unknown model|not ready|no available versions", ModelNotReady, _NOT_READY),
    # Triton, ensemble_scheduler.cc: if only one of two outputs is requested, it leaves out the step that makes both.
    _row("INVALID_ARGUMENT", r"unexpected deadlock", ProtocolMismatch, _ALONE),
    # Triton, infer_request.cc: the model was loaded again with a smaller max_batch_size.
    _row("INVALID_ARGUMENT", r"batch-size must be <=", ProtocolMismatch, _TOO_MANY_ROWS),
    # Triton, infer_request.cc: wrong names, types or shapes of tensors; an image is never the reason.
    _row("INVALID_ARGUMENT", None, ProtocolMismatch, _ODD_REQUEST),
    # gRPC: the client's deadline, noticed by the client or by the server.
    _row("DEADLINE_EXCEEDED", None, DeadlineExceeded, _EXPIRED),
    # A proxy or a service mesh in front of Triton; gRPC maps HTTP 401 and 403 to these two.
    _row("UNAUTHENTICATED", None, Unauthorized, _REFUSED),
    _row("PERMISSION_DENIED", None, Unauthorized, _REFUSED),
    # gRPC: a message exceeds a limit of the server. This client does not split it silently.
    _row("RESOURCE_EXHAUSTED", r"larger than max|message size", ProtocolMismatch, _TOO_LARGE),
    # Envoy's and other proxies' circuit breakers; gRPC servers out of memory or streams.
    _row("RESOURCE_EXHAUSTED", None, Overloaded, _FULL),
    # gRPC: another service is behind the port (gRPC maps HTTP 404 to this).
    _row("UNIMPLEMENTED", None, ProtocolMismatch, _WRONG_SERVICE),
    # Triton, core: a cancelled request of a model, or a server that shuts down. A cancellation by this client is a
    # CancelledError instead.
    _row("CANCELLED", None, Unavailable, "The server at {endpoint} cancelled the request."),
    # gRPC core: a broken stream ("Stream removed"), before or after the answer.
    _row("UNKNOWN", r"stream removed|http2", Unavailable, _LOST),
    # Envoy: the limit of a request's size, because HTTP 413 has no counterpart among gRPC's codes.
    _row("UNKNOWN", r"payload too large", ProtocolMismatch, _TOO_LARGE),
    # gRPC: an optimistic lock of the server failed; by definition this is safe to retry.
    _row("ABORTED", None, Unavailable, "The server at {endpoint} aborted the request."),
    # gRPC: the answer was damaged or lost in transit.
    _row("DATA_LOSS", None, Unavailable, _LOST),
    # Triton: these come from model control, which this client never uses.
    _row("FAILED_PRECONDITION", None, ModelNotReady, _NOT_READY),
    _row("OUT_OF_RANGE", None, ProtocolMismatch, _ODD_REQUEST),
)
"""The rows are read in order, and the first row that matches is used. The texts are needed because Triton gives one
status to different errors: UNAVAILABLE to a full queue, an expired request, a wrong token and a lost connection,
INTERNAL to a dead process and to every exception in a model."""


OTHER: Final = _row("UNKNOWN", None, ClipError, _FAILED)
"""Row for all other errors: an exception in a model, whose text is a traceback, or in a Python servicer of gRPC."""


def http_status(details: str) -> str:
    found = re.search(r"status: (\d{3})", details)
    return found[1] if found else ""


def find_row(code: grpc.StatusCode, details: str) -> ErrorRow:
    rows = (row for row in ERROR_TABLE if row.code is code)
    return next((row for row in rows if row.pattern is None or row.pattern.search(details)), OTHER)
