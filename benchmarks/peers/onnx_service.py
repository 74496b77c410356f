"""A stand-in for Immich's machine-learning service: the same stack and the same way of working, but not its code.

FastAPI receives a form with one photo; a thread decodes and resizes it with Pillow and NumPy and runs ONNX Runtime on
it alone. Nothing is batched. The model is this project's exported encoder, so that the vectors can be compared.
"""

import argparse
import asyncio
import io
import json
from pathlib import Path

import numpy as np
import uvicorn
from fastapi import FastAPI, Response, UploadFile
from PIL import Image

from benchmarks.fixtures.repositories import bare_encoder, device, preprocessing
from preprocess_ensemble.imaging.transform import preprocess


def make_app(repository: Path) -> FastAPI:
    config, encode = preprocessing(repository), bare_encoder(repository, device=device())

    def embed(file: bytes) -> bytes:
        with Image.open(io.BytesIO(file)) as image:
            pixels = preprocess(image.convert("RGB"), config)
        (vector,) = encode(np.expand_dims(pixels, 0))
        return json.dumps({"results": [{"embedding": vector.tolist(), "status": 0, "error": ""}]}).encode()

    app = FastAPI()

    @app.post("/embed")
    async def predict(images: UploadFile) -> Response:
        return Response(await asyncio.to_thread(embed, await images.read()), media_type="application/json")

    @app.get("/healthz")
    async def healthz() -> str:
        return "ok"

    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--repository", type=Path)
    parser.add_argument("--port", type=int)
    given = parser.parse_args()
    uvicorn.run(make_app(given.repository), host="127.0.0.1", port=given.port, log_level="warning")
