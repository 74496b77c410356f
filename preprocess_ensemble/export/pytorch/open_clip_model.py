"""The adapter to open_clip: it loads a model by name and weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import open_clip
import torch
from open_clip.tokenizer import DEFAULT_CONTEXT_LENGTH
from torch import nn

from preprocess_ensemble.errors import first_line
from preprocess_ensemble.export.hub import weights_unavailable
from preprocess_ensemble.export.model_source import (
    ExportError,
    ModelSource,
    WrongChoice,
    check_activation,
    choose_weights,
    similar,
)
from preprocess_ensemble.export.state_dict import NOISE, Array, generate
from preprocess_ensemble.imaging.transform import PreprocessConfig


def find_source(model: str, pretrained: str) -> ModelSource:
    name = _register(Path(model)) if model.endswith(".json") else model
    known = open_clip.list_models()
    if name not in known:
        raise WrongChoice(f"open_clip has no model {name!r}; {similar(name, known)}")
    source = choose_weights(name, pretrained, open_clip.list_pretrained_tags_by_model(name))
    if source.seed is None and source.checkpoint is None:
        check_activation(
            name,
            pretrained,
            trained_quick=bool(open_clip.get_pretrained_cfg(name, pretrained).get("quick_gelu", False)),
            model_quick=uses_quick_gelu(name),
        )
    return source


def uses_quick_gelu(name: str) -> bool:
    return bool((open_clip.get_model_config(name) or {}).get("quick_gelu", False))


def _register(path: Path) -> str:
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


def load_open_clip_model(source: ModelSource) -> nn.Module:
    """Return the network in fp32, on the CPU, in evaluation mode. Raises ExportError."""
    if source.seed is None and source.checkpoint is None:
        config = open_clip.get_pretrained_cfg(source.model, source.pretrained)
        try:
            open_clip.download_pretrained(config)
        except Exception as error:  # errors of huggingface_hub, its HTTP library, urllib or open_clip
            tried = config.get("hf_hub", "").rstrip("/") or config.get("url", "")
            raise weights_unavailable(source.model, source.pretrained, tried=tried, error=error) from error
    _require_transformer(source.model)
    pretrained = None if source.seed is not None else str(source.checkpoint or source.pretrained)
    try:
        with torch.random.fork_rng(devices=[]):
            # Do not download a text tower: its weights come with the checkpoint, or are random, too.
            network = open_clip.create_model(source.model, pretrained=pretrained, precision="fp32", pretrained_hf=False)
    except Exception as error:  # each checkpoint format has its own errors
        if pretrained is None:
            raise
        reason = first_line(error)
        raise ExportError(f"The weights {pretrained} do not fit the model {source.model}: {reason}.") from error
    if source.seed is not None:
        # Use generated weights instead of PyTorch's random numbers, so that an export without PyTorch has the same.
        set_generated(network, source.seed)
    network.eval()
    return network  # type: ignore[no-any-return]


def _require_transformer(model: str) -> None:
    name = text_config_of(model).get("hf_model_name")
    if not name:
        return
    try:
        from transformers import AutoConfig

        AutoConfig.from_pretrained(name)
    except ModuleNotFoundError:
        raise ExportError(f"The text tower of {model} needs transformers: pip install transformers") from None
    except (OSError, ValueError) as error:
        raise ExportError(
            f"The text tower of {model} has the configuration of {name}, which is not in the cache and cannot be "
            f"downloaded ({first_line(error)}). Use a mirror of the hub (HF_ENDPOINT), or a copy of its config.json in "
            "a folder, whose path is the hf_model_name in a copy of the model's configuration."
        ) from None


def set_generated(
    network: nn.Module, seed: int, belongs: Callable[[str], bool] = lambda name: True, *, noise: float = NOISE
) -> None:
    """Set each float tensor of ``network`` whose name ``belongs`` to the generated weights of that name."""
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if belongs(name) and tensor.is_floating_point():
                tensor.copy_(torch.from_numpy(generate(name, tuple(tensor.shape), seed, noise)))


def numpy_state(network: nn.Module) -> dict[str, Array]:
    """Return the fp32 state dict of ``network`` as NumPy arrays. They share its memory if it is in fp32."""
    return {
        name: (tensor.float() if tensor.is_floating_point() else tensor).detach().cpu().numpy()
        for name, tensor in network.state_dict().items()
    }


def preprocessing_of(network: nn.Module) -> PreprocessConfig:
    try:
        return PreprocessConfig.from_mapping(open_clip.get_model_preprocess_cfg(network))
    except ValueError as error:
        raise ExportError(f"The model's preprocessing is not supported: {error}") from error


def text_config_of(model: str) -> dict[str, Any]:
    return dict((open_clip.get_model_config(model) or {})["text_cfg"])


def token_kinds(network: nn.Module, text_config: Mapping[str, Any]) -> tuple[int, int, int]:
    tower = cast("Any", getattr(network, "text", network))
    # A tower of transformers has its own configuration. CLIP's tower pads with 0 and has no such setting.
    padding = tower.config.pad_token_id if hasattr(tower, "config") else getattr(tower, "pad_id", 0)
    return int(text_config.get("context_length", DEFAULT_CONTEXT_LENGTH)), int(tower.vocab_size), int(padding)
