"""infinity's dialect, as its own clients send and read it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
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
from infinity_client.vision_client import InfinityVisionAPI
from PIL import Image

from clip_client.testing import PNG_1X1, Reply, fake_vector
from preprocess_ensemble.contract import ImageStatus
from tests.fixtures.gateways import data_uri

if TYPE_CHECKING:
    from clip_client.testing import FakeTriton

IMAGES = [PNG_1X1, b"another image"]


async def test_both_addresses_embed_images(url: str) -> None:
    async with Client(base_url=url) as client:
        bodies: tuple[tuple[Any, Any], ...] = (
            (embeddings, OpenAIEmbeddingInputImage(input_=[data_uri(image) for image in IMAGES])),
            (embeddings_image, ImageEmbeddingInput(input_=[data_uri(image) for image in IMAGES])),
        )
        for address, body in bodies:
            answer = await address.asyncio(client=client, body=body)
            assert isinstance(answer, OpenAIEmbeddingResult)
            for one, image in zip(answer.data, IMAGES, strict=True):
                assert np.array_equal(np.array(one.embedding, np.float32), fake_vector(image))


async def test_texts(url: str) -> None:
    async with Client(base_url=url) as client:
        body = OpenAIEmbeddingInputText(input_=["a cat", data_uri(PNG_1X1)])
        answer = await embeddings.asyncio(client=client, body=body)
        assert isinstance(answer, OpenAIEmbeddingResult)
        # With the modality of texts, one that looks like an image is a text.
        for one, text in zip(answer.data, ("a cat", data_uri(PNG_1X1)), strict=True):
            assert np.array_equal(np.array(one.embedding, np.float32), fake_vector(text.encode()))


async def test_its_vision_client(url: str) -> None:
    def embed() -> tuple[Any, Any]:
        client = InfinityVisionAPI(url, model="clip")
        with client.tp, client.session:
            texts = client.embed("clip", ["a cat"]).result()
            return texts, client.image_embed("clip", [Image.new("RGB", (3, 2))]).result()

    ((text,), _), ((image,), _) = await asyncio.to_thread(embed)
    assert np.array_equal(text[0], fake_vector(b"a cat"))
    assert image.shape == (1, 8)


async def test_models_and_health(url: str) -> None:
    async with Client(base_url=url) as client:
        listed = await models.asyncio(client=client)
        assert isinstance(listed, OpenAIModelInfo)
        assert [(model.id, model.capabilities) for model in listed.data] == [("clip", ["image_embed", "embed"])]
        alive = await health.asyncio(client=client)
        assert alive is not None
        assert alive["unix"] > 0


async def test_a_wrong_body_is_a_validation_error_that_names_the_item(url: str) -> None:
    async with Client(base_url=url) as client:
        body = ImageEmbeddingInput(input_=[data_uri(PNG_1X1), "no image"])
        answer = await embeddings_image.asyncio(client=client, body=body)
        assert isinstance(answer, HTTPValidationError)
        assert isinstance(answer.detail, list)
        assert answer.detail[0].loc == ["body", "input", 1]


async def test_a_bad_image_is_a_400_that_names_it(url: str, triton: FakeTriton) -> None:
    triton.answer_always(Reply(row_errors={1: (ImageStatus.CORRUPT, "The file contradicts itself.")}))
    body = ImageEmbeddingInput(input_=[data_uri(image) for image in IMAGES])
    client = Client(base_url=url)
    answer = await asyncio.to_thread(embeddings_image.sync_detailed, client=client, body=body)
    client.get_httpx_client().close()
    assert answer.status_code == 400
    assert b'"param":"input.1","code":"CORRUPT"' in answer.content
