"""An HTTP service that embeds an uploaded photo. One client lives as long as the service does.

pip install '.[local]' fastapi python-multipart uvicorn
uvicorn --app-dir examples fastapi_service:app
curl -F photo=@holiday.jpg http://localhost:8000/embed
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, UploadFile
from fastapi.responses import JSONResponse

from clip_client import ClipClient, ClipError, ImageError


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the client in the service's event loop; all requests share it, and their photos share batches."""
    async with ClipClient(os.environ.get("CLIP_URL", "auto:")) as clip:
        app.state.clip = clip
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/embed")
async def embed(photo: UploadFile, request: Request) -> dict[str, Any]:
    """Return the photo's vector, and the id that says which vectors it may be compared with."""
    batch = await request.app.state.clip.embed(await photo.read(), timeout_s=30)
    batch.raise_for_errors()
    return {"vector_id": batch.vector_id, "vector": batch.vectors[0].tolist()}


@app.get("/health")
async def health(request: Request) -> JSONResponse:
    """Check the whole path to the model with a known image."""
    report = await request.app.state.clip.health(timeout_s=5)
    return JSONResponse({"ok": report.ok, "model": report.model_id}, status_code=200 if report.ok else 503)


@app.exception_handler(ImageError)
async def answer_bad_image(request: Request, error: ImageError) -> JSONResponse:
    """The upload is at fault: 422, with a code such as TRUNCATED or NOT_AN_IMAGE."""
    return JSONResponse({"code": error.code, "message": error.message}, status_code=422)


@app.exception_handler(ClipError)
async def answer_failure(request: Request, error: ClipError) -> JSONResponse:
    """The model is at fault, and the upload may be tried again: 503."""
    return JSONResponse({"code": type(error).__name__, "message": error.message}, status_code=503)
