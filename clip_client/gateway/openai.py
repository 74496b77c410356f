"""OpenAI's dialect, and infinity's, which has the same bodies and answers with a few more fields."""

from __future__ import annotations

import base64
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, WithJsonSchema

from clip_client.gateway.endpoint import Endpoint, Service, json_response, no_body
from clip_client.gateway.errors import INFINITY, OPENAI, refusal_of_item
from clip_client.gateway.items import INPUT_SCHEMA, Item, Modality, items_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from starlette.responses import Response

    from clip_client.gateway.bodies import Body
    from clip_client.gateway.fetch import Hold


class Embeddings(BaseModel):
    """The body of a request for embeddings. Fields that change no vector, such as ``user``, are ignored."""

    input: Annotated[Any, WithJsonSchema(INPUT_SCHEMA)]
    model: str = ""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    modality: Modality | None = None


class ImageEmbeddings(Embeddings):
    """The body of infinity's older address for images."""

    modality: Modality | None = "image"


async def _read(body: Body, *, schema: type[Embeddings]) -> tuple[Embeddings, list[Item], Hold]:
    asked = await body.json(schema)
    return asked, items_of(asked.input, modality=asked.modality, most=body.max_items), body.hold


async def _embeddings(service: Service, content: tuple[Embeddings, list[Item], Hold]) -> Response:
    """Answer with a vector for each item; an item that fails fails the request."""
    asked, items, hold = content
    embedded = await service.models.embed(
        asked.model, await service.models.fetched(items, hold), dimension=asked.dimensions
    )
    model = embedded.model
    for index, error in embedded.errors.items():
        raise refusal_of_item(index, error)
    return json_response(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": _encoded(vector, asked.encoding_format)}
                for index, vector in enumerate(embedded.vectors)
            ],
            "model": asked.model or model.id,
            # Tokens are counted nowhere: nobody pays for them.
            "usage": {"prompt_tokens": 0, "total_tokens": 0, "num_images": embedded.images},
            "id": f"embd-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "truncated": embedded.truncated,
        }
    )


def _encoded(vector: NDArray[Any], encoding_format: str | None) -> str | list[float]:
    if encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers


async def _list_models(service: Service, _: None, *, owner: str) -> Response:
    """Answer with the models that a request may name. infinity's client accepts no owner but infinity."""
    listed = []
    for name, model in (await service.models.infos()).items():
        stats = service.models.clients[name].stats()
        waiting = stats.images_waiting + stats.images_in_flight
        listed.append(
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": owner,
                "model": model.id,
                "vector_id": model.vector_id,
                "text_vector_id": model.text_vector_id,
                "dimension": model.dimension,
                "backend": "triton",
                "capabilities": ["image_embed", *(["embed"] if model.text else [])],
                "stats": {"queue_absolute": waiting, "results_pending": waiting, "batch_size": model.max_batch_size},
            }
        )
    return json_response({"object": "list", "data": listed})


async def _health(service: Service, _: None) -> Response:
    await service.models.require_health()
    return json_response({"unix": time.time()})


_read_any: Final = partial(_read, schema=Embeddings)
_read_images: Final = partial(_read, schema=ImageEmbeddings)
_EMBED: Final = "vectors of texts and images"

ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    Endpoint("POST", "/v1/embeddings", OPENAI, _read_any, _embeddings, f"OpenAI: {_EMBED}", Embeddings),
    Endpoint("GET", "/v1/models", OPENAI, no_body, partial(_list_models, owner="clip-triton"), "OpenAI: the models"),
    Endpoint("POST", "/embeddings", INFINITY, _read_any, _embeddings, f"infinity: {_EMBED}", Embeddings),
    Endpoint("POST", "/embeddings_image", INFINITY, _read_images, _embeddings, f"infinity: {_EMBED}", ImageEmbeddings),
    Endpoint("GET", "/models", INFINITY, no_body, partial(_list_models, owner="infinity"), "infinity: the models"),
    Endpoint("GET", "/health", INFINITY, no_body, _health, "infinity: whether a canary gets its vector", is_open=True),
)
