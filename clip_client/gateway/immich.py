"""The dialect of Immich's machine-learning service: CLIP is answered here, all else by Immich's own container.

Immich tries its URLs in order and calls one unhealthy after any answer but a 2xx; it then prefers the next one for
all kinds of work. A gateway that refused a face would therefore send CLIP elsewhere, too, and the library would hold
vectors of two models. With an upstream, every request that Immich can make is answered.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx
from pydantic import BaseModel, ConfigDict, Field, RootModel
from pydantic_core import from_json
from starlette.responses import PlainTextResponse, Response

from clip_client.gateway.bodies import Body, parsed
from clip_client.gateway.endpoint import Endpoint, Service, json_response, no_body
from clip_client.gateway.errors import IMMICH, Refusal, refusal_of_item

if TYPE_CHECKING:
    from clip_client._model import ModelInfo
    from clip_client.gateway.models import Models

_CLIP: Final = "clip"
_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "entries": {"type": "string", "description": '{"clip": {"visual": {"modelName": "ViT-B-32__openai"}}}'},
        "image": {"type": "string", "format": "binary"},
        "text": {"type": "string"},
    },
    "required": ["entries"],
}


class _Entry(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model_name: str = Field(alias="modelName")


class _Entries(RootModel[dict[str, dict[str, _Entry]]]):
    """Task -> type -> model, such as ``{"clip": {"visual": {"modelName": "ViT-B-32__openai"}}}``."""


@dataclass(frozen=True)
class _Prediction:
    """A request of Immich's."""

    clip: dict[str, _Entry]
    others: _Entries
    image: bytes | None
    fields: dict[str, str]
    """The rest of the form, such as ``text``."""


async def _read(body: Body) -> _Prediction:
    form = dict(await body.form(max_files=4))
    fields = {name: value for name, value in form.items() if isinstance(value, str)}
    image = form.get("image")
    if "entries" not in fields:
        raise Refusal(422, "The form has no field entries.")
    entries = parsed(_Entries, fields.pop("entries"))
    if not entries.root:
        raise Refusal(422, "The entries name no task.")
    return _Prediction(entries.root.pop(_CLIP, {}), entries, image if isinstance(image, bytes) else None, fields)


async def _predict(service: Service, wanted: _Prediction) -> Response:
    """Answer a request: CLIP from here, other tasks from upstream, and both in one answer if it mixes them."""
    others = wanted.others
    if not others.root:
        return json_response(await _clip(service.models, wanted))
    if service.upstream is None:
        tasks = ", ".join(others.root)
        message = f"This gateway answers CLIP only, and not {tasks}: start it with --immich-upstream URL."
        raise Refusal(400, message, code="no_upstream")
    there = asyncio.create_task(_others(service.upstream, wanted))
    try:
        here = await _clip(service.models, wanted) if wanted.clip else {}
        answer = await there
    finally:
        there.cancel()
    if not here or not answer.is_success:
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))
    try:
        return json_response({**from_json(answer.content), **here})
    except (ValueError, TypeError):
        raise Refusal(502, "Immich's own service answered with something else than a JSON object.") from None


async def _others(upstream: httpx.AsyncClient, wanted: _Prediction) -> httpx.Response:
    fields = {**wanted.fields, "entries": wanted.others.model_dump_json(by_alias=True)}
    files = {} if wanted.image is None else {"image": ("blob", wanted.image, "application/octet-stream")}
    try:
        return await upstream.post("/predict", data=fields, files=files)
    except httpx.HTTPError as error:
        message = f"Immich's own service does not answer ({type(error).__name__}): see --immich-upstream."
        raise Refusal(503, message, code="upstream_unavailable") from None


async def _clip(models: Models, wanted: _Prediction) -> dict[str, Any]:
    if len(wanted.clip) != 1 or not wanted.clip.keys() <= {"visual", "textual"}:
        raise Refusal(422, "The entries of clip are one of visual and textual.")
    ((kind, entry),) = wanted.clip.items()
    item = wanted.image if kind == "visual" else wanted.fields.get("text")
    if item is None:
        raise Refusal(400, "Either image or text must be provided.")
    embedded = await models.embed(await _served(models, entry.model_name), [item])
    for error in embedded.errors.values():
        raise refusal_of_item(0, error)
    # Immich takes the vector as a text, which it passes on to its database.
    answer: dict[str, Any] = {_CLIP: bytes(json_response(embedded.vectors[0].tolist()).body).decode()}
    if isinstance(item, bytes):
        from preprocess_ensemble.imaging.formats import open_image

        # Of the file as it is: Immich's own service turns no picture upright either.
        with open_image(item) as picture:
            answer["imageWidth"], answer["imageHeight"] = picture.size
    return answer


async def _served(models: Models, asked: str) -> str:
    """Return the name of the model that has the weights of Immich's ``asked``. Raises Refusal that names the export."""
    known = await models.infos()
    for name, model in known.items():
        if immich_name(model) == _normal(asked):
            return name
    architecture, _, weights = asked.partition("__")
    tag = weights.replace("-", "_")
    architecture += "-quickgelu" if tag == "openai" and not architecture.endswith("-quickgelu") else ""
    served = ", ".join(model.id for model in known.values())
    message = (
        f"Immich asks for {asked!r}, and this gateway serves {served}. Vectors of two models must not be mixed: choose "
        f"that model in Immich, or export Immich's: clip-export --model {architecture} --pretrained {tag or 'TAG'}"
    )
    raise Refusal(400, message, code="model_not_found")


def immich_name(model: ModelInfo) -> str:
    """Return what Immich calls the model, normalised; empty if it has none like it."""
    if model.pretrained != "openai":
        return _normal(f"{model.model}__{model.pretrained}")
    # OpenAI trained with QuickGELU, which open_clip has in the architecture's name, and Immich has not.
    name = model.model.removesuffix("-quickgelu")
    return "" if name == model.model else _normal(f"{name}__openai")


def _normal(name: str) -> str:
    model, _, weights = name.partition("__")
    return f"{model}__{weights.replace('_', '-')}".lower()


async def _ping(service: Service, _: None) -> Response:
    await service.models.require_health()
    return PlainTextResponse("pong")


ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    Endpoint("POST", "/predict", IMMICH, _read, _predict, "Immich: CLIP, and what an upstream answers", _FORM),
    Endpoint("GET", "/ping", IMMICH, no_body, _ping, "Immich: pong while a canary gets its vector", is_open=True),
)
