"""Parts of a Triton model configuration, as Triton hands them to a backend in JSON."""

from __future__ import annotations

from typing import Any


def parameters(**values: str) -> dict[str, Any]:
    return {"parameters": {key: {"string_value": value} for key, value in values.items()}}


def accelerators(device: str, name: str, **keys: str) -> dict[str, Any]:
    listed = [{"name": name, "parameters": keys}]
    return {"optimization": {"execution_accelerators": {f"{device}_execution_accelerator": listed}}}
