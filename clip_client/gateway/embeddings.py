"""The dialects that answer with vectors: OpenAI's, infinity's, and plain forms, with a result for each image."""

from __future__ import annotations

import asyncio
import base64
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

from pydantic import BaseModel, Field
from starlette.responses import Response

from clip_client._errors import ClipError
from clip_client._model import ModelInfo
from clip_client.gateway.body import Body
from clip_client.gateway.dialect import Endpoint, Refusal, json_response
from clip_client.gateway.items import ITEM_FORMS, MAX_ITEMS, Item, Modality, decoded, items_of
from clip_client.gateway.service import Service
from preprocess_ensemble.contract import ImageStatus


class Embeddings(BaseModel):
    """The body of a request for embeddings. Fields that do not affect vectors, such as ``user``, are ignored."""

    input: Any = Field(description=f"One of these, or a list of them: {ITEM_FORMS}")
    model: str = ""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    modality: Modality | None = None


class Base64Images(BaseModel):
    images: list[str]


async def _embeddings(service: Service, body: Body, *, modality: Modality | None = None) -> Response:
    """Answer with a vector for each item. If an item fails, the request fails. ``modality`` is the default."""

    def read() -> tuple[Embeddings, list[Item]]:
        asked = body.json(Embeddings)
        return asked, items_of(asked.input, asked.modality or modality)

    # Not anyio's threads: up to version 4.8, each keeps its last request in memory.
    asked, items = await asyncio.to_thread(read)
    model, batch = await service.embed(asked.model, items, dimension=asked.dimensions)
    for index, error in sorted(batch.errors.items()):
        raise Refusal.of(error, index)
    images = sum(not isinstance(item, str) for item in items)
    if asked.encoding_format == "base64":
        vectors = [base64.b64encode(vector.tobytes()).decode() for vector in batch.vectors.astype("<f4")]
    else:
        vectors = batch.vectors.tolist()
    return json_response(
        {
            "object": "list",
            "data": [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)],
            "model": asked.model or model.id,
            # The server does not count tokens.
            "usage": {"prompt_tokens": 0, "total_tokens": 0, "num_images": images},
            "id": f"embd-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "truncated": batch.truncated,
        }
    )


def _from_base64(body: Body) -> list[bytes]:
    return [decoded(index, text) for index, text in enumerate(body.json(Base64Images).images)]


async def _embed(service: Service, body: Body, *, read: Callable[[Body], list[bytes]]) -> Response:
    images = await asyncio.to_thread(read, body)
    if not 1 <= len(images) <= MAX_ITEMS:
        raise Refusal(422, f"A request carries 1 to {MAX_ITEMS} images, and this one has {len(images)}.")
    model, batch = await service.embed("", images)
    results: list[dict[str, object]] = []
    for index, vector in enumerate(batch.vectors.tolist()):
        error = batch.errors.get(index)
        if error is None:
            results.append({"embedding": vector, "status": 0, "error": ""})
        elif error.code in ImageStatus.__members__:
            results.append({"embedding": None, "status": int(ImageStatus[error.code]), "error": error.message})
        else:
            raise Refusal.of(error, index)
    about = {"model": model.id, "fingerprint": model.fingerprint, "dimension": model.dimension}
    return json_response({**about, "results": results})


async def _list_models(service: Service, _: Body, *, owner: str) -> Response:
    """Answer with the models that are ready. infinity's client only accepts the owner infinity."""
    known = {name: model async for name, model in service.infos()}
    errors = [error for error in known.values() if isinstance(error, ClipError)]
    if len(errors) == len(known):
        raise errors[0]
    ready = ((name, known[name]) for name in service.clients)
    listed = [_about(service, name, model, owner) for name, model in ready if not isinstance(model, ClipError)]
    return json_response({"object": "list", "data": listed})


async def _one_model(service: Service, body: Body) -> Response:
    name = await service.named(body.request.path_params["id"])
    return json_response(_about(service, name, await service.clients[name].model(), "clip-triton"))


def _about(service: Service, name: str, model: ModelInfo, owner: str) -> dict[str, Any]:
    stats = service.clients[name].stats()
    waiting = stats.images_waiting + stats.images_in_flight
    return {
        **{"id": name, "object": "model", "created": model.exported_at, "owned_by": owner},
        **{"dimension": model.dimension, "model": model.id},
        **{"vector_id": model.vector_id, "text_vector_id": model.text_vector_id},
        # infinity's clients read these fields.
        "backend": "triton",
        "capabilities": ["image_embed", *(["embed"] if model.text else [])],
        "stats": {"queue_absolute": waiting, "results_pending": waiting, "batch_size": model.max_batch_size},
    }


async def _health(service: Service, _: Body) -> Response:
    """Answer with what callers of infinity's /health and of the plain /healthz look for."""
    return json_response({"status": "ok", "model": await service.require_health(), "unix": time.time()})


_of_images: Final = partial(_embeddings, modality="image")
_of_form: Final = partial(_embed, read=Body.images)
_of_base64: Final = partial(_embed, read=_from_base64)
_EMBED: Final = "vectors of texts and images"
_IMAGES: Final = {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}}
_FORM: Final = {"multipart/form-data": {"schema": {"type": "object", "properties": _IMAGES, "required": ["images"]}}}
_BASE64: Final = {"application/json": {"schema": Base64Images.model_json_schema()}}
_ITEMS: Final = {"application/json": {"schema": Embeddings.model_json_schema()}}

ENDPOINTS: Final = (
    Endpoint("POST", "/v1/embeddings", "openai", _embeddings, f"OpenAI: {_EMBED}", _ITEMS),
    Endpoint("GET", "/v1/models", "openai", partial(_list_models, owner="clip-triton"), "OpenAI: the models"),
    Endpoint("GET", "/v1/models/{id}", "openai", _one_model, "OpenAI: one model, by its name or id"),
    Endpoint("POST", "/embeddings", "infinity", _embeddings, f"infinity: {_EMBED}", _ITEMS),
    Endpoint("POST", "/embeddings_image", "infinity", _of_images, f"infinity: {_EMBED}", _ITEMS),
    Endpoint("GET", "/models", "infinity", partial(_list_models, owner="infinity"), "infinity: the models"),
    Endpoint("GET", "/health", "infinity", _health, "infinity: if a test image gets the right vector", is_open=True),
    Endpoint("POST", "/embed", "form", _of_form, "Images in a form: a result for each, good or bad", _FORM),
    Endpoint("POST", "/embed/base64", "form", _of_base64, "Images in base64: as /embed", _BASE64),
    Endpoint("GET", "/healthz", "form", _health, "As /health", is_open=True),
)
