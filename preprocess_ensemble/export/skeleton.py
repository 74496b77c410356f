"""A skeleton: an exported graph without its weights, and the recipe that fills it from a state dict, without PyTorch.

The exporter gives each tensor of the state dict a place in the graph: as it is, transposed, or one third of it (the
query, key or value part of an attention's input projection). A skeleton records these places, what else an export needs
to know about the model, and vectors that PyTorch computed with generated weights, so that a machine without PyTorch can
check what it has filled. A skeleton file is a zip archive.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx

from preprocess_ensemble.export.model_source import SHIPPED, SKELETON_SUFFIX, WrongChoice, shipped_models, similar
from preprocess_ensemble.export.state_dict import Array, StateDict, TensorKind
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.model_repository.passport import compute_fingerprint

VERSION: Final = 1
MEAN: Final = "preprocess.mean"
STD: Final = "preprocess.std"
FINGERPRINT: Final = "fingerprint"
"""Places of values that are not part of the state dict."""

GENERATED: Final = "generated"
"""Key of the vectors for the weights of CHECK_SEED in ``Skeleton.expected``."""
CHECK_SEED: Final = 1
"""Seed of the generated weights whose vectors a skeleton carries."""
CHECK_NOISE: Final = 0.5
"""Their norms and biases differ so much that two that are swapped in the graph change the vectors."""

_DATE: Final = (1980, 1, 1, 0, 0, 0)
"""A fixed date for each member of the archive, so equal skeletons are equal files."""


@dataclass(frozen=True)
class Place:
    """Where the values of one initializer come from."""

    name: str
    third: int | None = None
    """Which third of the first axis; None: the whole tensor."""
    transposed: bool = False

    def take(self, values: Array) -> Array:
        """Return the part of ``values``, the whole tensor, that belongs here, with its axes in order."""
        if self.third is not None:
            rows = len(values) // 3
            values = values[self.third * rows : (self.third + 1) * rows]
        return values.T if self.transposed else values


@dataclass(frozen=True)
class HubWeights:
    """Pretrained weights on the Hugging Face hub."""

    repository: str
    file: str
    preprocess: PreprocessConfig
    quick_gelu: bool


@dataclass(frozen=True, kw_only=True)
class Skeleton:
    """A graph without weights and everything that is needed to fill and check it."""

    model: str
    graph: bytes
    """A serialized ``ModelProto``; the initializers that are named in ``places`` have no values."""
    places: Mapping[str, Place]
    """Name of an initializer -> where its values come from."""
    tensors: Mapping[str, TensorKind]
    """The complete state dict, text tower included: the passport's hash covers it."""
    preprocess: PreprocessConfig
    """For weights from a file and untrained ones."""
    quick_gelu: bool
    tags: Mapping[str, HubWeights]
    recorded_with: Mapping[str, str]
    """Package -> version."""
    expected: Mapping[str, npt.NDArray[np.float32]]
    """PyTorch's vectors (9, D) for :func:`~preprocess_ensemble.export.parity.check_pixels`: those of generated weights
    under GENERATED, those of trained weights under their :func:`key_of`."""

    @property
    def weights_bytes(self) -> int:
        """Size of the filled initializers."""
        model = onnx.load_from_string(self.graph)
        return sum(4 * int(np.prod(tensor.dims)) for tensor in model.graph.initializer if tensor.name in self.places)

    def to_bytes(self) -> bytes:
        """Return the skeleton file; :meth:`from_bytes` reads it."""
        recipe = {
            "skeleton": VERSION,
            "model": self.model,
            "recorded_with": dict(self.recorded_with),
            "quick_gelu": self.quick_gelu,
            "preprocess": self.preprocess.to_mapping(),
            "tags": {tag: asdict(weights) for tag, weights in self.tags.items()},
            "places": {name: [place.name, place.third, place.transposed] for name, place in self.places.items()},
            "tensors": {name: [list(kind.shape), kind.integers] for name, kind in self.tensors.items()},
            "expected": list(self.expected),
        }
        vectors = io.BytesIO()
        np.save(vectors, np.stack(list(self.expected.values())))
        members = {
            "recipe.json": json.dumps(recipe, indent=0).encode("ascii"),
            "graph.onnx": self.graph,
            "vectors.npy": vectors.getvalue(),
        }
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(name, _DATE), data, zipfile.ZIP_DEFLATED, 9)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Skeleton:
        """Read what :meth:`to_bytes` returned. Raises ``ValueError`` for anything else."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                recipe = json.loads(archive.read("recipe.json"))
                graph = archive.read("graph.onnx")
                vectors = np.load(io.BytesIO(archive.read("vectors.npy")), allow_pickle=False)
            if recipe["skeleton"] != VERSION:
                raise ValueError(f"it has version {recipe['skeleton']!r}, and this package reads version {VERSION}")
            return cls(
                model=recipe["model"],
                graph=graph,
                places={name: Place(*place) for name, place in recipe["places"].items()},
                tensors={
                    name: TensorKind(tuple(shape), None if integers is None else tuple(integers))
                    for name, (shape, integers) in recipe["tensors"].items()
                },
                preprocess=PreprocessConfig.from_mapping(recipe["preprocess"]),
                quick_gelu=recipe["quick_gelu"],
                tags={tag: _tag_from_json(weights) for tag, weights in recipe["tags"].items()},
                recorded_with=recipe["recorded_with"],
                expected=dict(zip(recipe["expected"], vectors, strict=True)),
            )
        except (zipfile.BadZipFile, KeyError, TypeError) as error:
            raise ValueError(f"it is not complete ({type(error).__name__}: {error})") from error


def fill(
    graph: bytes,
    places: Mapping[str, Place],
    state: StateDict,
    config: PreprocessConfig,
    fingerprint: tuple[int, int],
) -> onnx.ModelProto:
    """Return the ``graph`` of a skeleton with its values.

    They come from ``state``, which must have the names and shapes of the skeleton's ``tensors``, from the mean and std
    of ``config``, and from ``fingerprint``.
    """
    others: dict[str, Array] = {
        MEAN: np.array(config.mean, np.float32),
        STD: np.array(config.std, np.float32),
        FINGERPRINT: np.array(fingerprint, np.int32),
    }
    model = onnx.load_from_string(graph)
    for tensor in model.graph.initializer:
        if (place := places.get(tensor.name)) is not None:
            values = place.take(others[place.name] if place.name in others else state[place.name])
            tensor.raw_data = values.astype(values.dtype.newbyteorder("<")).tobytes()
    return model


def key_of(model: str, weights_sha256: str, config: PreprocessConfig) -> str:
    """Return the key of the vectors of these weights in ``Skeleton.expected``."""
    identity = compute_fingerprint(
        model=model, weights_sha256=weights_sha256, preprocess=config.to_mapping(), precision="fp32"
    )
    return f"{identity[0]},{identity[1]}"


def find_skeleton(model: str) -> Skeleton:
    """Return the skeleton of ``model``: the name of a model that is part of this package, or a skeleton file's path.

    Raises WrongChoice.
    """
    if not model.endswith(SKELETON_SUFFIX):
        known = shipped_models()
        if model not in known:
            raise WrongChoice(
                f"Exporting {model} needs PyTorch: pip install 'clip-triton[export]'. Without it: "
                f"{similar(model, known)}"
            )
        path = SHIPPED / f"{model}{SKELETON_SUFFIX}"
    else:
        path = Path(model)
    try:
        return Skeleton.from_bytes(path.read_bytes())
    except OSError as error:
        raise WrongChoice(f"The skeleton {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise WrongChoice(f"{path} is not a skeleton: {error}.") from None


def _tag_from_json(document: Mapping[str, Any]) -> HubWeights:
    return HubWeights(**{**document, "preprocess": PreprocessConfig.from_mapping(document["preprocess"])})
