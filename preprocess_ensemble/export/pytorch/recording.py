"""Record a skeleton: export generated weights, which the exporter cannot merge as it does equal ones, and find each."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import onnx
import open_clip
import torch
from onnx import numpy_helper
from torch import nn

from preprocess_ensemble.export import skeleton
from preprocess_ensemble.export.exportable import is_pixels
from preprocess_ensemble.export.model_source import ExportError
from preprocess_ensemble.export.parity import check_pixels
from preprocess_ensemble.export.pytorch.graph import export_graph, tower_vectors
from preprocess_ensemble.export.pytorch.open_clip_model import (
    find_source,
    load_open_clip_model,
    numpy_state,
    preprocessing_of,
    set_generated,
    text_config_of,
    token_kinds,
    uses_quick_gelu,
)
from preprocess_ensemble.export.skeleton import HubWeights, Place, Skeleton, Tower
from preprocess_ensemble.export.state_dict import Array, TensorKind, generate, weights_sha256
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.runtimes.agreement import Rows, sample_tokens

_SEED: Final = 20  # another seed than a skeleton's, so that a value left in the graph changes the vectors
_VISUAL: Final = "visual"  # open_clip's name of the image tower; all other parts are the text tower
_FINGERPRINT: Final = (1_374_802_973, -845_120_687)  # numbers that occur nowhere else in a graph
_PREPROCESSING: Final = ("mean", "std", "interpolation", "resize_mode")
_FLOATS: Final = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)


class NoSkeleton(ExportError):
    """The exporter changes the weights of this model in a way that a recipe cannot express."""


def record_tower(network: nn.Module, rows: Rows, dimension: int, file: Path) -> Tower:
    """Return the tower for such ``rows``, without vectors; overwrite ``file``. Raises NoSkeleton and ExportError."""
    is_image = is_pixels(rows)

    def belongs(name: str) -> bool:
        return (name.partition(".")[0] == _VISUAL) == is_image

    # Copy only the tower, and share the rest with the network.
    parts = (network.named_children(), network.named_parameters(recurse=False), network.named_buffers(recurse=False))
    shared = {id(part): part for some in parts for name, part in some if not belongs(name)}
    clone = copy.deepcopy(network, shared)
    if not is_image:
        setattr(clone, _VISUAL, None)  # otherwise the exporter numbers its weights, too
    set_generated(clone, _SEED, belongs)
    weights = {
        name: tensor.detach().numpy()
        for name, tensor in clone.state_dict().items()
        if belongs(name) and tensor.is_floating_point()
    }
    normalization, constants = None, []
    if is_image:
        mean, std = normalization = generate(skeleton.MEAN, (3,), _SEED), generate(skeleton.STD, (3,), _SEED)
        weights |= {skeleton.MEAN: mean, skeleton.STD: std}
    else:
        # Constants do not depend on the weights, such as the causal mask.
        buffers = clone.named_buffers()
        constants = [buffer.numpy() for name, buffer in buffers if belongs(name) and name not in weights]
    model = export_graph(clone, rows, normalization, dimension=dimension, fingerprint=_FINGERPRINT, file=file)
    # Remove the version of PyTorch, because an export without PyTorch must write the same file.
    model.producer_name, model.producer_version = "clip-triton", ""
    places = _find_places(model, weights, constants)
    for tensor in model.graph.initializer:
        if tensor.name in places:
            tensor.ClearField("raw_data")
    return Tower(graph=model.SerializeToString(deterministic=True), places=places, expected={})


def record_file(model: str, pretrained: str | None, file: Path) -> Skeleton:
    """Record ``model`` into ``file``, with the vectors of the weights ``pretrained``, if given. Raises ExportError."""
    source, untrained = find_source(model, pretrained or "random"), find_source(model, "random")
    network = load_open_clip_model(untrained)
    config, text_config = preprocessing_of(network), text_config_of(untrained.model)
    kinds = {name: _kind(name, tensor) for name, tensor in network.state_dict().items()}
    set_generated(network, skeleton.CHECK_SEED, noise=skeleton.CHECK_NOISE)
    sample = token_kinds(network, text_config)
    towers = []
    temporary = file.with_name(f".{file.name}.onnx")
    try:
        for rows in (check_pixels(config), sample_tokens(*sample)):
            expected = tower_vectors(network, config, rows)
            tower = record_tower(network, rows, expected.shape[1], temporary)
            towers.append(replace(tower, expected={skeleton.GENERATED: expected}))
    finally:
        temporary.unlink(missing_ok=True)
    result = Skeleton(
        model=untrained.model,
        image=towers[0],
        text=towers[1],
        tensors=kinds,
        preprocess=config,
        text_config=text_config,
        token_kinds=sample,
        quick_gelu=uses_quick_gelu(untrained.model),
        tags=_hub_weights(untrained.model, config),
        recorded_with={name: version(name).partition("+")[0] for name in ("torch", "open_clip_torch")},
    )

    if pretrained is not None:
        network = load_open_clip_model(source)
        config = preprocessing_of(network)
        key = skeleton.key_of(result.model, weights_sha256(numpy_state(network)), config)
        result.image.expected[key] = tower_vectors(network, config, check_pixels(config))
        result.text.expected[key] = tower_vectors(network, config, sample_tokens(*result.token_kinds))
    file.write_bytes(result.to_bytes())
    return result


def _kind(name: str, tensor: torch.Tensor) -> TensorKind:
    if tensor.is_floating_point():
        return TensorKind(tuple(tensor.shape))
    if tensor.numel() > 4096:
        raise NoSkeleton(f"The model has a large table of integers, {name}, which a skeleton cannot hold.")
    return TensorKind(tuple(tensor.shape), tuple(tensor.flatten().tolist()))


def _hub_weights(model: str, config: PreprocessConfig) -> dict[str, HubWeights]:
    found = {}
    for tag in open_clip.list_pretrained_tags_by_model(model):
        about = cast("dict[str, Any]", open_clip.get_pretrained_cfg(model, tag))
        repository, _, file = about.get("hf_hub", "").rpartition("/")
        changes: dict[str, Any] = {key: about[key] for key in _PREPROCESSING if key in about}
        if repository:
            found[tag] = HubWeights(
                repository=repository,
                # open_clip looks for this file first.
                file=f"{file.rpartition('.')[0]}.safetensors" if file else "open_clip_model.safetensors",
                preprocess=PreprocessConfig.from_mapping({**config.to_mapping(), **changes}),
                quick_gelu=bool(about.get("quick_gelu", False)),
            )
    return found


def _find_places(model: onnx.ModelProto, weights: Mapping[str, Array], constants: Sequence[Array]) -> dict[str, Place]:
    by_values: dict[tuple[int, float, float], list[tuple[Place, Array]]] = {}
    for place, values in _parts(weights):
        by_values.setdefault(_key(values), []).append((place, values))
    places = {}
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT32:
            if tuple(numpy_helper.to_array(tensor).ravel()) == _FINGERPRINT:
                places[tensor.name] = Place(skeleton.FINGERPRINT)
        elif tensor.data_type in _FLOATS:
            values = numpy_helper.to_array(tensor)
            for place, candidate in by_values.get(_key(values), []) if values.size > 1 else []:
                if np.array_equal(candidate.ravel(), values.ravel()):
                    places[tensor.name] = place
                elif candidate.ndim == 2 and np.array_equal(candidate.T.ravel(), values.ravel()):
                    places[tensor.name] = Place(place.name, place.third, transposed=True)
            if tensor.name not in places and not _is_constant(values, constants):
                raise NoSkeleton(f"The exporter computes {tensor.name} from several weights; there is no skeleton.")
    wanted = {skeleton.FINGERPRINT, *({skeleton.MEAN, skeleton.STD} & weights.keys())}
    nodes = [attribute.t for node in model.graph.node for attribute in node.attribute if node.op_type == "Constant"]
    floats = (numpy_helper.to_array(tensor) for tensor in nodes if tensor.data_type in _FLOATS)
    are_small = all(_is_constant(values, constants) for values in floats)
    if not are_small or not wanted <= {place.name for place in places.values()}:
        raise NoSkeleton("The exporter has changed the normalisation; there is no skeleton.")
    return places


def _is_constant(values: Array, constants: Sequence[Array]) -> bool:
    return values.size <= 1 or any(np.array_equal(values.ravel(), constant.ravel()) for constant in constants)


def _parts(weights: Mapping[str, Array]) -> Iterator[tuple[Place, Array]]:
    for name, values in weights.items():
        yield Place(name), values
        if values.ndim and len(values) % 3 == 0:
            yield from ((place, place.take(values)) for place in (Place(name, third) for third in range(3)))


def _key(values: Array) -> tuple[int, float, float]:
    """Return a key that is equal for equal numbers in any order; comparing all numbers would take minutes."""
    return values.size, float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
