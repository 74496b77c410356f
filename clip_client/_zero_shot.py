"""Zero-shot classification: says how well each label describes an image, without training on the labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clip_client._errors import ItemError
from clip_client._model import TextInfo

TEMPLATES: Final = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
"""Templates of the notebook ``Prompt_Engineering_for_ImageNet`` of OpenAI's CLIP (MIT licence), also open_clip's
``SIMPLE_IMAGENET_TEMPLATES``. A search selected these seven from the 80 of the paper. According to the notebook, they
classify slightly better than all 80, and they cost an eleventh. "itap" is "I took a picture"."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Classification:
    """Probabilities that say how well each label describes each image."""

    labels: tuple[str, ...]
    probabilities: NDArray[np.float32]
    """Shape (N, L), float32, in the order of images and labels. The row of an image that failed is NaN.

    A row adds up to 1, unless the model was trained with a sigmoid (SigLIP). Then the numbers are independent: no label
    may fit, or several."""
    errors: Mapping[int, ItemError]
    """Index -> the error of that image; empty if none failed."""
    sources: tuple[str | None, ...]
    """Path of each image; None for an image that was not given as a path."""

    def __repr__(self) -> str:
        failed = f", {len(self.errors)} failed" if self.errors else ""
        return f"Classification({len(self.probabilities)} x {len(self.labels)} labels{failed})"


def prompts(labels: Sequence[str], templates: Sequence[str]) -> list[str]:
    """Return the texts to embed: all texts of the first label, then all of the second, ...

    Raises TypeError if an argument is a text or holds anything but texts. Raises ValueError if an argument or one of
    its texts is empty, or if a template has no ``{}``.
    """
    for name, texts in (("labels", labels), ("templates", templates)):
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"{name} must be a list of texts (str), got {texts!r:.200}")
        if not texts or not all(text.strip() for text in texts):
            raise ValueError(f"{name} must hold at least one text, and no empty one")
    if bad := [template for template in templates if "{}" not in template]:
        raise ValueError(f"the template {bad[0]!r} has no {{}}, which stands for the label")
    return [template.replace("{}", label) for label in labels for template in templates]


def probabilities(
    images: NDArray[np.float32], texts: NDArray[np.float32], tower: TextInfo, labels: int
) -> NDArray[np.float32]:
    """Compare vectors (N, D) of images with the vectors of all prompts; return probabilities (N, ``labels``)."""
    classes = texts.reshape(labels, -1, texts.shape[1]).mean(axis=1)
    classes /= np.linalg.norm(classes, axis=1, keepdims=True)
    logits = np.float32(tower.logit_scale) * (images @ classes.T)
    if tower.logit_bias is not None:
        shares: NDArray[np.float32] = np.exp(-np.logaddexp(0, -(logits + np.float32(tower.logit_bias))))
        return shares
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares = powers / powers.sum(axis=1, keepdims=True)
    return shares
