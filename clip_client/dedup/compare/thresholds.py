"""Least similarity of two vectors for each model: vectors of different models have different similarities."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from clip_client.dedup.types import NO_MODEL, Thresholds, is_random, split_model_id

_IMMICH: Final = Thresholds(
    similar=0.99, source="0.99 is the default of Immich for these weights (cosine distance 0.01)", recommended=True
)

_PER_MODEL: Final = {("ViT-B-32", "openai"): _IMMICH, ("ViT-B-32-quickgelu", "openai"): _IMMICH}
"""(model, pretrained) -> thresholds. open_clip lists OpenAI's weights under both names."""

_TRAINED: Final = replace(
    _IMMICH, source="taken over from ViT-B-32/openai and not measured for this model; check some groups by eye"
)

_RANDOM: Final = Thresholds(
    similar=0.998,
    source="no threshold is recommended for random weights; 0.998 shows re-encoded and resized copies only",
    recommended=False,
)
"""Measured with a seeded random ViT-B-32: copies of 20 photos re-encoded at quality 40 or halved in size stay above
0.998, while two different textures reach 0.9965."""


def thresholds_for(model_id: str, threshold: float | None = None) -> Thresholds:
    """Return the thresholds for a model id such as ``"ViT-B-32/openai@1a2b3c4d"``.

    ``threshold`` replaces ``similar``. Raises ValueError if it is not between 0 and 1.
    """
    if model_id == NO_MODEL:
        return Thresholds(similar=1.0, source="no model was used, so no vectors were compared", recommended=False)
    table = _RANDOM if is_random(model_id) else _PER_MODEL.get(split_model_id(model_id), _TRAINED)
    if threshold is None:
        return table
    if not 0 <= threshold <= 1:
        raise ValueError(f"the threshold must be a cosine similarity between 0 and 1, got {threshold}")
    return replace(table, similar=threshold, source=f"{threshold:g} was asked for; by default: {table.source}")
