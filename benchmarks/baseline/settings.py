"""What the plain service reads from the environment, once, at its start."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class SettingError(ValueError):
    """A variable does not hold what it must; the message is one sentence that names it."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Which model to serve, and how."""

    model: str = "ViT-B-32"
    """``CLIP_MODEL``: open_clip's name, or the path of one of its JSON files."""
    pretrained: str = "laion2b_s34b_b79k"
    """``CLIP_PRETRAINED``: a tag, the path of a checkpoint, or ``random[:SEED]``."""
    max_batch: int = 32
    """``CLIP_MAX_BATCH``: images of how many requests may share one run of the model; 1 turns batching off."""
    max_request_images: int = 32
    """``CLIP_MAX_REQUEST_IMAGES``: images that one request may carry."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the variables; raises SettingError."""
        given = {
            field: environment[variable]
            for field, variable in (("model", "CLIP_MODEL"), ("pretrained", "CLIP_PRETRAINED"))
            if variable in environment
        }
        numbers = {
            field: _positive(variable, environment[variable])
            for field, variable in (("max_batch", "CLIP_MAX_BATCH"), ("max_request_images", "CLIP_MAX_REQUEST_IMAGES"))
            if variable in environment
        }
        return cls(**given, **numbers)


def _positive(variable: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise SettingError(f"{variable} must be a whole number of at least 1, not {text!r}.")
    return int(text)
