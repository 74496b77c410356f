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
        return cls(
            model=environment.get("CLIP_MODEL", cls.model),
            pretrained=environment.get("CLIP_PRETRAINED", cls.pretrained),
            max_batch=_positive(environment, "CLIP_MAX_BATCH", cls.max_batch),
            max_request_images=_positive(environment, "CLIP_MAX_REQUEST_IMAGES", cls.max_request_images),
        )


def _positive(environment: Mapping[str, str], variable: str, default: int) -> int:
    text = environment.get(variable, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise SettingError(f"{variable} must be a whole number of at least 1, not {text!r}.")
    return int(text)
