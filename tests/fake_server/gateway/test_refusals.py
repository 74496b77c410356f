"""Refusals of the gateway: each has the status, the words and the shape of the dialect, and the item."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import httpx
import pytest

from clip_client._errors import MORE_TIME, ClipError, DeadlineExceeded, ImageError, Overloaded, Shed
from clip_client.gateway.body import Body
from clip_client.gateway.dialect import Refusal
from clip_client.testing import PNG_1X1, FakeTriton
from tests.fixtures.gateways import data_uri, gateway
from tests.fixtures.images.image_files import jpeg

URI = data_uri(PNG_1X1)
BODY = {"model": "clip", "input": URI}
FORM = "multipart/form-data"
JPEG = jpeg()
GIF = b"GIF89a\1\0\1\0\0\0\0!\xf9\4\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\0;"  # as small as they get
IN_BASE64 = (
    *(base64.b64encode(image).decode() for image in (GIF, PNG_1X1, JPEG)),
    base64.urlsafe_b64encode(JPEG).decode(),
    base64.encodebytes(JPEG).decode(),  # in lines
    f'"{URI}"',
    f'<img src="{URI}">',
)
PART = b'--b\r\ncontent-disposition: form-data; name="images"; filename="a"\r\n\r\n'


def asked(**body: Any) -> dict[str, Any]:
    return {"url": "/v1/embeddings", "json": {"model": "clip", **body}}


def raw(url: str, content: bytes, content_type: str = FORM) -> dict[str, Any]:
    return {"url": url, "content": content, "headers": {"content-type": content_type}}


def raw_json(content: bytes) -> dict[str, Any]:
    return raw("/v1/embeddings", content, "application/json")


@pytest.mark.parametrize(
    ("request_", "status", "says"),
    [
        (asked(input=[1, 2, 3]), 400, '"param":null,"code":"tokens_not_supported"'),
        (asked(input=[[1, 2], [3]]), 400, "check_embedding_ctx_length=False"),
        (asked(input=[]), 400, "is empty"),
        (asked(input=[URI, None]), 400, '"type":"invalid_request_error","param":"input.1","code":"invalid_request"'),
        (asked(input=[{"image_url": 3}]), 400, '"param":"input.0"'),
        (asked(input=["data:image/png;base64,a"]), 400, "not base64"),
        (asked(input=["data:image/png,abc"]), 400, "send data:image"),
        (asked(input=[URI, "a cat"], modality="image"), 400, '"param":"input.1"'),
        (asked(input=["a cat", " "]), 400, '"param":"input.1","code":"EMPTY"'),
        # The vector of a text would not be that of the image.
        *(
            (asked(input=["a cat", item]), 400, '"param":"input.1","code":"ambiguous_item"')
            for item in (*IN_BASE64, " https://example.org/a.jpg\n")
        ),
        (asked(input=["data:image/svg+xml,<svg>"]), 400, "send data:image"),
        (asked(input=["data:application/octet-stream,%FF%D8"]), 400, "send data:image"),
        (asked(input=[{"text": "a cat", "image_url": URI}]), 400, "a text and an image"),
        *(
            (raw_json(b'{"input": ["good", "cut emoji %b"]}' % half), 400, '"param":"input.1","code":"NOT_UTF8"')
            for half in (rb"\ud83d", rb"\ud83d!", rb"\ud83d\n", rb"\uDE00", rb"\ud83d\ud83d")
        ),
        (raw_json(b'{"input": "\\ud83d"'), 400, "JSON"),
        (asked(input=URI, modality="audio"), 400, "modality: "),
        (asked(input=URI, dimensions=4), 400, "dimensions_not_supported"),
        (asked(input=URI, encoding_format="hex"), 400, "encoding_format: "),
        (asked(input=["a", {"image_url": "https://example.org/a.jpg"}]), 400, '"param":"input.1","code":"URL_REFUSED"'),
        (asked(input="HTTP://example.org/a.jpg", modality="image"), 400, "downloads nothing"),
        (asked(), 400, "input: "),
        ({"url": "/embeddings", "json": {"input": [URI, 1]}}, 422, '"type":"tokens_not_supported"'),
        ({"url": "/embed", "files": [("other", ("a", b"a"))]}, 422, "1 to 2048"),
        ({"url": "/embed", "files": [("images", ("a", b"a"))] * 2049}, 422, "1 to 2048"),
        *(
            ({"url": "/embed", "files": [("other", (name, b"a"))] * 2065}, 422, "more than 2064 parts")
            for name in ("a", None)
        ),
        (raw("/embed", b"a", "image/jpeg"), 422, FORM),
        ({"url": "/embed", "json": {"images": []}}, 422, "JSON goes to /embed/base64"),
        (raw("/embed", b"a"), 422, "boundary"),
        (raw("/embed", b"a", f"{FORM}; boundary=x"), 422, "last boundary"),
        (raw("/embed", b"--x\r\na\r\n--x--", f"{FORM}; boundary=x"), 422, "cannot be read"),
        # One that was cut off is not a shorter one.
        (raw("/embed", PART + PNG_1X1 + b"\r\n" + PART + PNG_1X1[:20], f"{FORM}; boundary=b"), 422, "last boundary"),
        ({"url": "/embed/base64", "json": {"images": []}}, 422, "1 to 2048"),
        ({"url": "/embed/base64", "json": {"images": ["@"]}}, 422, '"index":0'),
        ({"url": "/embed/base64", "json": {"images": "AAAA"}}, 422, "images: "),
        (raw("/embed/base64", b"\xff"), 422, "JSON"),
    ],
)
async def test_what_cannot_be_answered_says_why(
    http: httpx.AsyncClient, request_: dict[str, Any], status: int, says: str
) -> None:
    answer = await http.post(**request_)
    assert (answer.status_code, says in answer.text) == (status, True), answer.text


async def test_an_unknown_model_lists_the_known_ones(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/embeddings", json={"model": "x" * 1_000_000, "input": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert "clip (fake/random:0@00000000)" in answer.text
    assert len(answer.content) < 1000  # what a stranger sends is not sent back


async def test_an_unknown_address_answers_in_the_dialect(http: httpx.AsyncClient) -> None:
    refused = (await http.post("/v1/chat/completions")).json()["error"]
    assert (refused["code"], "see /openapi.json" in refused["message"]) == ("not_found", True)
    assert (await http.post("/chat")).json()["code"] == "not_found"
    answer = await http.get("/v1/embeddings")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_a_model_without_a_text_tower_says_how_to_export_one() -> None:
    async with FakeTriton() as triton, gateway(triton.url) as http:
        answer = await http.post("/v1/embeddings", json={"input": [URI, "a cat"]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_text_tower")
        assert "--towers image,text --name clip and" in answer.json()["error"]["message"]
        assert (await http.post("/v1/embeddings", json=BODY)).status_code == 200


async def test_the_token_guards_all_but_the_probes(triton: FakeTriton) -> None:
    async with gateway(triton.url, callers_token="secret") as http:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}):
            answer = await http.post("/v1/embeddings", json=BODY, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (await http.get("/metrics")).status_code == 401
        for probe in ("/health", "/healthz"):
            assert (await http.get(probe)).status_code == 200
        right = {"authorization": "Bearer secret"}
        assert (await http.post("/v1/embeddings", json=BODY, headers=right)).status_code == 200


async def test_too_many_items(http: httpx.AsyncClient) -> None:
    for count, status in ((2048, 200), (2049, 422)):
        assert (await http.post("/embed/base64", json={"images": ["YQ=="] * count})).status_code == status
        answer = await http.post("/embeddings", json={"input": ["a"] * count})
        assert answer.status_code == status
    assert "The input has 2049 items; the limit is 2048: send several requests." in answer.text


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(triton: FakeTriton) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 500

    async with gateway(triton.url, max_image_bytes=1000) as http:
        for content in (b"x" * 1001, chunks()):
            answer = await http.post("/v1/embeddings", content=content)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
        assert (await answer_to(http, 1001)).startswith(b"HTTP/1.1 413 ")
        # An answer may be larger.
        answer = await http.post("/v1/embeddings", json={"input": ["a"] * 50})
        assert (answer.status_code, len(answer.content) > 1000) == (200, True)


@pytest.mark.parametrize(
    "content",
    [
        b'{"input":[' + b"[]," * 500_000 + b"[]]}",
        b'{"input":[' + b'"",' * 1_500_000 + b'""]}',
        json.dumps({"input": [[101, 2023, 102] * 20_000] * 5}).encode(),
        b'{"input": "\\\\"' + b",[]" * 500_000 + b"}",
    ],
    ids=["lists", "strings", "tokens", "after a backslash"],
)
async def test_json_of_many_tiny_values_is_refused_before_it_is_parsed(http: httpx.AsyncClient, content: bytes) -> None:
    answer = await http.post("/v1/embeddings", content=content)
    assert answer.status_code == 400
    assert "outside of strings" in answer.json()["error"]["message"]
    # Brackets and escaped quotes in a text are not structure.
    text = '[],"\\' * 600_000
    refused = await http.post("/v1/embeddings", json={"input": text})
    assert refused.json()["error"]["code"] == "TOO_LARGE"


async def answer_to(http: httpx.AsyncClient, announced: int) -> bytes:
    """Return the answer to a body of which only the beginning arrives."""
    reader, writer = await asyncio.open_connection("127.0.0.1", http.base_url.port)
    writer.write(b'POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n{"input":' % announced)
    answer = await reader.readuntil(b'"}}')
    writer.close()
    return answer


async def test_a_body_that_does_not_arrive_is_a_408(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Body, "limit_s", 0.2)
    answer = await answer_to(http, 100)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"body_too_slow"' in answer


@pytest.mark.parametrize("kind", [DeadlineExceeded, partial(ImageError, code="TIMEOUT")])
def test_a_caller_that_sets_no_time_is_told_to_retry(kind: Callable[[str], ClipError]) -> None:
    refusal = Refusal.of(kind(f"timeout_s ran out; {MORE_TIME}."), 3)
    assert (refusal.status, refusal.message.endswith("; send the request again after the seconds of Retry-After.")) == (
        503,
        True,
    )


@pytest.mark.parametrize("kind", [Overloaded, Shed])
def test_an_image_that_was_not_even_sent_is_an_overload_too(kind: type[Overloaded]) -> None:
    refusal = Refusal.of(kind("The server is overloaded."))
    assert (refusal.status, refusal.code) == (503, "Overloaded")
