"""Immich's dialect: requests as its server sends them, with a stand-in for its own service behind the gateway."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from clip_client.gateway.immich import immich_name
from clip_client.testing import PNG_1X1, FakeTriton, Reply, fake_vector
from preprocess_ensemble.contract import ImageStatus
from tests.fixtures.gateways import client_of, gateway, served
from tests.fixtures.models.model_info import model_info

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx
    from starlette.requests import Request
    from starlette.responses import Response

MODEL = "ViT-B-32__laion2b-s34b-b79k"
CLIP = {"clip": {"visual": {"modelName": MODEL}}}
FACES = {
    "facial-recognition": {
        "detection": {"modelName": "buffalo_l", "options": {"minScore": 0.7}},
        "recognition": {"modelName": "buffalo_l"},
    }
}


def form(entries: dict[str, Any], image: bytes | None = PNG_1X1, **fields: str) -> dict[str, Any]:
    """What Immich's server appends to its FormData, in this order."""
    files: dict[str, tuple[str | None, str | bytes]] = {"entries": (None, json.dumps(entries))}
    if image is not None:
        files["image"] = ("blob", image)
    return {"url": "/predict", "files": {**files, **{name: (None, text) for name, text in fields.items()}}}


class Immich:
    """A stand-in for its service, which answers as it does."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.status = 200
        self.app = Starlette(routes=[Route("/predict", self.predict, methods=["POST"])])

    async def predict(self, request: Request) -> Response:
        async with request.form() as sent:
            entries = json.loads(str(sent["entries"]))
            image = sent.get("image")
            self.received.append({"entries": entries, "image": image and await image.read()})  # type: ignore[union-attr]
        if self.status != 200:
            return PlainTextResponse("no", self.status)
        return JSONResponse({**{task: [{"score": 0.9}] for task in entries}, "imageHeight": 1, "imageWidth": 1})


@pytest.fixture
async def triton() -> AsyncIterator[FakeTriton]:
    server = FakeTriton(model="ViT-B-32", has_text=True)
    passport = server.passport
    server.passport = lambda: {**passport(), "pretrained": "laion2b_s34b_b79k"}  # type: ignore[method-assign]
    async with server:
        yield server


@pytest.fixture
async def immich() -> AsyncIterator[tuple[Immich, str]]:
    service = Immich()
    async with served(service.app) as url:
        yield service, url


async def test_clip_of_an_image(http: httpx.AsyncClient) -> None:
    answer = await http.post(**form(CLIP))
    assert answer.status_code == 200
    body = answer.json()
    assert (body["imageWidth"], body["imageHeight"]) == (1, 1)
    # A text: Immich passes it on to its database as it is.
    assert np.array_equal(np.array(json.loads(body["clip"]), np.float32), fake_vector(PNG_1X1))


async def test_clip_of_a_text(http: httpx.AsyncClient) -> None:
    entries = {"clip": {"textual": {"modelName": MODEL, "options": {"language": "de"}}}}
    answer = await http.post(**form(entries, None, text="Angeln am See"))
    assert answer.status_code == 200
    assert answer.json().keys() == {"clip"}
    assert np.array_equal(np.array(json.loads(answer.json()["clip"]), np.float32), fake_vector(b"Angeln am See"))


async def test_other_tasks_go_to_its_own_service(triton: FakeTriton, immich: tuple[Immich, str]) -> None:
    service, upstream = immich
    async with gateway(triton.url, immich_upstream=upstream) as url, client_of(url) as http:
        answer = await http.post(**form(FACES))
        assert answer.json() == {"facial-recognition": [{"score": 0.9}], "imageHeight": 1, "imageWidth": 1}
        mixed = (await http.post(**form({**CLIP, **FACES}))).json()
        assert mixed["facial-recognition"] == [{"score": 0.9}]
        assert np.array_equal(np.array(json.loads(mixed["clip"]), np.float32), fake_vector(PNG_1X1))
        assert service.received == [{"entries": FACES, "image": PNG_1X1}] * 2
        assert triton.requests_received == 1


async def test_what_the_service_refuses_is_passed_on(triton: FakeTriton, immich: tuple[Immich, str]) -> None:
    service, upstream = immich
    service.status = 500
    async with gateway(triton.url, immich_upstream=upstream) as url, client_of(url) as http:
        for entries in (FACES, {**CLIP, **FACES}):
            answer = await http.post(**form(entries))
            assert (answer.status_code, answer.text) == (500, "no")
        assert (await http.post(**form(CLIP))).status_code == 200


async def test_an_upstream_that_is_gone_is_a_503(triton: FakeTriton) -> None:
    async with gateway(triton.url, immich_upstream="http://127.0.0.1:1") as url, client_of(url) as http:
        answer = await http.post(**form(FACES))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize(
    ("request_", "status", "says"),
    [
        (form({"clip": {"visual": {"modelName": "ViT-B-32__openai"}}}), 400, "--model ViT-B-32-quickgelu --pretrained"),
        (form(FACES), 400, "--immich-upstream"),
        (form(CLIP, None), 400, "image or text"),
        (form({}), 422, "no task"),
        (form({"clip": {}}), 422, "visual"),
        (form({"clip": {"visual": {}}}), 422, "modelName"),
        (form({"clip": [1]}), 422, "clip"),
        ({"url": "/predict", "files": {"image": ("blob", b"a")}}, 422, "entries"),
    ],
)
async def test_what_cannot_be_answered_says_why(
    http: httpx.AsyncClient, request_: dict[str, Any], status: int, says: str
) -> None:
    answer = await http.post(**request_)
    assert answer.status_code == status
    assert says in answer.json()["detail"]


async def test_a_bad_image_is_a_400(http: httpx.AsyncClient, triton: FakeTriton) -> None:
    triton.answer_always(Reply(row_errors={0: (ImageStatus.NOT_AN_IMAGE, "No image.")}))
    assert (await http.post(**form(CLIP))).json()["code"] == "NOT_AN_IMAGE"


async def test_ping_is_true_to_the_model(http: httpx.AsyncClient) -> None:
    assert (await http.get("/ping")).text == "pong"


@pytest.mark.parametrize(
    ("model", "pretrained", "name"),
    [
        ("ViT-B-32", "laion2b_s34b_b79k", "vit-b-32__laion2b-s34b-b79k"),
        ("ViT-B-32-quickgelu", "openai", "vit-b-32__openai"),
        ("ViT-B-32", "openai", ""),  # another activation than the one that it was trained with
        ("RN50-quickgelu", "openai", "rn50__openai"),
        ("ViT-B-32-SigLIP2-256", "webli", "vit-b-32-siglip2-256__webli"),
        ("ViT-H-14-quickgelu", "dfn5b", "vit-h-14-quickgelu__dfn5b"),
    ],
)
def test_names_of_immich(model: str, pretrained: str, name: str) -> None:
    assert immich_name(model_info(model=model, pretrained=pretrained)) == name
