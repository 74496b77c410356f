"""The error tree, and the table that leads from Triton's status and text to it."""

from __future__ import annotations

import copy
import pickle

import grpc
import pytest

import clip_client
from clip_client import ClipError, ImageError, ImageErrors
from clip_client._endpoint import parse_url
from clip_client._transports.grpc_errors import ERROR_TABLE, find_row

ENDPOINT = parse_url("example.org:8001")
KINDS = [value for value in vars(clip_client).values() if isinstance(value, type) and issubclass(value, ClipError)]

# (status, text, class). Texts with a model or an address in them were copied from tritonserver 2.51 and grpcio 1.85;
# the short ones come from the sources that the table names.
SEEN: list[tuple[str, str, str]] = [
    ("UNAVAILABLE", "Request timeout expired", "DeadlineExceeded"),
    ("UNAVAILABLE", "This protocol is restricted, expecting header 'triton-grpc-protocol-k'", "Unauthorized"),
    ("UNAVAILABLE", "[request id: 1] Exceeds maximum queue size", "Overloaded"),
    (
        "UNAVAILABLE",
        "upstream connect error or disconnect/reset before headers. reset reason: overflow",
        "Overloaded",
    ),
    ("UNKNOWN", "Payload Too Large", "ProtocolMismatch"),
    (
        "INTERNAL",
        (
            "in ensemble 'clip_image', Failed to increase the shared memory pool size for key "
            "'clip_triton_4026531836_812_99120_1' to 12582912 bytes. If you are running Triton inside docker, use "
            "'--shm-size' flag to control the shared memory region size."
        ),
        "ClipError",
    ),
    (
        "INVALID_ARGUMENT",
        (
            "in ensemble 'clip_image', [request id: q] unexpected deadlock, at least one output is not set while no "
            "more ensemble steps can be made"
        ),
        "ProtocolMismatch",
    ),
    ("UNAVAILABLE", "Request for unknown model: 'clip_image' is not ready", "ModelNotReady"),
    (
        "UNAVAILABLE",
        (
            "in ensemble 'clip_image', [request id: q] Server is stopping, scheduler for model has stopped "
            "accepting new inference requests"
        ),
        "Unavailable",
    ),
    (
        "UNAVAILABLE",
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:4: Tls handshake failed "
            "(TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER: "
            "Invalid certificate verification context: OK"
        ),
        "ProtocolMismatch",
    ),
    (
        "UNAVAILABLE",
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:4: Tls handshake failed "
            "(TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
            "CERTIFICATE_VERIFY_FAILED: self signed certificate in certificate chain"
        ),
        "Unauthorized",
    ),
    (
        "UNAVAILABLE",
        (
            "failed to connect to all addresses; last error: INTERNAL: ipv4:127.0.0.1:4: Failed parsing HTTP/2 "
            "(Expected SETTINGS frame as the first frame, got frame type 80) (Trying to connect an http1.x server "
            "(HTTP status 400))"
        ),
        "ProtocolMismatch",
    ),
    (
        "UNAVAILABLE",
        "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:4: Socket closed",
        "Unavailable",
    ),
    (
        "UNAVAILABLE",
        (
            "errors resolving no-such-host.invalid:8001: [field:hostname lookup error:address lookup failed for "
            "no-such-host.invalid:8001: Domain name not found]"
        ),
        "Unavailable",
    ),
    (
        "UNAVAILABLE",
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to "
            "remote host: Connection refused"
        ),
        "Unavailable",
    ),
    ("UNAVAILABLE", "Stream removed (Socket closed)", "Unavailable"),
    ("INTERNAL", "in ensemble 'clip_image', Stub process 'clip_preprocess_0_0' is not healthy.", "Unavailable"),
    ("INTERNAL", "in ensemble 'clip_image', model 'clip_encoder' is not ready", "ModelNotReady"),
    ("INTERNAL", "Received RST_STREAM with error code 2", "Unavailable"),
    (
        "INTERNAL",
        (
            "in ensemble 'clip_image', Failed to process the request(s) for model 'clip_preprocess_0_0', message: "
            "RuntimeError: boom\n\nAt:\n  /opt/models/clip_preprocess/1/model.py(7): execute\n"
        ),
        "ClipError",
    ),
    ("NOT_FOUND", "Request for unknown model: 'clip_image' has no available versions", "ModelNotReady"),
    ("INVALID_ARGUMENT", "Request for unknown model: 'clip_image' version 7 is not ready", "ModelNotReady"),
    ("INVALID_ARGUMENT", "unexpected inference output 'embedding' for model 'clip_image'", "ProtocolMismatch"),
    ("DEADLINE_EXCEEDED", "Deadline Exceeded", "DeadlineExceeded"),
    ("UNAUTHENTICATED", "Jwt is missing", "Unauthorized"),
    ("PERMISSION_DENIED", "RBAC: access denied", "Unauthorized"),
    ("RESOURCE_EXHAUSTED", "Received message larger than max (5000000 vs. 4194304)", "ProtocolMismatch"),
    ("RESOURCE_EXHAUSTED", "upstream overflow", "Overloaded"),
    ("UNIMPLEMENTED", "Method not found!", "ProtocolMismatch"),
    ("CANCELLED", "RST_STREAM with error code 8", "Unavailable"),
    ("UNKNOWN", "Stream removed", "Unavailable"),
    ("UNKNOWN", "Unexpected <class 'ValueError'>: /srv/x.py", "ClipError"),
    ("ABORTED", "", "Unavailable"),
    ("DATA_LOSS", "", "Unavailable"),
    ("ALREADY_EXISTS", "", "ClipError"),
    ("FAILED_PRECONDITION", "", "ModelNotReady"),
    ("OUT_OF_RANGE", "", "ProtocolMismatch"),
    ("OK", "", "ClipError"),
]


