"""The endpoints of the plain service, and its settings, which are read from the environment once.

===========================  =============================================================================
``POST /embed``              a form (multipart) with one or more fields ``images``, each an image file
``GET /model``               the model's passport, as the ensemble's handshake gives it
``GET /healthz``             200 once the model is loaded
===========================  =============================================================================

``POST /embed`` answers ``{"model": id, "fingerprint": [a, b], "dimension": D, "results": [{"embedding", "status",
"error"}, ...]}``, one result for each image, in order. As in the ensemble, a bad image fails neither the request nor
the other images: its ``embedding`` is null, ``status`` the number of an ``ImageStatus`` and ``error`` one sentence.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Response, UploadFile
from pydantic import BaseModel, Field, PositiveInt

from benchmarks.peers.baseline.batcher import Batcher


class Settings(BaseModel, frozen=True):
    """Which model to serve, and how. Each comes from the variable that it names."""

    model: str = Field("ViT-B-32", alias="CLIP_MODEL")
    """open_clip's name, or the path of one of its JSON files."""
    pretrained: str = Field("laion2b_s34b_b79k", alias="CLIP_PRETRAINED")
    """A tag, the path of a checkpoint, or ``random[:SEED]``."""
    max_batch: PositiveInt = Field(32, alias="CLIP_MAX_BATCH")
    """Most images in one run of the model, from several requests; 1 turns batching off."""
    max_request_images: PositiveInt = Field(32, alias="CLIP_MAX_REQUEST_IMAGES")
    """Most images in one request."""


def make_app(settings: Settings) -> FastAPI:
    """Return the application, which loads the model when it starts, before its port answers."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        from benchmarks.peers.baseline.network import Network, Result  # PyTorch, which the settings do not need

        network = Network(settings.model, settings.pretrained)
        app.state.passport = network.passport
        app.state.batcher = Batcher[bytes, Result](network.embed, max_items=settings.max_batch)
        yield
        app.state.batcher.close()

    app = FastAPI(title="CLIP without Triton", lifespan=lifespan)

    async def answer(images: list[bytes]) -> Response:
        if not 1 <= len(images) <= settings.max_request_images:
            raise HTTPException(
                422, f"A request carries 1 to {settings.max_request_images} images, and this one has {len(images)}."
            )
        results = await app.state.batcher.submit(images)
        passport = app.state.passport
        body = {
            "model": passport.id,
            "fingerprint": passport.fingerprint,
            "dimension": passport.dimension,
            "results": [
                {"embedding": result.vector, "status": result.status, "error": result.error} for result in results
            ],
        }
        # A response model of FastAPI would check each number again.
        return Response(json.dumps(body), media_type="application/json")

    @app.post("/embed")
    async def embed(images: list[UploadFile]) -> Response:
        return await answer([await image.read() for image in images])

    @app.get("/model")
    async def model() -> Response:
        document = json.loads(app.state.passport.to_json())
        document["max_batch_size"] = settings.max_request_images
        return Response(json.dumps(document), media_type="application/json")

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok", "model": app.state.passport.id}

    return app
