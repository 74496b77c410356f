"""Adapters that ask a service for embeddings: one for each service, the same for every load.

An adapter of a :class:`Target` is a context manager that gives ``embed(rows)``: one request that carries the images or
texts with these row numbers and returns their vectors (N, D).
"""

from __future__ import annotations

import base64
import io
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.fixtures.repositories import bare_encoder, device, exact_pixels, exported_passport, preprocessing
from clip_client import ClientConfig, ClipClient
from clip_client._transports.grpc import transport_factory

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.peers.baseline.network import Network
    from clip_client._encoding import TransferName

Vectors = npt.NDArray[np.float32]
Embed = Callable[[list[int]], Awaitable[Vectors]]
EmbedHere = Callable[[list[int]], Vectors]

TIMEOUT_S: Final = 600.0
"""Long, so that a slow system shows as slow and not as failing."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The target of a load: a model, its server, and the files to embed."""

    url: str
    """Empty if the model runs in the process of the load."""
    files: list[bytes]
    repository: Path
    model: str | None = None
    """JSON file of a model that open_clip does not know by name."""

    def images(self, rows: list[int]) -> list[bytes]:
        """The files with these numbers."""
        return [self.files[row] for row in rows]

    def texts(self, rows: list[int]) -> list[str]:
        """The files with these numbers, if they are texts."""
        return [self.files[row].decode() for row in rows]


Adapter = Callable[[Target], AbstractAsyncContextManager[Embed]]


@asynccontextmanager
async def clip_client(
    target: Target, *, text: bool = False, transfer: TransferName = "original"
) -> AsyncIterator[Embed]:
    """The library as programs use it: it packs waiting images into requests, and adapts the number in flight."""
    async with ClipClient(target.url.split(","), timeout_s=TIMEOUT_S, transfer=transfer) as clip:

        async def embed(rows: list[int]) -> Vectors:
            batch = await (clip.embed_text(target.texts(rows)) if text else clip.embed(target.images(rows)))
            batch.raise_for_errors()
            return batch.vectors

        yield embed


@asynccontextmanager
async def transport(target: Target) -> AsyncIterator[Embed]:
    """One gRPC connection of the library: each call is one request."""
    config = ClientConfig(urls=(target.url,))
    connection = transport_factory(config)(config.endpoints[0], None)

    async def embed(rows: list[int]) -> Vectors:
        answer = await connection.infer(target.images(rows), request_id=uuid.uuid4().hex, timeout_s=TIMEOUT_S)
        if any(answer.statuses):
            raise RuntimeError(f"an image failed: {answer.errors}")
        return answer.vectors

    try:
        yield embed
    finally:
        await connection.close()


@asynccontextmanager
async def posts(url: str) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Gives a function that posts ``json`` or ``data`` to ``url`` and returns the JSON of the answer."""
    import aiohttp

    # No limit of connections, because the load decides how many requests are in flight.
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def post(**content: Any) -> Any:
            async with session.post(url, **content) as response:
                response.raise_for_status()
                return await response.json()

        yield post


@asynccontextmanager
async def form(target: Target) -> AsyncIterator[Embed]:
    """The plain service, and clip-gateway's ``/embed``, which is like it: images in a form, vectors as numbers."""
    import aiohttp

    async with posts(f"{target.url}/embed") as post:

        async def embed(rows: list[int]) -> Vectors:
            data = aiohttp.FormData(default_to_multipart=True)
            for image in target.images(rows):
                data.add_field("images", image, filename="image")
            results = (await post(data=data))["results"]
            if errors := [result["error"] for result in results if result["status"]]:
                raise RuntimeError(f"an image failed: {errors}")
            return np.array([result["embedding"] for result in results], np.float32)

        yield embed


@asynccontextmanager
async def embeddings(target: Target, *, path: str, text: bool = False, **options: str) -> AsyncIterator[Embed]:
    """OpenAI's endpoint, and infinity's, which is like it; images travel as data URIs, vectors as numbers or base64."""
    rows_of = target.texts if text else partial(_data_uris, target)
    async with posts(f"{target.url}{path}") as post:

        async def embed(rows: list[int]) -> Vectors:
            answer = await post(json={"model": "clip", **options, "input": rows_of(rows)})
            vectors = [entry["embedding"] for entry in answer["data"]]
            if options.get("encoding_format") == "base64":
                return np.array([np.frombuffer(base64.b64decode(vector), "<f4") for vector in vectors])
            return np.array(vectors, np.float32)

        yield embed


def _data_uris(target: Target, rows: list[int]) -> list[str]:
    return [f"data:image/jpeg;base64,{base64.b64encode(file).decode()}" for file in target.images(rows)]


infinity_images: Final = partial(embeddings, path="/embeddings", modality="image")
infinity_texts: Final = partial(embeddings, path="/embeddings", modality="text", text=True)


@asynccontextmanager
async def in_process(target: Target, load: Callable[[Target], EmbedHere]) -> AsyncIterator[Embed]:
    run = load(target)

    async def embed(rows: list[int]) -> Vectors:
        return run(rows)

    yield embed


def ready_pixels(target: Target) -> EmbedHere:
    """ONNX Runtime alone, on pixels that were decoded beforehand: the highest rate of the encoder on this machine."""
    pixels = exact_pixels(target.files, preprocessing(target.repository))  # (N, H, W, 3)
    encode = bare_encoder(target.repository, device=device())
    return lambda rows: encode(pixels[rows])


def pytorch(target: Target, *, precision: str) -> EmbedHere:
    """open_clip's own loop in batches. Files are decoded on one thread for each core, as a DataLoader's workers do."""
    from PIL import Image

    network = _network(target, precision)
    decoders = ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="decode")

    def embed(rows: list[int]) -> Vectors:
        files = target.images(rows)
        return network.encode(list(decoders.map(lambda file: network.prepared(Image.open(io.BytesIO(file))), files)))

    return embed


def pytorch_texts(target: Target) -> EmbedHere:
    network = _network(target, "fp32")
    return lambda rows: network.encode_texts(target.texts(rows))


def _network(target: Target, precision: str) -> Network:
    import torch

    from benchmarks.peers.baseline.network import Network

    passport = exported_passport(target.repository)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    return Network(target.model or passport.model, passport.pretrained, device=device(), dtype=dtype)
