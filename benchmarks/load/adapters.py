"""How each service is asked for embeddings: one adapter for each, the same for every load.

``ADAPTERS[name](target)`` is a context manager that gives ``embed(rows)``: one request that carries the images with
these row numbers and returns their vectors (N, D).
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from benchmarks.fixtures.bare_encoder import preprocessing
from benchmarks.fixtures.float_models import FLOAT_MODEL
from benchmarks.fixtures.repositories import exported_passport
from benchmarks.load.triton_requests import TIMEOUT_S, json_posts, triton_requests
from benchmarks.peers.in_process import Target, pytorch_loop, pytorch_texts, ready_pixels
from clip_client import ClientConfig, ClipClient
from clip_client._transports.grpc import transport_factory
from preprocess_ensemble.imaging.preprocessor import Preprocessor

if TYPE_CHECKING:
    from clip_client._transports.base import Transport
    from preprocess_ensemble.imaging.transform import PreprocessConfig

Pixels = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]
Embed = Callable[[list[int]], Awaitable[Vectors]]
Open = Callable[[Target], AbstractAsyncContextManager[Embed]]


@asynccontextmanager
async def clip_client(target: Target) -> AsyncIterator[Embed]:
    """The library as programs use it: it packs waiting images into requests, and adapts the number in flight."""
    async with ClipClient(target.url, timeout_s=TIMEOUT_S, transfer="original") as clip:

        async def embed(rows: list[int]) -> Vectors:
            batch = await clip.embed(target.images(rows))
            batch.raise_for_errors()
            return batch.vectors

        yield embed


@asynccontextmanager
async def clip_client_text(target: Target) -> AsyncIterator[Embed]:
    """Texts through the library."""
    texts = target.texts
    async with ClipClient(target.url, timeout_s=TIMEOUT_S) as clip:

        async def embed(rows: list[int]) -> Vectors:
            batch = await clip.embed_text([texts[row] for row in rows])
            batch.raise_for_errors()
            return batch.vectors

        yield embed


def grpc_connection(url: str) -> Transport:
    """One connection of the library to the Triton at this gRPC address."""
    config = ClientConfig(urls=(url,))
    return transport_factory(config)(config.endpoints[0], None)


@asynccontextmanager
async def transport(target: Target) -> AsyncIterator[Embed]:
    """One connection of the library, gRPC or the plain service's HTTP: each call is one request."""
    from clip_client._transports.http import HttpTransport

    connection = HttpTransport(target.url) if target.url.startswith("http") else grpc_connection(target.url)

    async def embed(rows: list[int]) -> Vectors:
        answer = await connection.infer(target.images(rows), request_id=uuid.uuid4().hex, timeout_s=TIMEOUT_S)
        if answer.statuses.any():
            raise RuntimeError(f"an image failed: {answer.errors}")
        return answer.vectors

    try:
        yield embed
    finally:
        await connection.close()


@asynccontextmanager
async def in_process(target: Target, load: Callable[[Target], Callable[[list[int]], Vectors]]) -> AsyncIterator[Embed]:
    """No service: the model in this process."""
    run = load(target)

    async def embed(rows: list[int]) -> Vectors:
        return run(rows)

    yield embed


@asynccontextmanager
async def infinity(target: Target, *, modality: str) -> AsyncIterator[Embed]:
    """infinity's endpoint, which is like OpenAI's; images travel as data URIs."""
    inputs = target.texts if modality == "text" else [data_uri(file) for file in target.files]
    async with json_posts(f"{target.url}/embeddings") as post:

        async def embed(rows: list[int]) -> Vectors:
            answer = await post({"model": "clip", "modality": modality, "input": [inputs[row] for row in rows]})
            return np.array([entry["embedding"] for entry in answer["data"]], np.float32)

        yield embed


@asynccontextmanager
async def openai(target: Target, *, encoding: str) -> AsyncIterator[Embed]:
    """OpenAI's endpoint; images travel as data URIs, and vectors as numbers or in base64."""
    uris = [data_uri(file) for file in target.files]
    async with json_posts(f"{target.url}/v1/embeddings") as post:

        async def embed(rows: list[int]) -> Vectors:
            body = {"model": "clip", "encoding_format": encoding, "input": [uris[row] for row in rows]}
            vectors = [entry["embedding"] for entry in (await post(body))["data"]]
            if encoding == "base64":
                return np.array([np.frombuffer(base64.b64decode(vector), "<f4") for vector in vectors])
            return np.array(vectors, np.float32)

        yield embed


@asynccontextmanager
async def immich(target: Target) -> AsyncIterator[Embed]:
    """Immich's endpoint: a form with one image."""
    import aiohttp

    passport = exported_passport(target.repository)
    name = f"{passport.model}__{passport.pretrained}"
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def embed(rows: list[int]) -> Vectors:
            (row,) = rows
            form = aiohttp.FormData({"entries": json.dumps({"clip": {"visual": {"modelName": name}}})})
            form.add_field("image", target.files[row], filename="blob")
            async with session.post(f"{target.url}/predict", data=form) as response:
                response.raise_for_status()
                return np.array([json.loads((await response.json())["clip"])], np.float32)

        yield embed


def data_uri(file: bytes) -> str:
    """A JPEG file as a URI."""
    return f"data:image/jpeg;base64,{base64.b64encode(file).decode()}"


@asynccontextmanager
async def triton_tensors(target: Target, *, protocol: str) -> AsyncIterator[Embed]:
    """FP32 tensors; as JSON, what the replaced system did first. The client decodes and preprocesses."""
    config = preprocessing(target.repository)
    preprocessor = Preprocessor(config)
    async with triton_requests(target.url.removeprefix("http://"), FLOAT_MODEL, ["embedding"], protocol) as infer:

        async def embed(rows: list[int]) -> Vectors:
            vectors: Vectors
            images = normalised(preprocessor.run([target.images(rows)])[0], config)
            (vectors,) = await infer({"images": images, "status": np.zeros((len(rows), 1), np.int32)})
            return vectors

        yield embed


def normalised(pixels: Pixels, config: PreprocessConfig) -> npt.NDArray[np.float32]:
    """The model's float input (N, 3, H, W) from pixels (N, H, W, 3)."""
    mean, std = (np.array(value, np.float32) for value in (config.mean, config.std))
    return np.ascontiguousarray(((pixels.astype(np.float32) / 255 - mean) / std).transpose(0, 3, 1, 2))


ADAPTERS: Final[dict[str, Open]] = {
    "client": clip_client,
    "transport": transport,
    "client-text": clip_client_text,
    "infinity": partial(infinity, modality="image"),
    "openai": partial(openai, encoding="float"),
    "openai-base64": partial(openai, encoding="base64"),
    "immich": immich,
    "infinity-text": partial(infinity, modality="text"),
    "triton-json": partial(triton_tensors, protocol="json"),
    "triton-http": partial(triton_tensors, protocol="http"),
    "triton-grpc": partial(triton_tensors, protocol="grpc"),
    "session": partial(in_process, load=ready_pixels),
    "pytorch": partial(in_process, load=partial(pytorch_loop, precision="fp32")),
    "pytorch-bf16": partial(in_process, load=partial(pytorch_loop, precision="bf16")),
    "pytorch-text": partial(in_process, load=pytorch_texts),
}
