"""Immich's dialect: requests as its server sends them, with a stand-in for its own service behind the gateway."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from clip_client.gateway.immich import open_clip_names
from clip_client.testing import PNG_1X1, Reply, fake_vector
from preprocess_ensemble.contract import ImageStatus
from tests.fixtures.gateways import gateway, prediction, served

if TYPE_CHECKING:
    import httpx
    from starlette.requests import Request
    from starlette.responses import Response

    from clip_client.testing import FakeTriton

MODEL = "fake__random:0"
CLIP = {"clip": {"visual": {"modelName": MODEL}}}
OTHERS = {
    "facial-recognition": {
        "detection": {"modelName": "buffalo_l", "options": {"minScore": 0.7}},
        "recognition": {"modelName": "buffalo_l"},
    },
    "ocr": {"detection": {"modelName": "PP-OCRv5_mobile", "options": {"minScore": 0.5, "maxResolution": 736}}},
}


def assert_vector(answer: httpx.Response, item: bytes) -> None:
    assert answer.status_code == 200, answer.text
    # A text: Immich passes it on to its database as it is.
    assert np.array_equal(np.array(json.loads(answer.json()["clip"]), np.float32), fake_vector(item))


class Immich:
    """A stand-in for its service, which answers as it does."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.connections: list[Any] = []
        self.status, self.content = 200, ""
        self.app = Starlette(routes=[Route("/predict", self.predict, methods=["POST"])])

    async def predict(self, request: Request) -> Response:
        async with request.form() as sent:
            fields = {name: value if isinstance(value, str) else await value.read() for name, value in sent.items()}
        entries = json.loads(str(fields["entries"]))
        self.received.append({**fields, "entries": entries})
        self.connections.append(request.client)
        if self.content:
            return PlainTextResponse(self.content, self.status)
        return JSONResponse({**{task: [{"score": 0.9}] for task in entries}, "imageHeight": 1, "imageWidth": 1})


async def test_clip_of_an_image_and_of_a_text(http: httpx.AsyncClient) -> None:
    answer = await http.post(**prediction(CLIP))
    assert_vector(answer, PNG_1X1)
    assert (answer.json()["imageWidth"], answer.json()["imageHeight"]) == (1, 1)
    # A client may send the file without a name.
    answer = await http.post("/predict", files={"entries": (None, json.dumps(CLIP)), "image": (None, PNG_1X1)})
    assert_vector(answer, PNG_1X1)
    # Triton may know more formats than this process, and Immich's server does not read the size.
    assert_vector(await http.post(**prediction(CLIP, b"of another format")), b"of another format")
    for options in ({}, {"language": "de"}):
        entries = {"clip": {"textual": {"modelName": f"immich-app/{MODEL}", "options": options}}}
        answer = await http.post(**prediction(entries, None, text="Angeln am See"))
        assert_vector(answer, b"Angeln am See")
        assert answer.json().keys() == {"clip"}
    assert (await http.get("/ping")).text == "pong"


async def test_other_tasks_go_to_its_own_service(triton: FakeTriton) -> None:
    immich = Immich()
    async with served(immich.app) as upstream, gateway(triton.url, immich_upstream=upstream) as http:
        answer = await http.post(**prediction(OTHERS, assetId="1"))
        assert answer.json() == {**{task: [{"score": 0.9}] for task in OTHERS}, "imageHeight": 1, "imageWidth": 1}
        mixed = await http.post(**prediction({**CLIP, **OTHERS}, assetId="1"))
        assert_vector(mixed, PNG_1X1)
        assert mixed.json()["ocr"] == [{"score": 0.9}]
        assert immich.received == [{"entries": OTHERS, "image": PNG_1X1, "assetId": "1"}] * 2
        # It closes a connection after two seconds, so none is used twice.
        assert len(set(immich.connections)) == 2
        assert triton.requests_received == 1
        immich.status, immich.content = 500, "no"
        for entries in (OTHERS, {**CLIP, **OTHERS}):
            answer = await http.post(**prediction(entries))
            assert (answer.status_code, answer.text) == (500, "no")
        assert_vector(await http.post(**prediction(CLIP)), PNG_1X1)
        immich.status, immich.content = 200, "[]"
        assert (await http.post(**prediction({**CLIP, **OTHERS}))).status_code == 502
        immich.content = ""
        # What is refused here fails the request, whatever is answered there.
        triton.answer_always(Reply(row_errors={0: (ImageStatus.NOT_AN_IMAGE, "No image.")}))
        assert (await http.post(**prediction({**CLIP, **OTHERS}))).json()["code"] == "NOT_AN_IMAGE"


async def test_an_upstream_that_is_gone_is_a_503(triton: FakeTriton) -> None:
    async with gateway(triton.url, immich_upstream="http://127.0.0.1:1") as http:
        answer = await http.post(**prediction(OTHERS))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize(
    ("asked", "model", "pretrained"),
    [
        ("ViT-B-32__laion2b-s34b-b79k", "ViT-B-32", "laion2b_s34b_b79k"),
        ("ViT-B-32__openai", "ViT-B-32-quickgelu", "openai"),  # open_clip has the activation in the name
        ("immich-app/RN50__openai", "RN50-quickgelu", "openai"),
        ("ViT-H-14-quickgelu__dfn5b", "ViT-H-14-quickgelu", "dfn5b"),
        ("XLM-Roberta-Base-ViT-B-32__laion5b_s13b_b90k", "xlm-roberta-base-ViT-B-32", "laion5b_s13b_b90k"),
    ],
)
def test_the_export_that_an_error_names_is_one_of_open_clip(asked: str, model: str, pretrained: str) -> None:
    assert open_clip_names(asked) == (model, pretrained)
    found = find_spec("open_clip")  # not imported, which would bring PyTorch
    if found is None or found.origin is None:
        pytest.skip("open_clip is not installed")
    package = Path(found.origin).parent
    assert (package / "model_configs" / f"{model}.json").exists()
    assert re.search(rf"\b{pretrained}\b", (package / "pretrained.py").read_text())
