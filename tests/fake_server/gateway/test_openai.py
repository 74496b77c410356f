"""OpenAI's dialect, as its own client sends and reads it."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import numpy as np
import openai
import pytest
from pydantic import SecretStr

from clip_client.testing import PNG_1X1, FakeTriton, Reply, fake_vector
from preprocess_ensemble.contract import ImageStatus
from tests.fixtures.gateways import client_of, data_uri, gateway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

OTHER = b"another image"


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("encoding", ["float", "base64", openai.omit])
async def test_vectors_come_in_the_order_of_the_images(client: openai.AsyncOpenAI, encoding: Any) -> None:
    answer = await client.embeddings.create(
        model="clip", input=[data_uri(PNG_1X1), data_uri(OTHER)], encoding_format=encoding
    )
    assert [one.index for one in answer.data] == [0, 1]
    assert answer.model == "clip"
    assert answer.usage.total_tokens == 0
    for one, image in zip(answer.data, (PNG_1X1, OTHER), strict=True):
        numbers: Any = one.embedding
        vector = np.frombuffer(base64.b64decode(numbers), "<f4") if isinstance(numbers, str) else np.array(numbers)
        assert np.array_equal(vector.astype(np.float32), fake_vector(image))


async def test_texts_and_images_in_one_array(client: openai.AsyncOpenAI, triton: FakeTriton) -> None:
    long = "word " * 100
    answer = await client.embeddings.create(model="clip", input=["a cat", data_uri(PNG_1X1), long])
    for one, item in zip(answer.data, (b"a cat", PNG_1X1, long.encode()), strict=True):
        assert np.array_equal(np.array(one.embedding, np.float32), fake_vector(item))
    assert answer.model_extra is not None
    assert answer.model_extra["truncated"] == [2]
    assert triton.requests_received == 2


async def test_langchain_needs_one_option(url: str) -> None:
    from langchain_openai import OpenAIEmbeddings

    texts = ["a cat", "a dog"]
    async with openai.DefaultAsyncHttpxClient() as later:
        with openai.DefaultHttpxClient() as now:
            embeddings = OpenAIEmbeddings(
                model="clip",
                base_url=f"{url}/v1",
                api_key=SecretStr("none"),
                check_embedding_ctx_length=False,
                http_client=now,
                http_async_client=later,
            )
            vectors = await embeddings.aembed_documents(texts)
            assert np.array_equal(np.array(vectors, np.float32), [fake_vector(text.encode()) for text in texts])
            one = await asyncio.to_thread(embeddings.embed_query, "a cat")
            assert np.array_equal(np.array(one, np.float32), fake_vector(b"a cat"))


async def test_the_blocking_client(url: str) -> None:
    def embed() -> list[float]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["clip"]
            return client.embeddings.create(model="clip", input=data_uri(PNG_1X1)).data[0].embedding

    assert np.array_equal(np.array(await asyncio.to_thread(embed), np.float32), fake_vector(PNG_1X1))


@pytest.mark.parametrize(
    "body",
    [
        {"input": data_uri(OTHER, "jpeg")},
        {"input": [data_uri(OTHER, "jpeg")]},
        {"input": base64.b64encode(OTHER).decode().join(["data:;base64,", ""]), "modality": "image"},
        {"input": [{"image_url": {"url": data_uri(OTHER)}}]},
        {"input": {"type": "image_url", "image_url": data_uri(OTHER)}, "input_type": "query", "truncate": "NONE"},
        {"input": data_uri(OTHER), "model": "fake/random:0", "dimensions": 8},
        {"input": data_uri(OTHER), "model": "fake/random:0@00000000", "user": "me"},
    ],
)
async def test_an_image_in_every_form(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    answer = await http.post("/v1/embeddings", json={"model": "clip", **body})
    assert answer.status_code == 200, answer.text
    assert np.array_equal(np.array(answer.json()["data"][0]["embedding"], np.float32), fake_vector(OTHER))


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": [1, 2, 3]}, "tokens_not_supported", None),
        ({"input": [[1, 2], [3]]}, "tokens_not_supported", None),
        ({"input": []}, "invalid_request", None),
        ({"input": [data_uri(OTHER), None]}, "invalid_request", "input.1"),
        ({"input": [{"image_url": 3}]}, "invalid_request", "input.0"),
        ({"input": ["data:image/png;base64,a"]}, "invalid_request", "input.0"),
        ({"input": ["data:image/png,abc"]}, "invalid_request", "input.0"),
        ({"input": [data_uri(OTHER), "a cat"], "modality": "image"}, "invalid_request", "input.1"),
        ({"input": ["a cat", " "]}, "EMPTY", "input.1"),
        ({"input": data_uri(OTHER), "modality": "audio"}, "invalid_request", None),
        ({"input": data_uri(OTHER), "dimensions": 4}, "dimensions_not_supported", None),
        ({"input": data_uri(OTHER), "encoding_format": "hex"}, "invalid_request", None),
        ({"input": {"image_url": "https://example.org/a.jpg"}}, "URL_REFUSED", "input.0"),
        ({}, "invalid_request", None),
    ],
)
async def test_what_cannot_be_answered_is_refused_in_words(
    http: httpx.AsyncClient, body: dict[str, Any], code: str, param: str | None
) -> None:
    answer = await http.post("/v1/embeddings", json={"model": "clip", **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
    assert error["message"].endswith((".", "input", "'base64'")) or ":" in error["message"]


async def test_one_bad_image_fails_the_request_and_is_named(client: openai.AsyncOpenAI, triton: FakeTriton) -> None:
    triton.answer_always(Reply(row_errors={1: (ImageStatus.TRUNCATED, "The file ends early.")}))
    with pytest.raises(openai.BadRequestError) as raised:
        await client.embeddings.create(model="clip", input=[data_uri(PNG_1X1), data_uri(OTHER)])
    assert (raised.value.code, raised.value.param) == ("TRUNCATED", "input.1")


async def test_an_unknown_model_lists_the_known_ones(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=r"clip \(fake/random:0@00000000\)"):
        await client.embeddings.create(model="text-embedding-3-small", input="a")


async def test_an_unknown_address_answers_in_the_dialect(http: httpx.AsyncClient) -> None:
    assert (await http.post("/v1/chat/completions")).json()["error"]["code"] == "not_found"
    assert (await http.get("/v1/embeddings")).status_code == 405


async def test_a_model_without_a_text_tower_says_how_to_export_one() -> None:
    async with FakeTriton() as triton, gateway(triton.url) as url, client_of(url) as http:
        answer = await http.post("/v1/embeddings", json={"input": [data_uri(OTHER), "a cat"]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_text_tower")
        assert "--towers image,text" in answer.json()["error"]["message"]
        assert (await http.post("/v1/embeddings", json={"input": data_uri(OTHER)})).status_code == 200
