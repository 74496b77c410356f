"""Requests and answers of the clients of other services: openai, infinity's, and forms (docs/migrate.md: LangChain)."""

import asyncio
import base64
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from infinity_client import Client
from infinity_client.api.default import embeddings, embeddings_image, health, models
from infinity_client.models import (
    HTTPValidationError,
    ImageEmbeddingInput,
    OpenAIEmbeddingInputImage,
    OpenAIEmbeddingInputText,
    OpenAIEmbeddingResult,
    OpenAIModelInfo,
)

from clip_client.testing import PNG_1X1, FakeTriton, Reply, fake_vector
from preprocess_ensemble.contract import ImageStatus
from tests.fixtures.gateways import data_uri

OTHER = b"another image"
RAW = base64.b64encode(OTHER).decode()
URIS = [data_uri(PNG_1X1), data_uri(OTHER)]


def assert_vectors(numbers: Any, *items: bytes) -> None:
    assert np.array_equal(np.array(numbers, np.float32), [fake_vector(item) for item in items])


def vectors_of(data: Iterable[Any]) -> list[Any]:
    return [one.embedding for one in data]


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("encoding", ["float", "base64", openai.omit])
async def test_openai_gets_vectors_in_the_order_of_the_images(client: openai.AsyncOpenAI, encoding: Any) -> None:
    answer = await client.embeddings.create(model="clip", input=URIS, encoding_format=encoding)
    assert [one.index for one in answer.data] == [0, 1]
    assert (answer.model, answer.usage.total_tokens) == ("clip", 0)
    numbers = vectors_of(answer.data)
    if encoding == "base64":
        numbers = [np.frombuffer(base64.b64decode(one), "<f4") for one in numbers]
    assert_vectors(numbers, PNG_1X1, OTHER)
    assert [model.id async for model in client.models.list()] == ["clip"]
    for name in ("clip", "fake/random:0@00000000"):
        model = await client.models.retrieve(name)
        assert (model.id, model.created, model.owned_by) == ("clip", 1_700_000_000, "clip-triton")
    with pytest.raises(openai.NotFoundError, match="There is no model 'other'"):
        await client.models.retrieve("other")


async def test_openai_gets_vectors_of_texts_and_images_in_one_array(
    client: openai.AsyncOpenAI, triton: FakeTriton
) -> None:
    long = "word " * 100
    answer = await client.embeddings.create(model="clip", input=["a cat", URIS[0], long])
    assert_vectors(vectors_of(answer.data), b"a cat", PNG_1X1, long.encode())
    assert answer.model_extra is not None
    assert answer.model_extra["truncated"] == [2]
    assert answer.usage.model_extra == {"num_images": 1}
    assert triton.requests_received == 2


