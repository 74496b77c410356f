"""Loads an open_clip model by name and weights, and identifies the weights. The adapter to open_clip."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import open_clip
import torch
from torch import nn

from preprocess_ensemble.errors import ReportedError, first_line
from preprocess_ensemble.imaging.transform import PreprocessConfig

_RANDOM: Final = re.compile(r"random(?::(\d+))?")


class ExportError(ReportedError):
    """The export cannot be done; the repository is unchanged."""


class WrongChoice(ExportError):
    """The model, weights or precision does not exist."""


class WeightsUnavailable(ExportError):
    """The pretrained weights cannot be downloaded."""


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """What to load; the names have been checked."""

    model: str
    pretrained: str
    """As in the passport: a tag, ``file:NAME`` or ``random:SEED``."""
    seed: int | None = None
    checkpoint: Path | None = None


def find_source(model: str, pretrained: str) -> ModelSource:
    """Check the names and return what to load. Raises WrongChoice with similar names."""
    name = _register(Path(model)) if model.endswith(".json") else model
    known = open_clip.list_models()
    if name not in known:
        raise WrongChoice(f"open_clip has no model {name!r}; {_near(name, known)}")
    if match := _RANDOM.fullmatch(pretrained):
        seed = int(match[1] or 0)
        return ModelSource(model=name, pretrained=f"random:{seed}", seed=seed)
    tags = open_clip.list_pretrained_tags_by_model(name)
    if pretrained in tags:
        _check_activation(name, pretrained)
        return ModelSource(model=name, pretrained=pretrained)
    if Path(pretrained).is_file():
        return ModelSource(model=name, pretrained=f"file:{Path(pretrained).name}", checkpoint=Path(pretrained))
    if Path(pretrained).suffix or len(Path(pretrained).parts) > 1:
        raise WrongChoice(f"There is no checkpoint file {pretrained}.")
    raise WrongChoice(f"{name} has no pretrained weights {pretrained!r}; {_near(pretrained, [*tags, 'random'])}")


def _register(path: Path) -> str:
    """Register the model of an open_clip configuration file under the file's name; return that name."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WrongChoice(f"The model file {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise WrongChoice(f"The model file {path} is not JSON: {error}.") from None
    if not isinstance(config, dict) or not {"embed_dim", "vision_cfg", "text_cfg"} <= config.keys():
        raise WrongChoice(
            f"The model file {path} is not an open_clip model: it needs embed_dim, vision_cfg and text_cfg."
        )
    if path.stem not in open_clip.list_models():
        open_clip.add_model_config(path)
    elif open_clip.get_model_config(path.stem) != config:
        raise WrongChoice(f"open_clip has another model named {path.stem!r}; rename {path}.")
    return path.stem


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.4) or known[:10]
    return f"did you mean {', '.join(near)}?"


def _check_activation(name: str, tag: str) -> None:
    """Reject weights with an activation that they were not trained with: open_clip only warns."""
    trained_quick = bool(open_clip.get_pretrained_cfg(name, tag).get("quick_gelu", False))
    if trained_quick == bool((open_clip.get_model_config(name) or {}).get("quick_gelu", False)):
        return
    other = f"{name}-quickgelu" if trained_quick else name.removesuffix("-quickgelu")
    raise WrongChoice(f"The weights {tag!r} were trained with another activation; use --model {other}.")


def load_open_clip_model(source: ModelSource) -> nn.Module:
    """Return the network in fp32, on the CPU, in evaluation mode. Raises ExportError."""
    if source.seed is None and source.checkpoint is None:
        _download(source)
    pretrained = None if source.seed is not None else str(source.checkpoint or source.pretrained)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(source.seed or 0)
            # Never download a text tower: its weights come with the checkpoint, or are random as well.
            network = open_clip.create_model(source.model, pretrained=pretrained, precision="fp32", pretrained_hf=False)
    except Exception as error:  # each checkpoint format has its own errors
        if pretrained is None:
            raise
        reason = first_line(error)
        raise ExportError(f"The weights {pretrained} do not fit the model {source.model}: {reason}.") from error
    network.eval()
    return network  # type: ignore[no-any-return]


def _download(source: ModelSource) -> None:
    """Download the weights of a tag into open_clip's cache. Raises WeightsUnavailable."""
    config = open_clip.get_pretrained_cfg(source.model, source.pretrained)
    try:
        open_clip.download_pretrained(config)
    except Exception as error:  # of huggingface_hub, its HTTP library, urllib, or open_clip itself
        root: BaseException = error
        while deeper := root.__cause__ or root.__context__:
            root = deeper
        tried = config.get("hf_hub", "").rstrip("/") or config.get("url", "")
        raise WeightsUnavailable(
            f"The weights {source.pretrained!r} of {source.model} are not in the cache and cannot be downloaded.\n"
            f"  tried: {tried}\n"
            f"  got:   {first_line(root)}\n"
            "You can use:\n"
            f"  a checkpoint file:   clip-export --model {source.model} --pretrained FILE.safetensors\n"
            f"  a mirror of the hub: HF_ENDPOINT=https://MIRROR clip-export --model {source.model} "
            f"--pretrained {source.pretrained}\n"
            f"  untrained weights:   clip-export --model {source.model} --pretrained random "
            "(enough to try everything out, not to judge similarity)"
        ) from error


def preprocessing_of(network: nn.Module) -> PreprocessConfig:
    """Return the network's preprocessing as open_clip configures it. Raises ExportError if it is not supported."""
    try:
        return PreprocessConfig.from_mapping(open_clip.get_model_preprocess_cfg(network))
    except ValueError as error:
        raise ExportError(f"The model's preprocessing is not supported: {error}") from error


def weights_sha256(network: nn.Module) -> str:
    """Return the SHA-256 over the sorted fp32 state dict (name, shape, bytes), as in the passport."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        values = (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
        digest.update(f"{name}{tuple(values.shape)}".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()
