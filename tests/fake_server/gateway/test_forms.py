"""The addresses of the plain service: forms and base64, with a result for each image."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clip_client.testing import PNG_1X1, FakeTriton, Reply, fake_vector
from preprocess_ensemble.contract import ImageStatus
from tests.fixtures.gateways import client_of, gateway

if TYPE_CHECKING:
    import httpx


def files(*images: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    return [("images", ("photo.jpg", image)) for image in images]


async def test_a_bad_image_has_its_status_and_its_neighbours_their_vectors(
    http: httpx.AsyncClient, triton: FakeTriton
) -> None:
    triton.answer_always(Reply(row_errors={1: (ImageStatus.TRUNCATED, "The file ends early.")}))
    images = [PNG_1X1, b"cut off", b"another"]
    in_base64 = {"images": [base64.b64encode(image).decode() for image in images]}
    for answer in (await http.post("/embed", files=files(*images)), await http.post("/embed/base64", json=in_base64)):
        body = answer.json()
        assert (body["model"], body["dimension"]) == ("fake/random:0@00000000", 8)
        assert body["fingerprint"] == list(triton.fingerprint)
        first, bad, last = body["results"]
        assert bad == {"embedding": None, "status": int(ImageStatus.TRUNCATED), "error": "The file ends early."}
        for result, image in ((first, images[0]), (last, images[2])):
            assert (result["status"], result["error"]) == (0, "")
            assert np.array_equal(np.array(result["embedding"], np.float32), fake_vector(image))


@pytest.mark.parametrize(
    "request_",
    [
        {"url": "/embed", "files": [("other", ("a", b"a"))]},
        {"url": "/embed", "content": b"a", "headers": {"content-type": "image/jpeg"}},
        {"url": "/embed", "content": b"a", "headers": {"content-type": "multipart/form-data"}},
        {"url": "/embed", "content": b"a", "headers": {"content-type": "multipart/form-data; boundary=x"}},
        {"url": "/embed/base64", "json": {"images": []}},
        {"url": "/embed/base64", "json": {"images": ["@"]}},
        {"url": "/embed/base64", "json": {"images": "AAAA"}},
        {"url": "/embed/base64", "content": b"\xff"},
    ],
)
async def test_a_wrong_body_is_refused_in_words(http: httpx.AsyncClient, request_: dict[str, Any]) -> None:
    answer = await http.post(**request_)
    assert answer.status_code == 422
    assert answer.json()["detail"]


async def test_too_many_images(triton: FakeTriton) -> None:
    async with gateway(triton.url, max_items=2) as url, client_of(url) as http:
        assert (await http.post("/embed", files=files(b"1", b"2"))).status_code == 200
        assert (await http.post("/embed", files=files(b"1", b"2", b"3"))).status_code == 422


async def test_health_names_the_model(http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).json() == {"status": "ok", "model": "fake/random:0@00000000"}
