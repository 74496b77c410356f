"""The overlay repository with the TensorRT twins, as far as it can be checked without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from preprocess_ensemble.backends.onnxruntime.session import model_file
from preprocess_ensemble.backends.onnxruntime.session_plan import plan_session
from preprocess_ensemble.serving.tensorrt import on_tensorrt
from tests.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

OVERLAY = ROOT / "containers" / "tensorrt" / "models"


def read(directory: Path) -> Any:
    return text_format.Parse((directory / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


@pytest.fixture
def encoder() -> Any:
    return read(OVERLAY / "clip_encoder_tensorrt")


def test_tensors_are_those_of_the_encoder_that_it_replaces(encoder: Any) -> None:
    original = read(ROOT / "triton_models" / "clip_encoder")
    assert encoder.input == original.input
    assert encoder.output == original.output
    assert encoder.max_batch_size == original.max_batch_size


def test_the_shape_profile_spans_every_batch_of_both_inputs(encoder: Any) -> None:
    (accelerator,) = encoder.optimization.execution_accelerators.gpu_execution_accelerator
    for key, rows in (("min", 1), ("opt", encoder.max_batch_size), ("max", encoder.max_batch_size)):
        shapes = dict(part.split(":") for part in accelerator.parameters[f"trt_profile_{key}_shapes"].split(","))
        assert shapes == {tensor.name: "x".join(map(str, (rows, *tensor.dims))) for tensor in encoder.input}


def test_the_backend_takes_every_key(encoder: Any) -> None:
    config = json_format.MessageToDict(encoder, preserving_proto_field_name=True)
    plan = plan_session(config, kind="GPU", device_id=3)
    tensorrt = plan.providers[0]
    assert tensorrt.name == "TensorrtExecutionProvider"
    assert tensorrt.required
    assert tensorrt.options["trt_fp16_enable"] == "1"
    assert tensorrt.options["trt_engine_cache_enable"] == "1"
    assert tensorrt.options["device_id"] == "3"


def test_it_runs_the_file_that_clip_export_writes(encoder: Any) -> None:
    config = json_format.MessageToDict(encoder, preserving_proto_field_name=True)
    file = model_file(config, model_directory=OVERLAY / "clip_encoder_tensorrt", version="1")
    assert file.resolve() == ROOT / "triton_models" / "clip_encoder" / "1" / "model.onnx"


def test_it_is_what_clip_serve_would_run(encoder: Any) -> None:
    original = read(ROOT / "triton_models" / "clip_encoder")
    derived = on_tensorrt(original, cache="/var/cache/clip-triton/tensorrt", precision="fp16")
    derived.name, derived.default_model_filename = encoder.name, encoder.default_model_filename
    assert encoder == derived


def test_the_ensemble_differs_from_the_original_in_its_encoder_only() -> None:
    twin = read(OVERLAY / "clip_image_tensorrt")
    twin.name = "clip_image"
    assert twin.ensemble_scheduling.step[1].model_name == "clip_encoder_tensorrt"
    twin.ensemble_scheduling.step[1].model_name = "clip_encoder"
    assert twin == read(ROOT / "triton_models" / "clip_image")