@pytest.mark.parametrize(
    "body",
    [
        {"input": data_uri(OTHER, "jpeg")},
        *({"input": head + RAW} for head in ("\ufeffDATA:image/jpeg;base64,", "data:;base64,", "data:None;base64,")),
        {"input": [f"\r\n data:application/octet-stream;base64,{RAW}\n"]},
        {"input": f"data:;base64,{RAW}", "modality": "image"},
        {"input": [{"image_url": {"url": URIS[1]}}]},
        {"input": {"type": "image_url", "image_url": URIS[1]}, "input_type": "query", "truncate": "NONE"},
        {"input": URIS[1], "model": "fake/random:0", "dimensions": 8},
        {"input": URIS[1], "model": "fake/random:0@00000000", "user": "me"},
    ],
)
async def test_an_image_in_every_form(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    answer = await http.post("/v1/embeddings", json={"model": "clip", **body})
    assert answer.status_code == 200, answer.text
    assert_vectors([answer.json()["data"][0]["embedding"]], OTHER)


async def test_a_large_image_is_decoded_in_pieces_beside_the_event_loop(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, loop, letters = base64.b64decode, threading.get_ident(), []

    def watched(text: str, **options: Any) -> bytes:
        if len(text) > 2**16:  # not what is known of the model
            assert threading.get_ident() != loop
            letters.append(len(text))
        return decode(text, **options)

    image = OTHER * 100_000
    monkeypatch.setattr(base64, "b64decode", watched)
    answer = await http.post("/v1/embeddings", json={"input": data_uri(image)})
    assert_vectors([answer.json()["data"][0]["embedding"]], image)
    answer = await http.post("/embed/base64", json={"images": [base64.b64encode(image).decode()]})
    assert_vectors([answer.json()["results"][0]["embedding"]], image)
    assert letters == [2**20, 684_760] * 2


async def test_a_text_that_only_resembles_an_image_is_a_text(http: httpx.AsyncClient) -> None:
    texts = ["data: the new oil, they say", "https://example.org/a.jpg shows a cat", "f0" * 32, "Kinderwagenrad" * 9]
    texts.append("a page at https://example.org/2026/11/the-longest-slug-of-all-the-pages-of-this-and-other-sites")
    answer = await http.post("/v1/embeddings", json={"input": [*texts, {"text": RAW}, {"text": URIS[0]}]})
    assert answer.status_code == 200, answer.text
    sent = [text.encode() for text in (*texts, RAW, URIS[0])]
    assert_vectors([one["embedding"] for one in answer.json()["data"]], *sent)


async def test_the_client_of_infinity(url: str) -> None:
    async with Client(base_url=url) as client:
        bodies: tuple[tuple[Any, Any, tuple[bytes, ...]], ...] = (
            (embeddings, OpenAIEmbeddingInputImage(input_=URIS), (PNG_1X1, OTHER)),
            (embeddings_image, ImageEmbeddingInput(input_=URIS), (PNG_1X1, OTHER)),
            # With the modality of texts, one that looks like an image is a text.
            (embeddings, OpenAIEmbeddingInputText(input_=["a cat", URIS[0]]), (b"a cat", URIS[0].encode())),
        )
        for address, body, items in bodies:
            answer = await address.asyncio(client=client, body=body)
            assert isinstance(answer, OpenAIEmbeddingResult)
            assert_vectors(vectors_of(answer.data), *items)
        listed = await models.asyncio(client=client)
        assert isinstance(listed, OpenAIModelInfo)
        assert [(model.id, model.capabilities) for model in listed.data] == [("clip", ["image_embed", "embed"])]
        alive = await health.asyncio(client=client)
        assert alive is not None
        assert alive["unix"] > 0


async def test_a_bad_image_is_named_in_the_shape_of_the_dialect(
    url: str, client: openai.AsyncOpenAI, http: httpx.AsyncClient, triton: FakeTriton
) -> None:
    triton.answer_always(Reply(row_errors={1: (ImageStatus.TRUNCATED, "The file ends early.")}))
    with pytest.raises(openai.BadRequestError) as raised:
        await client.embeddings.create(model="clip", input=URIS)
    assert (raised.value.code, raised.value.param) == ("TRUNCATED", "input.1")
    answer = await http.post("/embeddings_image", json={"input": URIS})
    assert (answer.status_code, '"param":"input.1","code":"TRUNCATED"' in answer.text) == (400, True)
    async with Client(base_url=url) as infinity:
        wrong = await embeddings_image.asyncio(client=infinity, body=ImageEmbeddingInput(input_=[URIS[0], "no image"]))
    assert isinstance(wrong, HTTPValidationError)
    assert isinstance(wrong.detail, list)
    assert wrong.detail[0].loc == ["body", "input", 1]


async def test_the_error_of_a_url_has_the_lines_that_send_its_bytes(
    url: str, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    (tmp_path / "photo.png").write_bytes(OTHER)
    body = {"input": {"image_url": "https://example.org/photo.png"}}
    message = (await http.post("/v1/embeddings", json=body)).json()["error"]["message"]
    sentence, *lines = message.splitlines()
    lines[-1] = lines[-1].replace("client", "answer = client", 1)
    code = ["import base64, openai, urllib.request", f"url = {(tmp_path / 'photo.png').as_uri()!r}"]
    code += [f"client = openai.OpenAI(base_url={url + '/v1'!r}, api_key='none')", *map(str.strip, lines)]
    code += ["print(answer.data[0].embedding)"]
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", "\n".join(code)], stdout=subprocess.PIPE)
    assert ("Item 0 is a URL" in sentence, len(lines)) == (True, 2)
    assert_vectors([json.loads(done.stdout)], OTHER)


async def test_a_form_has_a_result_for_each_image(http: httpx.AsyncClient, triton: FakeTriton) -> None:
    triton.answer_always(Reply(row_errors={1: (ImageStatus.TRUNCATED, "The file ends early.")}))
    images = [PNG_1X1, b"cut off", OTHER * 100_000]
    in_form, in_fields = [
        await http.post("/embed", files=[("images", (name, image)) for image in images]) for name in ("photo.jpg", None)
    ]
    in_base64 = await http.post("/embed/base64", json={"images": [base64.b64encode(one).decode() for one in images]})
    for answer in (in_form, in_fields, in_base64):
        body = answer.json()
        assert (body["model"], body["dimension"]) == ("fake/random:0@00000000", 8)
        assert body["fingerprint"] == list(triton.fingerprint)
        first, bad, last = body["results"]
        assert bad == {"embedding": None, "status": int(ImageStatus.TRUNCATED), "error": "The file ends early."}
        assert (first["status"], first["error"], last["status"]) == (0, "", 0)
        assert_vectors([first["embedding"], last["embedding"]], PNG_1X1, images[-1])
    triton.answer_always(Reply())
    alive = (await http.get("/healthz")).json()
    assert (alive["status"], alive["model"]) == ("ok", "fake/random:0@00000000")
