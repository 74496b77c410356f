"""A skeleton: exported graphs without their weights, and the recipe that fills them from a state dict, without PyTorch.

Each tensor of the state dict has a place in a graph: as it is, transposed, or one third of it (the query, key or value
part of an attention's input projection). Vectors that PyTorch computed with generated weights check a filled graph.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx

from preprocess_ensemble.errors import pip_install
from preprocess_ensemble.export import parity
from preprocess_ensemble.export.exportable import BuiltGraph, ExportableModel, GraphOptions, is_pixels
from preprocess_ensemble.export.hub import download_weights
from preprocess_ensemble.export.model_source import (
    SHIPPED,
    SKELETON_SUFFIX,
    WrongChoice,
    check_activation,
    choose_weights,
    shipped_models,
    similar,
)
from preprocess_ensemble.export.onnx_file import save
from preprocess_ensemble.export.state_dict import Array, StateDict, TensorKind, generated_weights, read_checkpoint
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.model_repository.config import MODEL_FILE
from preprocess_ensemble.model_repository.passport import compute_fingerprint
from preprocess_ensemble.runtimes.agreement import Rows, checked_vectors
from preprocess_ensemble.runtimes.onnx_session import open_session

VERSION: Final = 2
MEAN: Final = "preprocess.mean"
STD: Final = "preprocess.std"
FINGERPRINT: Final = "fingerprint"

GENERATED: Final = "generated"  # key of the vectors for the weights of CHECK_SEED in ``Tower.expected``
CHECK_SEED: Final = 1
CHECK_NOISE: Final = 0.5  # norms and biases differ so much that two swapped tensors change the vectors

Vectors = npt.NDArray[np.float32]

_DATE: Final = (1980, 1, 1, 0, 0, 0)  # date of each member, so that equal skeletons are equal files


class Place(NamedTuple):
    """The source of the values of one initializer."""

    name: str
    third: int | None = None  # number of the third of the first axis, from 0; None for the whole tensor
    transposed: bool = False

    def take(self, values: Array) -> Array:
        """Return the part of the whole tensor ``values`` that belongs to this place, with its axes in order."""
        if self.third is not None:
            rows = len(values) // 3
            values = values[self.third * rows : (self.third + 1) * rows]
        return values.T if self.transposed else values


@dataclass(frozen=True)
class HubWeights:
    repository: str
    file: str
    preprocess: PreprocessConfig
    quick_gelu: bool


@dataclass(frozen=True, kw_only=True)
class Tower:
    graph: bytes  # a serialized ``ModelProto``; the initializers in ``places`` have no values
    places: Mapping[str, Place]  # name of an initializer -> source of its values
    expected: dict[str, Vectors]
    """GENERATED, or :func:`key_of` trained weights -> PyTorch's vectors with these weights: (9, D) for
    :func:`~.parity.check_pixels`, (4, D) for :func:`.sample_tokens`."""

    @property
    def weights_bytes(self) -> int:
        model = onnx.load_from_string(self.graph)
        return sum(4 * int(np.prod(tensor.dims)) for tensor in model.graph.initializer if tensor.name in self.places)


@dataclass(frozen=True, kw_only=True)
class Skeleton:
    """Graphs without weights and everything that is needed to fill and check them. Its file is a zip archive."""

    model: str
    image: Tower
    text: Tower
    tensors: Mapping[str, TensorKind]  # the complete state dict of both towers, which the passport's hash covers
    preprocess: PreprocessConfig  # preprocessing of weights from a file and untrained weights
    text_config: Mapping[str, Any]  # the section ``text_cfg`` of open_clip's configuration
    token_kinds: tuple[int, int, int]  # length of the context, size of the vocabulary, id of the padding
    quick_gelu: bool
    tags: Mapping[str, HubWeights]
    recorded_with: Mapping[str, str]

    def to_bytes(self) -> bytes:
        towers = {"image": self.image, "text": self.text}
        recipe = {
            "skeleton": VERSION,
            "model": self.model,
            "recorded_with": dict(self.recorded_with),
            "quick_gelu": self.quick_gelu,
            "preprocess": self.preprocess.to_mapping(),
            "text_config": dict(self.text_config),
            "token_kinds": self.token_kinds,
            "tags": {tag: asdict(weights) for tag, weights in self.tags.items()},
            "tensors": dict(self.tensors),
            "towers": {
                name: {"places": dict(tower.places), "expected": list(tower.expected)} for name, tower in towers.items()
            },
        }
        members = {"recipe.json": json.dumps(recipe, indent=0).encode("ascii")}
        for name, tower in towers.items():
            vectors = io.BytesIO()
            np.save(vectors, np.stack(list(tower.expected.values())))
            members |= {f"{name}.onnx": tower.graph, f"{name}.npy": vectors.getvalue()}
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(name, _DATE), data, zipfile.ZIP_DEFLATED, 9)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Skeleton:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                recipe = json.loads(archive.read("recipe.json"))
                if recipe["skeleton"] != VERSION:
                    raise ValueError(f"it has version {recipe['skeleton']!r}, and this package reads version {VERSION}")
                image, text = (_read_tower(archive, name, recipe["towers"][name]) for name in ("image", "text"))
            return cls(
                model=recipe["model"],
                image=image,
                text=text,
                tensors={
                    name: TensorKind(tuple(shape), None if integers is None else tuple(integers))
                    for name, (shape, integers) in recipe["tensors"].items()
                },
                preprocess=PreprocessConfig.from_mapping(recipe["preprocess"]),
                text_config=recipe["text_config"],
                token_kinds=tuple(recipe["token_kinds"]),
                quick_gelu=recipe["quick_gelu"],
                tags={
                    tag: HubWeights(**weights | {"preprocess": PreprocessConfig.from_mapping(weights["preprocess"])})
                    for tag, weights in recipe["tags"].items()
                },
                recorded_with=recipe["recorded_with"],
            )
        except (zipfile.BadZipFile, KeyError, TypeError) as error:
            raise ValueError(f"it is not complete ({type(error).__name__}: {error})") from error


def _read_tower(archive: zipfile.ZipFile, name: str, recipe: Mapping[str, Any]) -> Tower:
    vectors = np.load(io.BytesIO(archive.read(f"{name}.npy")), allow_pickle=False)
    return Tower(
        graph=archive.read(f"{name}.onnx"),
        places={name: Place(*place) for name, place in recipe["places"].items()},
        expected=dict(zip(recipe["expected"], vectors, strict=True)),
    )


def fill(
    tower: Tower, state: StateDict, fingerprint: tuple[int, int], config: PreprocessConfig | None = None
) -> onnx.ModelProto:
    """Return the graph of ``tower`` with the values of ``state``, for images also with mean and std of ``config``."""
    others: dict[str, Array] = {FINGERPRINT: np.array(fingerprint, np.int32)}
    if config is not None:
        others |= {MEAN: np.array(config.mean, np.float32), STD: np.array(config.std, np.float32)}
    model = onnx.load_from_string(tower.graph)
    for tensor in model.graph.initializer:
        if (place := tower.places.get(tensor.name)) is not None:
            values = place.take(others[place.name] if place.name in others else state[place.name])
            tensor.raw_data = values.astype(values.dtype.newbyteorder("<")).tobytes()
    return model


def key_of(model: str, weights_sha256: str, config: PreprocessConfig) -> str:
    identity = compute_fingerprint(
        model=model, weights_sha256=weights_sha256, preprocess=config.to_mapping(), weights_dtype="fp32"
    )
    return f"{identity[0]},{identity[1]}"


def find_skeleton(model: str) -> Skeleton:
    """Return the skeleton of ``model``: a shipped model's name, or a skeleton file's path. Raises WrongChoice."""
    path = Path(model)
    if not model.endswith(SKELETON_SUFFIX):
        known = shipped_models()
        if model not in known:
            raise WrongChoice(
                f"Exporting {model} needs PyTorch: {pip_install('export')}. Without it: {similar(model, known)}"
            )
        path = SHIPPED / f"{model}{SKELETON_SUFFIX}"
    try:
        return Skeleton.from_bytes(path.read_bytes())
    except OSError as error:
        raise WrongChoice(f"The skeleton {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise WrongChoice(f"{path} is not a skeleton: {error}.") from None


class SkeletonModel(ExportableModel):
    """A skeleton and the weights that fill it. ``model`` is as in :func:`find_skeleton`. Raises ExportError."""

    def __init__(self, model: str, pretrained: str) -> None:
        self._skeleton = skeleton = find_skeleton(model)
        source = choose_weights(skeleton.model, pretrained, skeleton.tags)
        config, path = skeleton.preprocess, source.checkpoint
        if source.seed is None and path is None:
            weights = skeleton.tags[pretrained]
            check_activation(
                source.model, pretrained, trained_quick=weights.quick_gelu, model_quick=skeleton.quick_gelu
            )
            config = weights.preprocess
            path = download_weights(source.model, pretrained, weights.repository, weights.file)
        if path is not None:
            self._state = read_checkpoint(path, source.model, skeleton.tensors)
        else:
            assert source.seed is not None, "weights are random, a tag or a file"
            self._state = generated_weights(skeleton.tensors, source.seed)
        super().__init__(
            source=source,
            config=config,
            text_config=skeleton.text_config,
            state=self._state,
            image_bytes=skeleton.image.weights_bytes,
            text_bytes=skeleton.text.weights_bytes,
        )

    @property
    def token_kinds(self) -> tuple[int, int, int]:
        return self._skeleton.token_kinds

    def build(self, rows: Rows, stage: Path, options: GraphOptions) -> BuiltGraph:
        if options.weights_dtype == "fp16" or options.has_data_file:
            what = "fp16" if options.weights_dtype == "fp16" else "Writing the weights to a separate file"
            raise WrongChoice(f"{what} needs PyTorch: {pip_install('export')}.")
        skeleton, file = self._skeleton, stage / MODEL_FILE
        # The recorded vectors of generated weights belong to the skeleton's own preprocessing.
        tower, config, own_config, own_rows = skeleton.text, None, None, rows[:-1]
        if is_pixels(rows):
            tower, config, own_config = skeleton.image, self.config, skeleton.preprocess
            own_rows = parity.check_pixels(own_config)
        other_weights = None
        expected = tower.expected.get(key_of(self.source.model, self.weights_sha256, self.config))
        if expected is None:
            options.report("comparing the graph with PyTorch's recorded vectors")
            generated = generated_weights(skeleton.tensors, CHECK_SEED, CHECK_NOISE)
            save(fill(tower, generated, options.fingerprint, own_config), file)
            recorded = tower.expected[GENERATED]
            other_weights, _ = parity.check(open_session(file), own_rows, recorded, options.fingerprint, "fp32")
        options.report("filling the graph")
        save(fill(tower, self._state, options.fingerprint, config), file)
        if expected is None and options.weights_dtype != "fp32":
            expected = checked_vectors(open_session(file), rows, options.fingerprint)
        return BuiltGraph(files=[file], expected=expected, other_weights=other_weights)
