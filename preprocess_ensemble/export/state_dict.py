"""The tensors of a model by name, as NumPy arrays in fp32: read from a checkpoint, generated from a seed, or hashed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from preprocess_ensemble.errors import first_line, pip_install
from preprocess_ensemble.export.model_source import ExportError

Array = npt.NDArray[Any]
StateDict = Mapping[str, Array]

NOISE: Final = 0.01  # largest distance of norms and biases from a fresh network's 1 and 0; makes all tensors different


def weights_sha256(state: StateDict) -> str:
    """Return the SHA-256 over the sorted fp32 state dict (name, shape, bytes), for the passport."""
    digest = hashlib.sha256()
    for name in sorted(state):
        values = state[name]
        digest.update(f"{name}{tuple(values.shape)}".encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def generate(name: str, shape: tuple[int, ...], seed: int, noise: float = NOISE) -> npt.NDArray[np.float32]:
    """Return the untrained weights of the tensor ``name``: uniform fp32 numbers with the scale of open_clip's own.

    The numbers depend only on the name and the seed. They are made from the raw output of a NumPy bit generator, which
    is the same in every release and on every machine, unlike NumPy's distributions.
    """
    count = math.prod(shape)
    key = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:16], "little")
    bits = np.random.PCG64(key).random_raw((count + 1) // 2).astype("<u8").view("<u4")[:count]
    values: npt.NDArray[np.float32] = (bits >> 8).astype(np.float32)
    values *= np.float32(2**-23)
    values -= np.float32(1)
    center, bound = _scale(name, shape, noise)
    values *= np.float32(bound)
    values += np.float32(center)
    return values.reshape(shape)


def _scale(name: str, shape: tuple[int, ...], noise: float) -> tuple[float, float]:
    last = name.rpartition(".")[2]
    if last.endswith("embedding"):
        return 0.0, math.sqrt(3 / shape[-1])
    if last.endswith(("bias", "mean")):
        return 0.0, noise
    if len(shape) < 2:
        return 1.0, noise  # the weight of a layer norm
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    return 0.0, bound * math.sqrt(1.5) if last == "in_proj_weight" else bound


class TensorKind(NamedTuple):
    shape: tuple[int, ...]
    integers: tuple[int, ...] | None = None  # values of an integer buffer, which checkpoints do not change


class _Tensors(Mapping[str, Array]):
    """A state dict whose float tensors are made each time they are read, by ``floats(name, shape)``."""

    def __init__(self, kinds: Mapping[str, TensorKind], floats: Callable[[str, tuple[int, ...]], Array]) -> None:
        self._kinds = kinds
        self._floats = floats

    def __getitem__(self, name: str) -> Array:
        kind = self._kinds[name]
        if kind.integers is not None:
            return np.array(kind.integers, np.int64).reshape(kind.shape)
        return self._floats(name, kind.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


def generated_weights(kinds: Mapping[str, TensorKind], seed: int, noise: float = NOISE) -> StateDict:
    return _Tensors(kinds, partial(generate, seed=seed, noise=noise))


def read_checkpoint(path: Path, model: str, kinds: Mapping[str, TensorKind]) -> StateDict:
    """Return a safetensors file's state dict, memory-mapped, in fp32. Raises ExportError, also for other tensors."""
    import ml_dtypes  # noqa: F401  gives NumPy the dtype bfloat16

    if path.suffix != ".safetensors":
        raise ExportError(f"Reading {path.name} needs PyTorch: {pip_install('export')}, or use a .safetensors file.")
    try:
        file = cast("Any", safe_open(path, framework="numpy"))
    except (SafetensorError, OSError) as error:
        raise ExportError(f"The weights {path} cannot be read: {first_line(error)}.") from error
    names = set(file.keys())
    # Remove the prefix of files from distributed training, as open_clip does.
    prefix = "module." if names and all(name.startswith("module.") for name in names) else ""
    shapes = {name.removeprefix(prefix): tuple(file.get_slice(name).get_shape()) for name in names}
    if problem := _difference(shapes, kinds):
        raise ExportError(f"The weights {path} do not fit the model {model}: {problem}.")

    def floats(name: str, shape: tuple[int, ...]) -> Array:
        values: Array = file.get_tensor(prefix + name)
        # Some checkpoints hold a single number as a vector of length one.
        return values.astype(np.float32, copy=False).reshape(shape)

    return _Tensors(kinds, floats)


def _difference(shapes: Mapping[str, tuple[int, ...]], kinds: Mapping[str, TensorKind]) -> str:
    needed = {name: kind.shape for name, kind in kinds.items() if kind.integers is None}
    if missing := sorted(needed.keys() - shapes.keys()):
        return f"{missing[0]} and {len(missing) - 1} more are missing" if missing[1:] else f"{missing[0]} is missing"
    if unknown := sorted(shapes.keys() - kinds.keys()):
        return f"it has no {unknown[0]}"
    for name, wanted in sorted(needed.items()):
        shape = shapes[name]
        if shape != wanted and not (math.prod(shape) == math.prod(wanted) == 1):
            return f"{name} has the shape {list(shape)}, not {list(wanted)}"
    return ""
