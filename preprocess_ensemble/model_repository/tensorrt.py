"""The block of an encoder's config.pbtxt that runs the encoder on TensorRT. ``clip-export --tensorrt`` writes it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from platformdirs import user_cache_path

from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.passport import Passport

VERSIONS: Final = (10, 11)  # major versions; Triton images have 11 since 26.06
_ACCELERATOR: Final = "tensorrt"
_PREFIX: Final = "trt_engine_cache_prefix"


def default_cache() -> Path:
    try:
        return user_cache_path("clip-triton", appauthor=False) / "tensorrt"
    except RuntimeError:
        raise ReportedError("This user has no home folder: name one for engines with --tensorrt-cache.") from None


def _settings(config: Any) -> Mapping[str, str] | None:
    for accelerator in config.optimization.execution_accelerators.gpu_execution_accelerator:
        if accelerator.name == _ACCELERATOR:
            return dict(accelerator.parameters)
    return None


def engine_cache(config: Any) -> Path | None:
    """Return the folder of engines that a ModelConfig message names; None if its model does not run on TensorRT."""
    settings = _settings(config)
    return None if settings is None else Path(settings.get("trt_engine_cache_path", ""))


@dataclass(frozen=True, kw_only=True)
class Tensorrt:
    version: int
    cache: Path

    @classmethod
    def written_into(cls, config: Any) -> Tensorrt | None:
        """Return the settings that an earlier export wrote into a ModelConfig message; None if there are none."""
        settings = _settings(config) or {}
        if _PREFIX not in settings:
            return None
        return cls(version=10 if "precision_mode" in settings else 11, cache=Path(settings["trt_engine_cache_path"]))

    def write_into(self, config: Any, passport: Passport) -> None:
        """Run the model of a ModelConfig message on TensorRT, with one instance per GPU.

        All batch sizes share one engine, because the shape profile lists every input from one row to
        ``max_batch_size``. The prefix of the engine's files names the weights: ONNX Runtime finds engines only by the
        form of the graph, and would otherwise run an engine with other weights. TensorRT 10 needs the precision of the
        graph as a setting; since version 11 TensorRT always uses the precision of the graph.
        """
        for group in config.instance_group:
            group.kind = group.KIND_GPU
        most = config.max_batch_size
        digest = hashlib.sha256(f"{passport.weights_sha256} {passport.weights_dtype} {most}".encode()).hexdigest()[:12]
        prefix = f"{config.name}-{passport.model}-{passport.weights_dtype}-{digest}"
        keys = {
            "max_workspace_size_bytes": str(4 * 2**30),
            "trt_engine_cache_enable": "true",
            "trt_engine_cache_path": str(self.cache),
            _PREFIX: re.sub(r"[^A-Za-z0-9.-]", "-", prefix),
            "trt_timing_cache_enable": "true",
            "trt_timing_cache_path": str(self.cache),
            "trt_profile_min_shapes": _profile(config, 1),
            "trt_profile_opt_shapes": _profile(config, most),
            "trt_profile_max_shapes": _profile(config, most),
        }
        if self.version == 10:
            # Keep layer norms in fp32: with FP16, TensorRT 10 may use fp16 where the graph casts to fp32.
            keys |= {"precision_mode": passport.weights_dtype.upper(), "trt_layer_norm_fp32_fallback": "true"}
        config.optimization.execution_accelerators.ClearField("gpu_execution_accelerator")
        accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
        accelerators.add(name=_ACCELERATOR).parameters.update(keys)


def take_off_tensorrt(config: Any) -> None:
    for group in config.instance_group:
        group.ClearField("kind")
    config.optimization.ClearField("execution_accelerators")
    if not config.optimization.ByteSize():
        config.ClearField("optimization")


def _profile(config: Any, rows: int) -> str:
    return ",".join(f"{tensor.name}:{'x'.join(map(str, (rows, *tensor.dims)))}" for tensor in config.input)
