"""Malformed bodies: each gets an answer of its dialect at once. 200 here, and 10,000 with ``make fuzz``."""

import asyncio
import json
import os
import random
from typing import Any, Final

import httpx
import pytest

from clip_client.testing import PNG_1X1, FakeTriton
from tests.fixtures.gateways import data_uri, gateway

BODIES: Final = int(os.environ.get("FUZZ_GATEWAY", "200"))
SEED: Final = int(os.environ.get("FUZZ_SEED", "11"))
AT_ONCE: Final = 8

JSON_PATHS: Final = ("/v1/embeddings", "/embeddings", "/embeddings_image", "/embed/base64")
FORM: Final = "multipart/form-data"
FORM_TYPES: Final = (
    *[f"{FORM}; boundary=b"] * 7,
    *(FORM, "text/plain", f"{FORM}; boundary=", f"{FORM}; boundary=b; charset=utf-99", f"{FORM}; boundary={'b' * 300}"),
)
ENCODINGS: Final = ("base64", "quoted-printable", "binary", "other")
NAMES: Final = ("input", "model", "encoding_format", "dimensions", "modality", "images", "user", "text", "image_url")
VALUES: Final[tuple[Any, ...]] = (
    *(None, True, 0, -1, 2**70, 1.5e308, "", "a", "\0", "\u202e", "data:", "data:image/png;base64,", [], {}, [[]]),
    *("data:image/png;base64,AAAA", data_uri(PNG_1X1), "http://127.0.0.1/", "file:///etc/passwd", {"text": 1}, [1, 2]),
    *({"image_url": {"url": None}}, {"image_url": []}, {"text": "a"}, ["a"] * 3000, "clip", "float", "image", "audio"),
)


class Malformed(random.Random):
    def request(self) -> dict[str, Any]:
        if self.random() < 0.6:
            return {"url": self.choice(JSON_PATHS), "content": self.json()}
        headers = {"content-type": self.choice(FORM_TYPES)}
        return {"url": "/embed", "content": self.form(), "headers": headers}

    def value(self, depth: int = 0) -> Any:
        if depth < 3 and self.random() < 0.3:
            if self.random() < 0.5:
                return [self.value(depth + 1) for _ in range(self.randrange(4))]
            return {self.choice(NAMES): self.value(depth + 1)}
        return self.choice(VALUES)

    def json(self) -> bytes:
        document = json.dumps({name: self.value() for name in self.sample(NAMES, self.randrange(len(NAMES)))}).encode()
        nested = self.choice((b"[", b'{"input":', b'{"input":[')) * self.choice((100, 1000, 200_000))
        large = b'{"input": "data:image/png;base64,' + b"A" * self.randrange(2_000_000) + b'@"}'
        number = b'{"input": [' + b"1" * self.randrange(1, 20_000) + b"]}"
        other = (self.randbytes(self.randrange(200)), nested, large, number, self.damaged(document))
        return self.choice((*other, document, document, document))

    def form(self) -> bytes:
        parts = []
        for _ in range(self.randrange(1, 5)):
            name = self.choice(("images", "images", "image", "text", "", "x" * 5000))
            file = self.choice(('; filename="a"', "", '; filename=""', "; filename*=UTF-8''%ff"))
            content = self.choice((PNG_1X1, b"", json.dumps(self.value()).encode(), b"\xff\xfe", b"[" * 100_000))
            encoding = self.choice(("", "", *(f"content-transfer-encoding: {one}\r\n" for one in ENCODINGS)))
            head = f'--b\r\n{encoding}content-disposition: form-data; name="{name}"{file}\r\n\r\n'
            parts.append(head.encode() + content)
        body = b"\r\n".join(parts) + b"\r\n--b--\r\n"
        return self.damaged(body) if self.random() < 0.6 else body

    def damaged(self, body: bytes) -> bytes:
        for _ in range(self.randrange(1, 4)):
            at = self.randrange(len(body) + 1)
            changed = (body[:at], body[at:], body[:at] + self.randbytes(3) + body[at + 3 :], body[:at] * 2 + body[at:])
            body = self.choice(changed)
        return body


@pytest.mark.timeout(120 + BODIES // 20)
async def test_malformed_bodies_get_an_answer_of_their_dialect() -> None:
    async with FakeTriton() as triton, gateway(triton.url) as http:
        numbers = iter(range(BODIES))

        async def send() -> None:
            for number in numbers:
                await check(http, number)

        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
        assert (await http.post("/v1/embeddings", json={"input": data_uri(PNG_1X1)})).status_code == 200
        assert (await http.get("/health")).status_code == 200


async def check(http: httpx.AsyncClient, number: int) -> None:
    request = Malformed(f"{SEED}/{number}").request()
    answer = await http.post(**request)
    where = f"Malformed({number}) to {request['url']}: {answer.status_code} {answer.text[:300]}"
    # By chance a body may be a good one.
    assert answer.status_code in (200, 400, 404, 413, 422), where
    body = answer.json()
    if answer.status_code == 200:
        return
    if request["url"] == "/v1/embeddings" or (request["url"].startswith("/embeddings") and answer.status_code != 422):
        assert body["error"]["message"], where
    elif request["url"].startswith("/embeddings"):
        assert body["detail"][0]["msg"], where
    else:
        assert body["detail"], where
