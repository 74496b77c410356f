"""The addresses of the plain service that this gateway replaces: ``/embed``, ``/embed/base64`` and ``/healthz``.

The first takes a form with one or more files ``images``, the second the JSON ``{"images": ["<base64>", ...]}``. The
answer is ``{"model", "fingerprint", "dimension", "results": [{"embedding", "status", "error"}, ...]}``, one result for
each image, in order. A bad image fails neither the request nor its neighbours: its ``embedding`` is null, ``status``
the number of an ``ImageStatus``, and ``error`` one sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel

from clip_client.gateway.endpoint import Endpoint, Service, json_response, no_body
from clip_client.gateway.errors import FORM, Refusal, refusal_of_item
from clip_client.gateway.items import decoded
from preprocess_ensemble.contract import ImageStatus

if TYPE_CHECKING:
    from starlette.responses import Response

    from clip_client.gateway.bodies import Body

_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}},
    "required": ["images"],
}


class Base64Images(BaseModel):
    """The body of ``POST /embed/base64``."""

    images: list[str]


async def _read_form(body: Body) -> list[bytes]:
    form = await body.form(max_files=body.max_items)
    # Some clients send a file as a field, without a name.
    images = [value if isinstance(value, bytes) else value.encode() for name, value in form if name == "images"]
    return _checked(images, body.max_items)


async def _read_base64(body: Body) -> list[bytes]:
    texts = (await body.json(Base64Images)).images
    return [decoded(index, text) for index, text in enumerate(_checked(texts, body.max_items))]


def _checked(images: list[Any], most: int) -> list[Any]:
    if not 1 <= len(images) <= most:
        raise Refusal(422, f"A request carries 1 to {most} images, and this one has {len(images)}.")
    return images


async def _embed(service: Service, images: list[bytes]) -> Response:
    """Answer with a result for each image."""
    embedded = await service.models.embed("", images)
    results: list[dict[str, object]] = []
    for index, vector in enumerate(embedded.vectors):
        error = embedded.errors.get(index)
        if error is None:
            results.append({"embedding": vector.tolist(), "status": 0, "error": ""})
        elif error.code in ImageStatus.__members__:
            results.append({"embedding": None, "status": int(ImageStatus[error.code]), "error": error.message})
        else:
            raise refusal_of_item(index, error)
    model = embedded.model
    about = {"model": model.id, "fingerprint": model.fingerprint, "dimension": model.dimension}
    return json_response({**about, "results": results})


async def _healthz(service: Service, _: None) -> Response:
    await service.models.require_health()
    model = next(iter((await service.models.infos()).values()))
    return json_response({"status": "ok", "model": model.id})


ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    Endpoint("POST", "/embed", FORM, _read_form, _embed, "Images in a form: a result for each, good or bad", _FORM),
    Endpoint("POST", "/embed/base64", FORM, _read_base64, _embed, "Images in base64: as /embed", Base64Images),
    Endpoint("GET", "/healthz", FORM, no_body, _healthz, "As /health, with the model", is_open=True),
)
