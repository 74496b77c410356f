"""How each service is asked for embeddings: one adapter for each, the same for every load.

``ADAPTERS[name](url, files, repository)`` is a context manager that gives ``embed(rows)``: one request that carries the
images with these row numbers and returns their vectors (N, D).
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.fixtures.bare_encoder import preprocessing
from benchmarks.fixtures.float_models import FLOAT_MODEL
from preprocess_ensemble.contract import ENCODER, ENSEMBLE
from preprocess_ensemble.imaging.preprocessor import Preprocessor

if TYPE_CHECKING:
    import numpy.typing as npt

    from clip_client._encoding import TransferName
    from clip_client._transports.base import Transport
    from preprocess_ensemble.imaging.transform import PreprocessConfig

    Pixels = npt.NDArray[np.uint8]
    Vectors = npt.NDArray[np.float32]
    Embed = Callable[[list[int]], Awaitable[Vectors]]
    Open = Callable[[str, list[bytes], Path], AbstractAsyncContextManager[Embed]]

TIMEOUT_S: Final = 600.0
"""Long, so that a slow system shows as slow and not as failing."""


@asynccontextmanager
async def clip_client(
    url: str, files: list[bytes], repository: Path, *, transfer: TransferName
) -> AsyncIterator[Embed]:
    """The library as programs use it: it packs waiting images into requests, and adapts the number in flight."""
    from clip_client import ClipClient

    async with ClipClient(url.split(","), timeout_s=TIMEOUT_S, transfer=transfer) as clip:

        async def embed(rows: list[int]) -> Vectors:
            batch = await clip.embed([files[row] for row in rows])
            batch.raise_for_errors()
            return batch.vectors

        yield embed


@asynccontextmanager
async def transport(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    """One connection of the library, gRPC or the plain service's HTTP: each call is one request."""
    from clip_client._config import ClientConfig
    from clip_client._transports.grpc import transport_factory
    from clip_client._transports.http import HttpTransport

    if url.startswith("http"):
        connection: Transport = HttpTransport(url)
    else:
        config = ClientConfig(urls=(url,))
        connection = transport_factory(config)(config.endpoints[0], None)

    async def embed(rows: list[int]) -> Vectors:
        images = [files[row] for row in rows]
        answer = await connection.infer(images, request_id=uuid.uuid4().hex, timeout_s=TIMEOUT_S)
        if answer.statuses.any():
            raise RuntimeError(f"an image failed: {answer.errors}")
        return answer.vectors

    try:
        yield embed
    finally:
        await connection.close()


