"""Checks that this machine has what a repository needs: a GPU, and TensorRT if an encoder is to run on it."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import re
from pathlib import Path
from typing import Final

from clip_client.serving.config import ServeConfig
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.config import read_config
from preprocess_ensemble.model_repository.tensorrt import engine_cache
from preprocess_ensemble.tritonserver.installation import Triton

_PROVIDER: Final = "libonnxruntime_providers_tensorrt.so"
_REMEDY: Final = "serve a repository that was exported without --tensorrt"


def check_gpu(config: ServeConfig, triton: Triton) -> None:
    """Raise ReportedError if an encoder needs a GPU, or TensorRT, that is missing; make the folders of engines."""
    encoders = [name for names in config.names for name in (names.encoder, names.text_encoder)]
    for path in filter(Path.is_file, (config.repository / name / "config.pbtxt" for name in encoders)):
        encoder = read_config(path)
        if any(group.kind == group.KIND_GPU for group in encoder.instance_group) and not usable_gpus():
            raise ReportedError(
                f"{path} needs an NVIDIA GPU, but the driver of this machine finds none (in a container: docker run "
                "--gpus all): use a machine with a GPU, or export into another repository."
            )
        if (cache := engine_cache(encoder)) and usable_gpus():
            check_tensorrt(triton)
            cache.mkdir(parents=True, exist_ok=True)  # ONNX Runtime creates only the last folder of a path


def check_tensorrt(triton: Triton | None) -> None:
    """Raise ReportedError if this server, or with None this Python itself, lacks the libraries of TensorRT."""
    library = _provider(triton)
    if not library.is_file():
        remedy = (
            "use a Triton image whose ONNX Runtime backend has one"
            if triton and triton.cpp_backend
            else "run `pip uninstall onnxruntime` and `pip install onnxruntime-gpu`"
        )
        raise ReportedError(f"ONNX Runtime has no TensorRT provider ({library}): {remedy}, or {_REMEDY}.")
    needed = re.search(rb"libnvinfer\.so\.(\d+)", library.read_bytes())
    if needed is not None and not _loads(name := needed[0].decode(), triton):
        raise ReportedError(
            f"ONNX Runtime's TensorRT provider needs {name}, which is not installed: run "
            f"`pip install 'tensorrt-cu13=={needed[1].decode()}.*'` (tensorrt-cu12 for CUDA 12), use the container of "
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


def _provider(triton: Triton | None) -> Path:
    if triton and triton.cpp_backend:
        return triton.cpp_backend / _PROVIDER
    # Not imported: that would take most of a second and 100 MB in a process that never runs a model.
    spec = importlib.util.find_spec("onnxruntime")
    package = Path(spec.origin).parent if spec is not None and spec.origin else Path("onnxruntime")
    return package / "capi" / _PROVIDER


def _loads(library: str, triton: Triton | None) -> bool:
    if triton and triton.libraries and (triton.libraries / library).is_file():
        return True
    spec = importlib.util.find_spec("tensorrt_libs")
    if spec is not None and spec.origin and (Path(spec.origin).parent / library).is_file():
        return True
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
