"""How each service is asked for embeddings: one adapter for each, the same for every load.

``ADAPTERS[name](url, files, repository)`` is a context manager that gives ``embed(rows)``: one request that carries the
images with these row numbers and returns their vectors (N, D).
"""

from __future__ import annotations

import base64
import json
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.fixtures.float_models import FLOAT_MODEL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

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


def clip_client(transfer: TransferName) -> Open:
    """The library as programs use it: it packs waiting images into requests, and adapts the number in flight."""

    @asynccontextmanager
    async def adapter(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
        from clip_client import ClipClient

        async with ClipClient(url.split(","), timeout_s=TIMEOUT_S, transfer=transfer) as clip:

            async def embed(rows: list[int]) -> Vectors:
                batch = await clip.embed([files[row] for row in rows])
                batch.raise_for_errors()
                return batch.vectors

            yield embed

    return adapter


@asynccontextmanager
async def transport(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    """The library's gRPC connection alone: a request is exactly what was asked for."""
    from clip_client._config import ClientConfig
    from clip_client._transports.grpc import transport_factory

    config = ClientConfig(urls=(url,))
    async with _over(transport_factory(config)(config.endpoints[0], None), files) as embed:
        yield embed


@asynccontextmanager
async def plain(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    """The plain service, by a form of files."""
    from clip_client._transports.http import HttpTransport

    async with _over(HttpTransport(url), files) as embed:
        yield embed


@asynccontextmanager
async def _over(connection: Transport, files: list[bytes]) -> AsyncIterator[Embed]:
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
    """infinity's OpenAI-like endpoint; images travel as data URIs."""
    uris = ["data:image/jpeg;base64," + base64.b64encode(file).decode() for file in files]
    async with _http() as session:

        async def embed(rows: list[int]) -> Vectors:
            body = {"model": "clip", "modality": "image", "input": [uris[row] for row in rows]}
            async with session.post(f"{url}/embeddings", json=body) as response:
                response.raise_for_status()
                answer = await response.json()
            return np.array([entry["embedding"] for entry in answer["data"]], np.float32)

        yield embed


@asynccontextmanager
async def triton_json(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    """FP32 tensors as JSON over HTTP: what the replaced system did first."""
    tensor = float_tensors(files, repository)
    async with _http() as session:

        async def embed(rows: list[int]) -> Vectors:
            images = tensor(rows)
            inputs = [
                _json_input("images", "FP32", list(images.shape), images.ravel().tolist()),
                _json_input("status", "INT32", [len(rows), 1], [0] * len(rows)),
            ]
            body = json.dumps({"inputs": inputs, "outputs": [{"name": "embedding"}]})
            async with session.post(f"{url}/v2/models/{FLOAT_MODEL}/infer", data=body) as response:
                response.raise_for_status()
                answer = await response.json()
            return np.array(answer["outputs"][0]["data"], np.float32).reshape(len(rows), -1)

        yield embed


@asynccontextmanager
async def triton_http(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    """FP32 tensors in Triton's binary form over HTTP, by NVIDIA's own client."""
    import tritonclient.http.aio as triton

    async with triton.InferenceServerClient(url.partition("://")[2], conn_limit=512, conn_timeout=TIMEOUT_S) as client:
        yield _sending(triton, client, FLOAT_MODEL, ("images", "FP32"), float_tensors(files, repository))


@asynccontextmanager
async def triton_grpc(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    """FP32 tensors over gRPC, by NVIDIA's own client."""
    import tritonclient.grpc.aio as triton

    async with triton.InferenceServerClient(url) as client:
        yield _sending(triton, client, FLOAT_MODEL, ("images", "FP32"), float_tensors(files, repository))


@asynccontextmanager
async def tritonclient(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    """Files over gRPC by NVIDIA's own client; reads the same outputs as ClipClient."""
    import tritonclient.grpc.aio as triton

    outputs = [triton.InferRequestedOutput(name) for name in ("embedding", "status", "error", "fingerprint")]
    async with triton.InferenceServerClient(url) as client:

        async def embed(rows: list[int]) -> Vectors:
            image = triton.InferInput("image", [len(rows), 1], "BYTES")
            image.set_data_from_numpy(np.array([[files[row]] for row in rows], dtype=object))
            answer = await client.infer("clip_image", [image], outputs=outputs)
            vectors: Vectors
            vectors, statuses, *_ = (answer.as_numpy(output.name()) for output in outputs)
            if statuses.any():
                raise RuntimeError(f"an image failed: {statuses.ravel().tolist()}")
            return vectors

        yield embed


@asynccontextmanager
async def triton_uint8(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    """The encoder's own input, uint8 pixels, over gRPC by NVIDIA's own client."""
    import tritonclient.grpc.aio as triton

    pixels, _ = pixels_of(files, repository)
    async with triton.InferenceServerClient(url) as client:
        yield _sending(triton, client, "clip_encoder", ("pixels", "UINT8"), pixels)


def _sending(
    triton: Any, client: Any, model: str, tensor: tuple[str, str], values: Callable[[list[int]], Any]
) -> Embed:
    """Send ``values`` of the rows as the named tensor, with a status of 0 for each."""

    async def embed(rows: list[int]) -> Vectors:
        inputs = []
        for (name, kind), array in ((tensor, values(rows)), (("status", "INT32"), np.zeros((len(rows), 1), np.int32))):
            inputs.append(triton.InferInput(name, list(array.shape), kind))
            inputs[-1].set_data_from_numpy(array)
        result = await client.infer(model, inputs, outputs=[triton.InferRequestedOutput("embedding")])
        vectors: Vectors = result.as_numpy("embedding")
        return vectors

    return embed


def pixels_of(files: list[bytes], repository: Path) -> tuple[Callable[[list[int]], Pixels], PreprocessConfig]:
    """Decode and preprocess in this process, as a client that sends tensors must: rows -> (N, H, W, 3)."""
    from preprocess_ensemble.imaging.preprocessor import Preprocessor
    from preprocess_ensemble.imaging.transform import PreprocessConfig
    from preprocess_ensemble.model_repository.config import installed_passport

    passport = installed_passport(repository)
    if passport is None:
        raise RuntimeError(f"there is no exported model in {repository}: run clip-export")
    config = PreprocessConfig.from_mapping(passport.preprocess)
    preprocessor = Preprocessor(config)
    return lambda rows: preprocessor.run([[files[row] for row in rows]])[0], config


def float_tensors(files: list[bytes], repository: Path) -> Callable[[list[int]], npt.NDArray[np.float32]]:
    """The same, normalised: rows -> (N, 3, H, W)."""
    pixels, config = pixels_of(files, repository)
    return lambda rows: normalised(pixels(rows), config)


def normalised(pixels: Pixels, config: PreprocessConfig) -> npt.NDArray[np.float32]:
    """The model's float input (N, 3, H, W) from pixels (N, H, W, 3)."""
    mean, std = (np.array(value, np.float32) for value in (config.mean, config.std))
    return np.ascontiguousarray(((pixels.astype(np.float32) / 255 - mean) / std).transpose(0, 3, 1, 2))


def _http() -> Any:
    import aiohttp

    # No limit here: the load decides how many requests are in flight.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
    )


def _json_input(name: str, kind: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": kind, "shape": shape, "data": data}


ADAPTERS: Final[dict[str, Open]] = {
    "client": clip_client("original"),
    "client-thumbnail": clip_client("thumbnail"),
    "client-thumbnail-small": clip_client("thumbnail-small"),
    "transport": transport,
    "plain": plain,
    "infinity": infinity,
    "tritonclient": tritonclient,
    "triton-json": triton_json,
    "triton-http": triton_http,
    "triton-grpc": triton_grpc,
    "triton-uint8": triton_uint8,
}
