"""A model repository whose models do no work, for benchmarks of the client and of the server's queues."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from clip_client.testing import FakeTriton

if TYPE_CHECKING:
    from collections.abc import Sequence

DIMENSION: Final = 512
MAX_BATCH_SIZE: Final = 32
ANSWER: Final = ("embedding", "status", "error", "fingerprint")
STEP: Final = "clip_encoder"
"""The one step of the ensemble. An ensemble, because Triton treats the queue behind one differently: it works on
requests whose client has gone."""
TYPES: Final = {
    "embedding": (model_config_pb2.TYPE_FP32, DIMENSION),
    "status": (model_config_pb2.TYPE_INT32, 1),
    "error": (model_config_pb2.TYPE_STRING, 1),
    "fingerprint": (model_config_pb2.TYPE_INT32, 2),
    "model": (model_config_pb2.TYPE_STRING, 1),
}


def write_null_repository(repository: Path, *, seconds_per_image: float = 0.0) -> Path:
    """Write the three models of the wire contract into ``repository`` and return it; one image at a time takes
    ``seconds_per_image``, so ``1 / seconds_per_image`` images a second is all that this server can do."""
    vector = np.full(DIMENSION, DIMENSION**-0.5, dtype=np.float32)
    passport = FakeTriton(dimension=DIMENSION, model="null", vector=lambda _: vector).passport()
    for model, outputs in (("clip_preprocess", ("model",)), (STEP, ANSWER)):
        config = _config(model, outputs)
        config.backend = "python"
        config.instance_group.add(kind=model_config_pb2.ModelInstanceGroup.KIND_CPU, count=1)
        config.dynamic_batching.SetInParent()
        config.parameters["seconds_per_image"].string_value = str(seconds_per_image)
        version = _write(repository, config)
        (version / "model.json").write_text(json.dumps(passport))
        (version / "model.onnx").touch()  # clip-serve looks for the encoder's
        shutil.copyfile(Path(__file__).with_name("null_model.py"), version / "model.py")
    ensemble = _config("clip_image", ANSWER)
    ensemble.platform = "ensemble"
    step = ensemble.ensemble_scheduling.step.add(model_name=STEP, model_version=-1)
    step.input_map["image"] = "image"
    for name in ANSWER:
        step.output_map[name] = name
    _write(repository, ensemble)
    return repository


def _config(name: str, outputs: Sequence[str]) -> model_config_pb2.ModelConfig:
    config = model_config_pb2.ModelConfig(name=name, max_batch_size=MAX_BATCH_SIZE)
    config.input.add(name="image", data_type=model_config_pb2.TYPE_STRING, dims=[1])
    for output in outputs:
        data_type, width = TYPES[output]
        config.output.add(name=output, data_type=data_type, dims=[width])
    return config


def _write(repository: Path, config: model_config_pb2.ModelConfig) -> Path:
    """Write the configuration; return the directory of version 1."""
    version: Path = repository / config.name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(text_format.MessageToString(config))
    return version
