"""The source of an export: a model's name and the origin of its weights."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from preprocess_ensemble.errors import ReportedError

_FIRST_SEED: Final = 2700
"""Generator seed of ``random:0``. Skeletons use smaller seeds. The random weights of this seed separate copies from
different photos among the sample photos at a cosine of 0.998, in ViT-B-32 and in the small test model."""
_RANDOM: Final = re.compile(r"random(?::(\d+))?")

SKELETON_SUFFIX: Final = ".skeleton"
SHIPPED: Final = Path(__file__).with_name("skeletons")


class ExportError(ReportedError):
    """The export cannot be done; the repository is unchanged."""


class WrongChoice(ExportError):
    """The model, weights or precision does not exist."""


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    model: str
    pretrained: str  # origin as in the passport: a tag, ``file:NAME`` or ``random:SEED``
    seed: int | None = None
    checkpoint: Path | None = None


def choose_weights(model: str, pretrained: str, tags: Iterable[str]) -> ModelSource:
    """Return the source for ``pretrained``: ``random[:SEED]``, one of ``tags`` or a file's path. Raises WrongChoice."""
    if match := _RANDOM.fullmatch(pretrained):
        number = int(match[1] or 0)
        return ModelSource(model=model, pretrained=f"random:{number}", seed=_FIRST_SEED + number)
    tags = list(tags)
    if pretrained in tags:
        return ModelSource(model=model, pretrained=pretrained)
    path = Path(pretrained)
    if path.is_file():
        return ModelSource(model=model, pretrained=f"file:{path.name}", checkpoint=path)
    if names_file(pretrained):
        raise WrongChoice(f"There is no checkpoint file {pretrained}.")
    raise WrongChoice(f"{model} has no pretrained weights {pretrained!r}; {similar(pretrained, [*tags, 'random'])}")


def names_file(pretrained: str) -> bool:
    """Return whether ``pretrained`` names a file: it has an ending or a folder, which tags do not have."""
    path = Path(pretrained)
    return bool(path.suffix) or len(path.parts) > 1


def check_activation(model: str, tag: str, *, trained_quick: bool, model_quick: bool) -> None:
    """Raise WrongChoice for weights that were trained with another activation; open_clip itself only warns."""
    if trained_quick != model_quick:
        other = f"{model}-quickgelu" if trained_quick else model.removesuffix("-quickgelu")
        raise WrongChoice(f"The weights {tag!r} were trained with another activation; use --model {other}.")


def shipped_models() -> list[str]:
    return sorted(path.name.removesuffix(SKELETON_SUFFIX) for path in SHIPPED.glob(f"*{SKELETON_SUFFIX}"))


def similar(name: str, known: list[str]) -> str:
    """Return a question that offers the ``known`` names that are most like ``name``, else how to list all."""
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else "clip-export --list shows models"
