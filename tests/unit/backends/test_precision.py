"""Reduced precision of weights and providers: what it changes, and what the parity check says."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from preprocess_ensemble.backends.onnxruntime.model_config import ModelLoadError
from preprocess_ensemble.backends.onnxruntime.session_plan import plan_session
from preprocess_ensemble.export import parity
from preprocess_ensemble.export.exporter import export_model
from preprocess_ensemble.export.parity import ParityError
from preprocess_ensemble.testing.tiny_model import TINY_CLIP

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("precision", "kind"), [("fp16", onnx.TensorProto.FLOAT16), ("int8", onnx.TensorProto.INT8)])
def test_the_weights_are_rounded_and_the_passport_says_so(precision: str, kind: int, tmp_path: Path) -> None:
    said: list[str] = []
    passport = export_model(
        model=str(TINY_CLIP), pretrained="random:0", precision=precision, repository=tmp_path, report=said.append
    )
    assert ("one version of ONNX Runtime" in said[-1]) == (precision == "int8")
    assert passport.id.endswith(f"+{precision}")
    output_sizes = [
        [size.dim_value for size in tensor.type.tensor_type.shape.dim]
        for tensor in onnx.load(str(tmp_path / "clip_encoder" / "1" / "model.onnx")).graph.output
    ]
    assert output_sizes == [[0, passport.dimension], [0, 2]], "as config.pbtxt states them; 0 is the batch"
    assert parity.REQUIRED_COSINE[precision] <= passport.parity.min_cosine < 1.00001
    file = tmp_path / "clip_encoder" / "1" / "model.onnx"
    initializers = onnx.load(str(file)).graph.initializer
    rounded = sum(int(np.prod(tensor.dims)) for tensor in initializers if tensor.data_type == kind)
    assert rounded > 0.5 * sum(int(np.prod(tensor.dims)) for tensor in initializers)
    # On a CPU, full optimisation of an fp16 model crashes ONNX Runtime; other models keep the default.
    text = (tmp_path / "clip_encoder" / "config.pbtxt").read_text()
    assert ("level: 1" in text) == (precision == "fp16")


def test_int8_has_the_same_vectors_on_every_processor(tmp_path: Path) -> None:
    """Without VNNI two products are added in 16 bits, so the largest activation times two weights must fit."""
    export_model(model=str(TINY_CLIP), pretrained="random:0", precision="int8", repository=tmp_path)
    model = onnx.load(str(tmp_path / "clip_encoder" / "1" / "model.onnx"))
    multiplied = {name for node in model.graph.node if node.op_type == "MatMulInteger" for name in node.input}
    weights = [
        onnx.numpy_helper.to_array(tensor).astype(int)
        for tensor in model.graph.initializer
        if tensor.name in multiplied and tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 2
    ]
    assert len(weights) > 5
    assert 255 * 2 * max(np.abs(weight).max() for weight in weights) < 2**15


def test_another_precision_is_another_fingerprint(tmp_path: Path) -> None:
    fingerprints = {
        export_model(model=str(TINY_CLIP), pretrained="random:0", precision=precision, repository=tmp_path).fingerprint
        for precision in ("fp32", "int8")
    }
    assert len(fingerprints) == 2


def test_int8_below_its_required_cosine_is_not_installed(tmp_path: Path) -> None:
    check = partial(parity.check, required={"int8": 0.99999999})
    with pytest.raises(ParityError, match="is required"):
        export_model(model=str(TINY_CLIP), pretrained="random:0", precision="int8", repository=tmp_path, check=check)
    assert not (tmp_path / "clip_encoder" / "1" / "model.onnx").exists()


def openvino(**keys: str) -> dict[str, object]:
    accelerator = {"name": "openvino", "parameters": keys}
    return {"optimization": {"execution_accelerators": {"cpu_execution_accelerator": [accelerator]}}}


@pytest.mark.parametrize(
    ("keys", "hints"),
    [
        ({}, {"INFERENCE_PRECISION_HINT": "f32"}),
        ({"precision": "BF16"}, {"INFERENCE_PRECISION_HINT": "bf16"}),
        (
            {"precision": "FP32", "num_threads": "2"},
            {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 2},
        ),
    ],
)
def test_openvino_is_told_its_precision(keys: dict[str, str], hints: dict[str, object]) -> None:
    provider = plan_session(openvino(**keys), kind="CPU", device_id=0).providers[0]
    assert provider.options["device_type"] == "CPU"
    assert json.loads(provider.options["load_config"]) == {"CPU": hints}


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"precision": "INT4"}, "precision 'INT4'"),
        ({"speed": "1"}, "no parameter 'speed'"),
        ({"num_threads": "x"}, "integer"),
    ],
)
def test_openvino_refuses_what_it_does_not_know(keys: dict[str, str], says: str) -> None:
    with pytest.raises(ModelLoadError, match=says):
        plan_session(openvino(**keys), kind="CPU", device_id=0)