@pytest.mark.parametrize(("status", "text", "kind"), SEEN, ids=[f"{s}-{t[:30]}" for s, t, _ in SEEN])
def test_what_servers_say_becomes_an_error_of_ours(status: str, text: str, kind: str) -> None:
    error = find_row(grpc.StatusCode[status], text).build(ENDPOINT, "r1")
    assert type(error).__name__ == kind
    assert error.request_id == "r1"
    assert "r1" in str(error)
    # One sentence of ours; nothing of what the server said.
    assert "\n" not in str(error)
    for betrayal in ("/opt", "/srv", "boom", "Traceback", "SSL_", "ipv4:"):
        assert betrayal not in str(error)


def test_every_row_is_reached_by_a_text_that_was_seen() -> None:
    reached = {id(find_row(grpc.StatusCode[status], text)) for status, text, _ in SEEN}
    assert [row for row in ERROR_TABLE if id(row) not in reached] == []


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_status_has_an_error_for_any_text(code: grpc.StatusCode) -> None:
    assert issubclass(find_row(code, "something nobody has seen before").error, ClipError)


@pytest.mark.parametrize("row", ERROR_TABLE, ids=str)
def test_sentences_are_sentences(row: object) -> None:
    text = row.sentence.format(endpoint=ENDPOINT)  # type: ignore[attr-defined]
    assert text[0].isupper()
    assert text[-1] in ".?"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not issubclass(kind, ImageError | ImageErrors)])
def test_errors_survive_copies_and_processes(kind: type[ClipError]) -> None:
    error = kind("a sentence.", request_id="r")
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is kind
        assert (twin.message, twin.request_id, str(twin)) == ("a sentence.", "r", "a sentence. (request r)")


def test_image_errors_survive_copies_and_processes() -> None:
    error = ImageError("it ends early.", code="TRUNCATED", index=3, source="a.jpg", request_id="r")
    both = ImageErrors({3: error, 5: error})
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error)), pickle.loads(pickle.dumps(both)).errors[5]):
        assert (twin.code, twin.index, twin.source, twin.request_id) == ("TRUNCATED", 3, "a.jpg", "r")
        assert str(twin) == "a.jpg: TRUNCATED: it ends early. (request r)"
    assert str(pickle.loads(pickle.dumps(both))) == str(both) == f"{error}, and 1 more"


def test_an_image_without_a_path_is_named_by_its_index() -> None:
    assert str(ImageError("no.", code="EMPTY", index=7)) == "image 7: EMPTY: no."