@asynccontextmanager
async def infinity(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    """infinity's endpoint, which is like OpenAI's; images travel as data URIs."""
    uris = ["data:image/jpeg;base64," + base64.b64encode(file).decode() for file in files]
    async with _json_posts(f"{url}/embeddings") as post:

        async def embed(rows: list[int]) -> Vectors:
            answer = await post({"model": "clip", "modality": "image", "input": [uris[row] for row in rows]})
            return np.array([entry["embedding"] for entry in answer["data"]], np.float32)

        yield embed


@asynccontextmanager
async def triton_json(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    """FP32 tensors as JSON over HTTP: what the replaced system did first."""
    tensor = float_tensors(files, repository)
    async with _json_posts(f"{url}/v2/models/{FLOAT_MODEL}/infer") as post:

        async def embed(rows: list[int]) -> Vectors:
            images = tensor(rows)
            status = {"name": "status", "datatype": "INT32", "shape": [len(rows), 1], "data": [0] * len(rows)}
            answer = await post({"inputs": [json_tensor("images", images), status], "outputs": [{"name": "embedding"}]})
            return np.array(answer["outputs"][0]["data"], np.float32).reshape(len(rows), -1)

        yield embed


@asynccontextmanager
async def triton_http(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    """FP32 tensors in Triton's binary form over HTTP, by NVIDIA's own client."""
    import tritonclient.http.aio as triton

    async with triton.InferenceServerClient(url.partition("://")[2], conn_limit=512, conn_timeout=TIMEOUT_S) as client:
        yield _sending(triton, client, FLOAT_MODEL, "images", "FP32", float_tensors(files, repository))


@asynccontextmanager
async def triton_grpc(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    """FP32 tensors over gRPC, by NVIDIA's own client."""
    import tritonclient.grpc.aio as triton

    async with triton.InferenceServerClient(url) as client:
        yield _sending(triton, client, FLOAT_MODEL, "images", "FP32", float_tensors(files, repository))


@asynccontextmanager
async def triton_uint8(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    """The encoder's own input, uint8 pixels, over gRPC by NVIDIA's own client."""
    import tritonclient.grpc.aio as triton

    async with triton.InferenceServerClient(url) as client:
        yield _sending(triton, client, ENCODER, "pixels", "UINT8", uint8_tensors(files, preprocessing(repository)))


@asynccontextmanager
async def tritonclient(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    """Files over gRPC by NVIDIA's own client; reads the same outputs as ClipClient."""
    import tritonclient.grpc.aio as triton

    outputs = [triton.InferRequestedOutput(name) for name in ("embedding", "status", "error", "fingerprint")]
    async with triton.InferenceServerClient(url) as client:

        async def embed(rows: list[int]) -> Vectors:
            image = triton.InferInput("image", [len(rows), 1], "BYTES")
            image.set_data_from_numpy(np.array([[files[row]] for row in rows], dtype=object))
            answer = await client.infer(ENSEMBLE, [image], outputs=outputs)
            vectors: Vectors
            vectors, statuses, *_ = (answer.as_numpy(output.name()) for output in outputs)
            if statuses.any():
                raise RuntimeError(f"an image failed: {statuses.ravel().tolist()}")
            return vectors

        yield embed


def _sending(triton: Any, client: Any, model: str, name: str, kind: str, tensor: Callable[[list[int]], Any]) -> Embed:
    """Send ``tensor`` of the rows under this name, with a status of 0 for each."""

    async def embed(rows: list[int]) -> Vectors:
        array = tensor(rows)
        image = triton.InferInput(name, list(array.shape), kind)
        image.set_data_from_numpy(array)
        status = triton.InferInput("status", [len(rows), 1], "INT32")
        status.set_data_from_numpy(np.zeros((len(rows), 1), np.int32))
        result = await client.infer(model, [image, status], outputs=[triton.InferRequestedOutput("embedding")])
        vectors: Vectors = result.as_numpy("embedding")
        return vectors

    return embed


def uint8_tensors(files: list[bytes], config: PreprocessConfig) -> Callable[[list[int]], Pixels]:
    """Decode and preprocess in this process, as a client that sends tensors must: rows -> (N, H, W, 3)."""
    preprocessor = Preprocessor(config)
    return lambda rows: preprocessor.run([[files[row] for row in rows]])[0]


def float_tensors(files: list[bytes], repository: Path) -> Callable[[list[int]], npt.NDArray[np.float32]]:
    """The same, normalised: rows -> (N, 3, H, W)."""
    config = preprocessing(repository)
    pixels = uint8_tensors(files, config)
    return lambda rows: normalised(pixels(rows), config)


def normalised(pixels: Pixels, config: PreprocessConfig) -> npt.NDArray[np.float32]:
    """The model's float input (N, 3, H, W) from pixels (N, H, W, 3)."""
    mean, std = (np.array(value, np.float32) for value in (config.mean, config.std))
    return np.ascontiguousarray(((pixels.astype(np.float32) / 255 - mean) / std).transpose(0, 3, 1, 2))


def json_tensor(name: str, array: npt.NDArray[np.float32]) -> dict[str, Any]:
    """An input of Triton's HTTP protocol."""
    return {"name": name, "datatype": "FP32", "shape": list(array.shape), "data": array.ravel().tolist()}


@asynccontextmanager
async def _json_posts(url: str) -> AsyncIterator[Callable[[Any], Awaitable[Any]]]:
    """Gives a function that posts JSON to ``url`` and returns the JSON of the answer."""
    import aiohttp

    # No limit of connections, because the load decides how many requests are in flight.
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def post(body: Any) -> Any:
            async with session.post(
                url, data=json.dumps(body), headers={"content-type": "application/json"}
            ) as response:
                response.raise_for_status()
                return await response.json()

        yield post


ADAPTERS: Final[dict[str, Open]] = {
    "client": partial(clip_client, transfer="original"),
    "client-thumbnail": partial(clip_client, transfer="thumbnail"),
    "client-thumbnail-small": partial(clip_client, transfer="thumbnail-small"),
    "transport": transport,
    "infinity": infinity,
    "tritonclient": tritonclient,
    "triton-json": triton_json,
    "triton-http": triton_http,
    "triton-grpc": triton_grpc,
    "triton-uint8": triton_uint8,
}
