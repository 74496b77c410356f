"""How each service is asked for embeddings: one function a target, the same for every load.

``TARGETS[name](url, files, repository)`` is a context manager that gives ``embed(rows)``: one request that carries the
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

    from clip_client._transports.base import Transport

    Vectors = npt.NDArray[np.float32]
    Embed = Callable[[list[int]], Awaitable[Vectors]]
    Open = Callable[[str, list[bytes], Path], AbstractAsyncContextManager[Embed]]

TIMEOUT_S: Final = 600.0
"""A slow system must show as slow, not as failing."""


@asynccontextmanager
async def clip_client(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    """The library as programs use it: it packs what waits into requests, and adapts what is under way."""
    from clip_client import ClipClient

    # The other systems get the files as they are, too.
    async with ClipClient(url.split(","), timeout_s=TIMEOUT_S, transfer="original") as clip:

        async def embed(rows: list[int]) -> Vectors:
            batch = await clip.embed([files[row] for row in rows])
            batch.raise_for_errors()
            return batch.vectors

        yield embed


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
        async with _binary_embed(triton, client, files, repository) as embed:
            yield embed


@asynccontextmanager
async def triton_grpc(url: str, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    """FP32 tensors over gRPC, by NVIDIA's own client."""
    import tritonclient.grpc.aio as triton

    async with triton.InferenceServerClient(url) as client:
        async with _binary_embed(triton, client, files, repository) as embed:
            yield embed


@asynccontextmanager
async def _binary_embed(triton: Any, client: Any, files: list[bytes], repository: Path) -> AsyncIterator[Embed]:
    tensor = float_tensors(files, repository)

    async def embed(rows: list[int]) -> Vectors:
        inputs = []
        for name, kind, array in (
            ("images", "FP32", tensor(rows)),
            ("status", "INT32", np.zeros((len(rows), 1), np.int32)),
        ):
            inputs.append(triton.InferInput(name, list(array.shape), kind))
            inputs[-1].set_data_from_numpy(array)
        outputs = [triton.InferRequestedOutput("embedding")]
        result = await client.infer(FLOAT_MODEL, inputs, outputs=outputs)
        vectors: Vectors = result.as_numpy("embedding")
        return vectors

    yield embed


def float_tensors(files: list[bytes], repository: Path) -> Callable[[list[int]], npt.NDArray[np.float32]]:
    """A function that decodes and normalises, as a client must that sends tensors: rows -> (N, 3, H, W)."""
    from preprocess_ensemble.imaging.decode import decode
    from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
    from preprocess_ensemble.model_repository.config import installed_passport

    passport = installed_passport(repository)
    if passport is None:
        raise RuntimeError(f"there is no exported model in {repository}: run clip-export")
    config = PreprocessConfig.from_mapping(passport.preprocess)
    mean, std = (np.array(value, np.float32) for value in (config.mean, config.std))

    def tensor(rows: list[int]) -> npt.NDArray[np.float32]:
        pixels = np.stack([preprocess(decode(files[row]), config) for row in rows])  # (N, H, W, 3)
        values = (pixels.astype(np.float32) / 255 - mean) / std
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2))

    return tensor


def _http() -> Any:
    import aiohttp

    # Without a limit of its own: how many requests are under way is the load's business.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
    )


def _json_input(name: str, kind: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": kind, "shape": shape, "data": data}


TARGETS: Final[dict[str, Open]] = {
    "client": clip_client,
    "transport": transport,
    "plain": plain,
    "infinity": infinity,
    "triton-json": triton_json,
    "triton-http": triton_http,
    "triton-grpc": triton_grpc,
}
