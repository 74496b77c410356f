"""What to export: a model's name and the origin of its weights, and what the two ways to a graph have in common."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from preprocess_ensemble.errors import ReportedError, first_line

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from preprocess_ensemble.imaging.transform import PreprocessConfig
    from preprocess_ensemble.runtimes.agreement import Rows
    from preprocess_ensemble.text.tokenizer import Tokenizer

_FIRST_SEED: Final = 2700
"""Generator seed of ``random:0``. Skeletons use smaller ones; with this one the random weights tell the copies among
the sample photos from different photos at a cosine of 0.998, in ViT-B-32 and in the small test model."""
_RANDOM: Final = re.compile(r"random(?::(\d+))?")

SKELETON_SUFFIX: Final = ".skeleton"
TORCHSCRIPT_SUFFIX: Final = ".torchscript.pt"
SHIPPED: Final = Path(__file__).with_name("skeletons")
"""Where the skeletons of this package are."""


class ExportError(ReportedError):
    """The export cannot be done; the repository is unchanged."""


class WrongChoice(ExportError):
    """The model, weights or precision does not exist."""


def weights_unavailable(model: str, tag: str, *, tried: str, error: BaseException) -> ExportError:
    """Return the error for pretrained weights that cannot be downloaded, with what can be done instead."""
    return ExportError(
        f"The weights {tag!r} of {model} are not in the cache and cannot be downloaded.\n"
        f"  tried: {tried}\n"
        f"  got:   {download_failure(error)}\n"
        "You can use:\n"
        f"  a checkpoint file:   clip-export --model {model} --pretrained FILE.safetensors\n"
        f"  a mirror of the hub: HF_ENDPOINT=https://MIRROR clip-export --model {model} --pretrained {tag}\n"
        f"  untrained weights:   clip-export --model {model} --pretrained random "
        "(enough to try everything out, not to judge similarity)"
    )


def download_failure(error: BaseException) -> str:
    """Return why a download from the hub failed, in one line."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    root = error
    while deeper := root.__cause__ or root.__context__:
        root = deeper
    if isinstance(root, OfflineModeIsEnabled):
        # Its own text tells the user to unset a variable that clip-export may have set itself.
        return "only the cache was searched, because the hub does not answer or HF_HUB_OFFLINE is set"
    return first_line(root)


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """What to load; the names have been checked."""

    model: str
    pretrained: str
    """As in the passport: a tag, ``file:NAME`` or ``random:SEED``."""
    seed: int | None = None
    """Generator seed of random weights."""
    checkpoint: Path | None = None


def choose_weights(model: str, pretrained: str, tags: Iterable[str]) -> ModelSource:
    """Return the source for ``pretrained``: ``random[:SEED]``, one of the ``tags`` of ``model``, or a file's path.

    Raises WrongChoice with similar names.
    """
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
    """Return whether weights are named as a file: with an ending or a folder, which no tag has."""
    path = Path(pretrained)
    return bool(path.suffix) or len(path.parts) > 1


def check_activation(model: str, tag: str, *, trained_quick: bool, model_quick: bool) -> None:
    """Reject weights with an activation that they were not trained with: open_clip only warns. Raises WrongChoice."""
    if trained_quick != model_quick:
        other = f"{model}-quickgelu" if trained_quick else model.removesuffix("-quickgelu")
        raise WrongChoice(f"The weights {tag!r} were trained with another activation; use --model {other}.")


def shipped_models() -> list[str]:
    """Names of the models whose skeletons are part of this package."""
    return sorted(path.name.removesuffix(SKELETON_SUFFIX) for path in SHIPPED.glob(f"*{SKELETON_SUFFIX}"))


def similar(name: str, known: list[str]) -> str:
    """Return a question that offers the ``known`` names that are most like ``name``."""
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.4) or known[:10]
    return f"did you mean {', '.join(near)}?"


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """How to write a graph."""

    fingerprint: tuple[int, int]
    precision: str
    has_data_file: bool
    """Whether its weights are in a file of their own."""
    report: Callable[[str], None]
    """Receives one line before each step that takes time."""


@dataclass(frozen=True, kw_only=True)
class BuiltGraph:
    """A graph that has been written, and what its vectors are compared with."""

    files: list[Path]
    """The weights' own file if they have one, then the model."""
    rows: Rows
    """What to check the graph with, the canary last."""
    expected: npt.NDArray[np.float32] | None
    """Unit vectors (M, D) for the first M ``rows``, None if there are none; PyTorch's own of these weights if
    ``other_weights`` is None."""
    other_weights: float | None = None
    """The least cosine to PyTorch that the same graph reached with other weights."""


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """What an export has to know about a model's text tower."""

    config: Mapping[str, Any]
    """The section ``text_cfg`` of open_clip's configuration of the model."""
    logit_scale: float
    logit_bias: float | None
    """See :class:`~preprocess_ensemble.model_repository.passport.TextTower`."""
    weights_bytes: int
    """Size of the text tower in fp32."""

    @classmethod
    def of(cls, config: Mapping[str, Any], state: Mapping[str, npt.NDArray[Any]], weights_bytes: int) -> TextSource:
        """Read the temperature from the state dict ``state``, where it is a single number, or a vector of one."""
        bias = state["logit_bias"].item() if "logit_bias" in state else None
        return cls(
            config=config,
            logit_scale=math.exp(state["logit_scale"].item()),
            logit_bias=bias,
            weights_bytes=weights_bytes,
        )


class ExportableModel(Protocol):
    """A model with weights, ready to be written as graphs: through PyTorch, or from a skeleton."""

    source: ModelSource
    config: PreprocessConfig
    weights_sha256: str
    weights_bytes: int
    """Size of the image tower in fp32."""

    @property
    def text(self) -> TextSource | None:
        """None if it has no text tower."""
        ...

    def build(self, stage: Path, options: GraphOptions) -> BuiltGraph:
        """Write the graph of the image tower into the directory ``stage``. Raises ExportError."""
        ...

    def check_tokenizer(self, tokenizer: Tokenizer, report: Callable[[str], None]) -> None:
        """Raise ExportError if open_clip, where it is installed, has other token ids than ``tokenizer``."""
        ...

    def build_text(self, stage: Path, options: GraphOptions, canary: npt.NDArray[np.int32]) -> BuiltGraph:
        """Write the graph of the text tower into the directory ``stage``; call it after ``build``, if at all.

        ``canary`` (L,) are the token ids of a text. The rows of the result are sample tokens and, last, the canary.
        Raises ExportError.
        """
        ...
