"""The endpoints of the plain service, and the batches that it makes.

``POST /embed`` takes a form (multipart) with one or more fields ``images``, each an image file. It answers
``{"results": [{"embedding", "status", "error"}, ...]}``, one result for each image, in order. As in the ensemble, a bad
image fails neither the request nor the other images: its ``embedding`` is null, ``status`` the number of an
``ImageStatus`` and ``error`` one sentence. ``GET /healthz`` answers once the model is loaded.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, Final

import torch
from fastapi import FastAPI, HTTPException, Response, UploadFile

from benchmarks.peers.baseline.network import Network
from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.decode import DecodeError, decode

MOST_IMAGES: Final = 32


class Batcher:
    """Runs ``work`` on one thread, one batch after another.

    A batch is what waits when the thread is free, up to ``max_items``; no request waits for others. With ``max_items``
    1 every request runs alone, even if it has several items.
    """

    def __init__(self, work: Callable[[list[Any]], list[Any]], *, max_items: int) -> None:
        self._work = work
        self._max_items = max_items
        self._waiting: list[tuple[Sequence[Any], asyncio.Future[list[Any]]]] = []
        self._turn = asyncio.Lock()

    async def submit(self, items: Sequence[Any]) -> list[Any]:
        """Return ``work``'s outputs for ``items``, in order. Raises what ``work`` raises."""
        own: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, own))
        async with self._turn:
            if not own.done():  # an earlier request did not take these items along
                await self._run_waiting()
        return own.result()

    async def _run_waiting(self) -> None:
        taken = count = 0
        for items, _ in self._waiting:
            if taken and count + len(items) > self._max_items:
                break
            taken, count = taken + 1, count + len(items)
        batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
        try:
            outputs = iter(await asyncio.to_thread(self._work, [item for items, _ in batch for item in items]))
        except Exception as error:  # it belongs to the callers
            for _, future in batch:
                future.set_exception(error)
        else:
            for items, future in batch:
                future.set_result(list(islice(outputs, len(items))))


def embedder(network: Network) -> Callable[[list[bytes]], list[dict[str, Any]]]:
    """Return what embeds image files: it decodes them on threads, and encodes the good ones in one batch."""
    decoders = ThreadPoolExecutor(thread_name_prefix="decode")

    def prepare(image: bytes) -> torch.Tensor | DecodeError:
        try:
            return network.prepared(decode(image))
        except DecodeError as error:
            return error

    def embed(images: list[bytes]) -> list[dict[str, Any]]:
        prepared = list(decoders.map(prepare, images))
        good = [one for one in prepared if isinstance(one, torch.Tensor)]
        vectors = iter(network.encode(good).tolist() if good else ())
        return [
            {"embedding": None, "status": int(one.status), "error": one.message}
            if isinstance(one, DecodeError)
            else {"embedding": next(vectors), "status": int(ImageStatus.OK), "error": ""}
            for one in prepared
        ]

    return embed


def make_app(model: str, pretrained: str, max_batch: int) -> FastAPI:
    """Return the application, which loads the model when it starts, before its port answers.

    ``max_batch`` is the most images in one run of the model, from several requests; 1 turns batching off.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        network = Network(model, pretrained, device="cuda" if torch.cuda.is_available() else "cpu")
        app.state.batcher = Batcher(embedder(network), max_items=max_batch)
        yield

    app = FastAPI(title="CLIP without Triton", lifespan=lifespan)

    @app.post("/embed")
    async def embed(images: list[UploadFile]) -> Response:
        if not 1 <= len(images) <= MOST_IMAGES:
            raise HTTPException(422, f"A request carries 1 to {MOST_IMAGES} images, and this one has {len(images)}.")
        results = await app.state.batcher.submit([await image.read() for image in images])
        # A response model of FastAPI would check each number again.
        return Response(json.dumps({"results": results}), media_type="application/json")

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    return app
