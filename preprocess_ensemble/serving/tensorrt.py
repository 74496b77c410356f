"""``clip-serve --tensorrt``: a repository whose image encoder runs on TensorRT, and a check that this machine has it.

Clients use the same model names as without TensorRT. The repository itself does not change: a staged one links to its
models and has another config.pbtxt for the encoder, derived from the repository's own. A text tower stays on CUDA.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import ctypes.util
import hashlib
import importlib.metadata
import importlib.util
import re
import shutil
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

from preprocess_ensemble.contract import ENCODER
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.config import ModelConfig, config_text, installed_passport, read_config
from preprocess_ensemble.tritonserver import Triton, find_triton

PRECISIONS: Final = ("fp16", "fp32")

_WORKSPACE_BYTES: Final = 4 * 2**30
_PROVIDER: Final = "libonnxruntime_providers_tensorrt.so"
_REMEDY: Final = "start clip-serve without --tensorrt, which runs the model on CUDA or the CPU"


class TensorrtMissing(ReportedError):
    """TensorRT cannot be used on this machine."""


def default_cache() -> Path:
    """Return the default directory for engines, in the user's cache."""
    return user_cache_path("clip-triton", appauthor=False) / "tensorrt"


def on_tensorrt(encoder: ModelConfig, *, cache: str, precision: str) -> ModelConfig:
    """Return a copy of an encoder's configuration that runs it on TensorRT, with one instance per GPU.

    The shape profile lists every input from one row to ``max_batch_size``, so that all batch sizes share one engine.
    Layer normalisation stays fp32: in fp16 its sums overflow for some images. ``cache`` is a folder.
    """
    config = copy.deepcopy(encoder)
    for group in config.instance_group:
        group.kind = group.KIND_GPU
    config.optimization.ClearField("execution_accelerators")
    accelerator = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="tensorrt")
    most = config.max_batch_size
    accelerator.parameters.update(
        {
            "precision_mode": precision.upper(),
            "max_workspace_size_bytes": str(_WORKSPACE_BYTES),
            "trt_engine_cache_enable": "true",
            "trt_engine_cache_path": cache,
            "trt_timing_cache_enable": "true",
            "trt_timing_cache_path": cache,
            "trt_layer_norm_fp32_fallback": "true",
            "trt_profile_min_shapes": _profile(config, 1),
            "trt_profile_opt_shapes": _profile(config, most),
            "trt_profile_max_shapes": _profile(config, most),
        }
    )
    return config


def _profile(config: ModelConfig, rows: int) -> str:
    return ",".join(f"{tensor.name}:{'x'.join(map(str, (rows, *tensor.dims)))}" for tensor in config.input)


def stage_repository(repository: Path, directory: Path, *, cache: Path, precision: str) -> None:
    """Make ``directory`` a model repository that is ``repository`` with its encoder on TensorRT.

    What ``directory`` held is removed. Each engine has a folder in ``cache`` whose name depends on the weights: ONNX
    Runtime finds engines by the graph's form only, and would run the engine of other weights. Raises ReportedError.
    """
    repository = repository.resolve()
    passport = installed_passport(repository)
    if passport is None:
        raise ReportedError(f"{repository} has no complete model: run `clip-export --repository {repository}`.")
    encoder, staged = repository / ENCODER, directory / ENCODER
    config = read_config(encoder / "config.pbtxt")
    shutil.rmtree(directory, ignore_errors=True)  # of an earlier start; what its links lead to stays
    models = [model for model in repository.iterdir() if model != encoder and (model / "config.pbtxt").is_file()]
    versions = [version for version in encoder.iterdir() if version.is_dir()]
    for parent, targets in ((directory, models), (staged, versions)):
        parent.mkdir(parents=True, exist_ok=True)
        for target in targets:
            (parent / target.name).symlink_to(target)
    made_of = f"{passport.weights_sha256} {passport.precision} {config.max_batch_size} {_runtime(find_triton())}"
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:12]
    engines = cache.resolve() / f"{re.sub(r'[^A-Za-z0-9.-]', '_', passport.model)}-{precision}-{digest}"
    engines.mkdir(parents=True, exist_ok=True)
    text = config_text(on_tensorrt(config, cache=str(engines), precision=precision))
    (staged / "config.pbtxt").write_text(text, encoding="utf-8")


def _runtime(triton: Triton) -> str:
    """What an engine depends on besides the model; ONNX Runtime itself distinguishes GPUs."""
    if triton.cpp_backend:
        return f"triton {triton.version}"
    versions = dict.fromkeys(("onnxruntime-gpu", "tensorrt-cu12", "tensorrt-cu13"), "")
    for name in versions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return " ".join(f"{name} {version}" for name, version in versions.items())


def check_tensorrt() -> None:
    """Raise ``TensorrtMissing`` unless the server of this machine can run TensorRT."""
    if not usable_gpus():
        raise TensorrtMissing(
            "TensorRT needs an NVIDIA GPU and its driver, and this machine has none (in a container: docker run "
            f"--gpus all): {_REMEDY}."
        )
    triton = find_triton()
    library = _provider(triton)
    if not library.is_file():
        remedy = (
            "use a Triton image whose ONNX Runtime backend has one"
            if triton.cpp_backend
            else "run `pip uninstall onnxruntime` and `pip install onnxruntime-gpu`"
        )
        raise TensorrtMissing(f"ONNX Runtime has no TensorRT provider ({library}): {remedy}, or {_REMEDY}.")
    needed = re.search(rb"libnvinfer\.so\.(\d+)", library.read_bytes())
    if needed is not None and not _loads(name := needed[0].decode(), triton):
        major = needed[1].decode()
        raise TensorrtMissing(
            f"ONNX Runtime's TensorRT provider needs {name}, which is not installed: run "
            f"`pip install 'tensorrt-cu13=={major}.*'` (tensorrt-cu12 for CUDA 12), use the container of "
            f"containers/Dockerfile's target tensorrt, or {_REMEDY}."
        )


def usable_gpus() -> int:
    """Return how many GPUs the driver shows; 0 without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def _provider(triton: Triton) -> Path:
    if triton.cpp_backend:
        return triton.cpp_backend / _PROVIDER
    # Not imported: that would take most of a second and 100 MB in a process that never runs a model.
    spec = importlib.util.find_spec("onnxruntime")
    package = Path(spec.origin).parent if spec is not None and spec.origin else Path("onnxruntime")
    return package / "capi" / _PROVIDER


def _loads(library: str, triton: Triton) -> bool:
    if triton.libraries is not None and (triton.libraries / library).is_file():
        return True
    spec = importlib.util.find_spec("tensorrt_libs")
    if spec is not None and spec.origin and (Path(spec.origin).parent / library).is_file():
        return True
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
