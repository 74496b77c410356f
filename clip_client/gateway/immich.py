"""The dialect of Immich's machine-learning service: CLIP is answered here, all else by Immich's own container.

After any answer but a 2xx, Immich prefers its next URL for all kinds of work: a gateway that refused a face would send
CLIP elsewhere, too, and the library would hold vectors of two models.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import Any, Final, Literal

import httpx
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json, to_json
from starlette.responses import PlainTextResponse, Response

from clip_client.gateway.body import Body, parsed
from clip_client.gateway.dialect import IMMICH, Endpoint, Refusal, json_response
from clip_client.gateway.service import Service, all_of
from preprocess_ensemble.imaging.formats import open_image


class _Model(BaseModel):
    name: str = Field(alias="modelName")


class _Entries(BaseModel):
    """Task -> type -> model, such as ``{"clip": {"visual": {"modelName": "ViT-B-32__openai"}}}``."""

    model_config = ConfigDict(extra="allow")

    clip: dict[Literal["visual", "textual"], _Model] = {}


async def _predict(service: Service, body: Body) -> Response:
    """Answer a request: CLIP from here, other tasks from upstream, and both in one answer if it mixes them."""
    form = dict(await body.form(max_files=4))
    sent = form.pop("entries", None)
    if not isinstance(sent, str):
        raise Refusal(422, "The form has no field entries.")
    entries = parsed(_Entries, sent)
    others = entries.model_extra
    if not others:
        return json_response(await _clip(service, body, entries, form))
    if service.upstream is None:
        tasks = ", ".join(others)[:100]
        message = f"This gateway answers CLIP only, and not {tasks}: start it with --immich-upstream URL."
        raise Refusal(400, message, code="no_upstream")
    here = [_clip(service, body, entries, form)] if entries.clip else []
    answer, *clip = await all_of([_others(service.upstream, others, form), *here])
    if not clip or not answer.is_success:
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))
    try:
        return json_response({**from_json(answer.content), **clip[0]})
    except (ValueError, TypeError):
        raise Refusal(502, "Immich's own service answered with something else than a JSON object.") from None


async def _others(upstream: httpx.AsyncClient, others: dict[str, Any], form: dict[str, str | bytes]) -> httpx.Response:
    parts: dict[str, Any] = {key: ("blob" if isinstance(one, bytes) else None, one) for key, one in form.items()}
    try:
        return await upstream.post("/predict", files={"entries": (None, to_json(others)), **parts})
    except httpx.HTTPError as error:
        message = f"Immich's own service does not answer ({type(error).__name__}): see --immich-upstream."
        raise Refusal(503, message, code="upstream_unavailable") from None


async def _clip(service: Service, body: Body, entries: _Entries, form: dict[str, str | bytes]) -> dict[str, Any]:
    if len(entries.clip) != 1:
        raise Refusal(422, "The entries name no task, or not one of clip's types visual and textual.")
    ((kind, model),) = entries.clip.items()
    item = form.get("image" if kind == "visual" else "text")
    if not isinstance(item, bytes if kind == "visual" else str):
        raise Refusal(400, "Either image or text must be provided.")
    _, batch = await service.embed(body, await _served(service, model.name), [item])
    for error in batch.errors.values():
        raise Refusal.of(error, 0)
    # Immich takes the vector as a text, which it passes on to its database.
    answer: dict[str, Any] = {"clip": to_json(batch.vectors[0].tolist()).decode()}
    if isinstance(item, bytes):
        # Of the file as it is: Immich's own service turns no picture upright either.
        with suppress(OSError), open_image(item) as picture:
            answer["imageWidth"], answer["imageHeight"] = picture.size
    return answer


async def _served(service: Service, asked: str) -> str:
    """Return the name of the model that has the weights of Immich's ``asked``. Raises Refusal that names the export."""
    architecture, tag = open_clip_names(asked[:100])
    if architecture.startswith("nllb"):
        message = "Immich writes the language before each text for nllb models, and this gateway does not"
        raise Refusal(400, f"{message}: choose another model in Immich.", code="model_not_found")
    known = []
    async with aclosing(service.infos()) as infos:
        async for name, model in infos:
            if (model.model, model.pretrained.replace("-", "_")) == (architecture, tag):
                return name
            known.append(model.id)
    message = (
        f"Immich asks for {asked[:100]!r}, and this gateway serves {', '.join(sorted(known))}. "
        "Vectors of two models must not be mixed: choose that model in Immich, or export Immich's: "
        f"clip-export --model {architecture} --pretrained {tag or 'TAG'}"
    )
    raise Refusal(400, message, code="model_not_found")


def open_clip_names(asked: str) -> tuple[str, str]:
    """Return open_clip's names of what Immich calls ``asked``: the architecture, and the weights' tag with _ for -."""
    model, _, weights = asked.rpartition("/")[2].partition("__")
    if model.startswith("XLM-Roberta"):
        model = model.replace("XLM-Roberta-Base", "xlm-roberta-base").replace("XLM-Roberta-Large", "xlm-roberta-large")
    if weights == "openai":
        # OpenAI trained with QuickGELU, which open_clip has in the architecture's name, and Immich has not.
        model = f"{model.removesuffix('-quickgelu')}-quickgelu"
    return model, weights.replace("-", "_")


async def _ping(service: Service, _: Body) -> Response:
    await service.require_health()
    return PlainTextResponse("pong")


_TEXT: Final = {"type": "string"}
_FORM: Final = {"entries": _TEXT, "image": {**_TEXT, "format": "binary"}, "text": _TEXT}

ENDPOINTS: Final = (
    Endpoint("POST", "/predict", IMMICH, _predict, "Immich: CLIP, and what an upstream answers", _FORM),
    Endpoint("GET", "/ping", IMMICH, _ping, "Immich: pong while a canary gets its vector", is_open=True),
)
