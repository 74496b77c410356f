"""The OpenAPI document of the gateway, and a page that shows it without loading anything from elsewhere."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clip_client.gateway.endpoint import Endpoint


def document(endpoints: Iterable[Endpoint[Any]]) -> dict[str, Any]:
    """Return the OpenAPI document."""
    answers = {"200": {"description": "the answer"}, "default": {"description": "an error in the form of the dialect"}}
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        operation: dict[str, Any] = {"summary": endpoint.summary, "responses": answers}
        if endpoint.schema is not None:
            media_type = "multipart/form-data" if isinstance(endpoint.schema, dict) else "application/json"
            operation["requestBody"] = {"required": True, "content": {media_type: {"schema": _schema(endpoint)}}}
        paths[endpoint.path] = {endpoint.method.lower(): operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "clip-gateway", "version": "1"},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def page(endpoints: Iterable[Endpoint[Any]]) -> str:
    """Return the document as a page for people."""
    parts = []
    for endpoint in endpoints:
        parts.append(f"<h2><code>{endpoint.method} {endpoint.path}</code></h2><p>{escape(endpoint.summary)}</p>")
        if endpoint.schema is not None:
            body = escape(to_json(_schema(endpoint), indent=2).decode())
            parts.append(f"<details><summary>body</summary><pre>{body}</pre></details>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>clip-gateway</title><h1>clip-gateway</h1><p><a href=openapi.json>openapi.json</a></p>{''.join(parts)}"
        "</html>"
    )


def _schema(endpoint: Endpoint[Any]) -> dict[str, Any]:
    schema = endpoint.schema
    assert schema is not None
    return schema if isinstance(schema, dict) else schema.model_json_schema()
