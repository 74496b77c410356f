"""Reduced precision of weights and providers: what it changes, and what the parity check says."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from benchmarks.fixtures.server import TINY_CLIP
from preprocess_ensemble.backends.onnxruntime.batch import Runner
from preprocess_ensemble.backends.onnxruntime.model_config import ModelLoadError
from preprocess_ensemble.backends.onnxruntime.providers import OpenVinoAccelerator
from preprocess_ensemble.backends.onnxruntime.session import open_planned_session, select_model
from preprocess_ensemble.backends.onnxruntime.session_plan import SessionPlan, plan_session
from preprocess_ensemble.backends.onnxruntime.signature import read_signature
from preprocess_ensemble.contract import EMBEDDING, FINGERPRINT, PIXELS, STATUS
from preprocess_ensemble.export import parity
from preprocess_ensemble.export.exporter import export_model
from preprocess_ensemble.export.model_source import ExportError
from preprocess_ensemble.model_repository.config import installed_passport
from preprocess_ensemble.runtimes import openvino_model
from preprocess_ensemble.runtimes.openvino_model import open_openvino
from preprocess_ensemble.runtimes.precision import PRECISION_VARIABLE
from tests.fixtures.models import tiny_onnx
from tests.fixtures.models.model_configs import accelerators, parameters

if TYPE_CHECKING:
    from pathlib import Path

    from preprocess_ensemble.model_repository.passport import Passport
    from preprocess_ensemble.runtimes.selection import Selection


@dataclass(frozen=True, kw_only=True)
class Export:
    """The small CLIP in one precision, and what was said last while it was exported."""

    passport: Passport
    repository: Path
    said: str

    @property
    def file(self) -> Path:
        return self.repository / "clip_encoder" / "1" / "model.onnx"


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Export]:
    made = {}
    for precision in ("fp16", "int8"):
        repository, said = tmp_path_factory.mktemp(precision), list[str]()
        passport = export_model(
            model=str(TINY_CLIP), pretrained="random:0", precision=precision, repository=repository, report=said.append
        )
        made[precision] = Export(passport=passport, repository=repository, said=said[-1])
    return made


@pytest.mark.parametrize(("precision", "kind"), [("fp16", onnx.TensorProto.FLOAT16), ("int8", onnx.TensorProto.INT8)])
def test_the_weights_are_rounded_and_the_passport_says_so(
    precision: str, kind: int, exports: dict[str, Export]
) -> None:
    exported = exports[precision]
    assert ("one version of ONNX Runtime" in exported.said) == (precision == "int8")
    assert exported.passport.id.endswith(f"+{precision}")
    graph = onnx.load(str(exported.file)).graph
    output_sizes = [[size.dim_value for size in tensor.type.tensor_type.shape.dim] for tensor in graph.output]
    assert output_sizes == [[0, exported.passport.dimension], [0, 2]], "as config.pbtxt states them; 0 is the batch"
    assert parity.REQUIRED_COSINE[precision] <= exported.passport.parity.min_cosine < 1.00001
    rounded = sum(int(np.prod(tensor.dims)) for tensor in graph.initializer if tensor.data_type == kind)
    assert rounded > 0.5 * sum(int(np.prod(tensor.dims)) for tensor in graph.initializer)
    # On a CPU, full optimisation of an fp16 model crashes ONNX Runtime; other models keep the default.
    text = (exported.repository / "clip_encoder" / "config.pbtxt").read_text()
    assert ("level: 1" in text) == (precision == "fp16")


def test_int8_has_the_same_vectors_on_every_processor(exports: dict[str, Export]) -> None:
    """Without VNNI two products are added in 16 bits, so the largest activation times two weights must fit."""
    model = onnx.load(str(exports["int8"].file))
    multiplied = {name for node in model.graph.node if node.op_type == "MatMulInteger" for name in node.input}
    weights = [
        onnx.numpy_helper.to_array(tensor).astype(int)
        for tensor in model.graph.initializer
        if tensor.name in multiplied and tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 2
    ]
    assert len(weights) > 5
    assert 255 * 2 * max(np.abs(weight).max() for weight in weights) < 2**15


def test_another_precision_is_another_fingerprint(exports: dict[str, Export], tiny_repository: Path) -> None:
    in_fp32 = installed_passport(tiny_repository)
    assert in_fp32 is not None
    fingerprints = {in_fp32.fingerprint, *(exported.passport.fingerprint for exported in exports.values())}
    assert len(fingerprints) == 3


def test_int8_below_its_required_cosine_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "REQUIRED_COSINE", {"int8": 0.99999999})
    with pytest.raises(ExportError, match="is required"):
        export_model(model=str(TINY_CLIP), pretrained="random:0", precision="int8", repository=tmp_path)
    assert not (tmp_path / "clip_encoder" / "1" / "model.onnx").exists()


def openvino(**keys: str) -> dict[str, Any]:
    return accelerators("cpu", "openvino", **keys)


@pytest.fixture(autouse=True)
def demands_nothing_and_remembers_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(PRECISION_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model(tiny_repository: Path) -> Path:
    """The small CLIP; its passport is beside it."""
    return tiny_repository / "clip_encoder" / "1" / "model.onnx"


def planned(**config: Any) -> SessionPlan:
    return plan_session(config, kind="CPU", device_id=0)


@pytest.fixture(autouse=True)
def any_processor_has_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO in fp32, under the name of bf16."""
    monkeypatch.setattr(openvino_model, "has_bf16", lambda: True)
    monkeypatch.setattr(
        openvino_model, "open_openvino", lambda file, *, precision, threads: open_openvino(file, precision="fp32")
    )


def selected(model: Path, plan: SessionPlan) -> Selection:
    return select_model(open_planned_session(model, plan), model, plan)


@pytest.mark.parametrize(
    ("keys", "precision", "threads"),
    [
        ({}, "fp32", 0),
        ({"precision": "BF16"}, "bf16", 0),
        ({"precision": "FP32", "num_threads": "2"}, "fp32", 2),
        ({"num_threads": "-1"}, "fp32", 0),
    ],
)
def test_openvino_is_told_its_precision(keys: dict[str, str], precision: str, threads: int) -> None:
    assert planned(**openvino(**keys)).openvino == OpenVinoAccelerator(precision=precision, threads=threads)


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
        planned(**openvino(**keys))


def test_the_accelerator_openvino_runs_the_model(model: Path) -> None:
    plan = planned(**openvino(num_threads="1"))
    selection = selected(model, plan)
    assert selection.model.runtime.startswith("OpenVINO")
    assert str(selection).endswith("fp32 (the configuration asks for it)")


def test_a_missing_openvino_fails_the_load_if_it_was_asked_for(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ModelLoadError, match="cannot be used: the package openvino cannot be imported"):
        selected(model, planned(**openvino()))
    plan = planned()
    assert "ONNX Runtime" in selected(model, plan).model.runtime, "nothing asked for it"


def test_the_default_times_what_agrees_with_fp32(model: Path) -> None:
    plan = planned()
    assert plan.precision == "auto"
    assert "timed on" in selected(model, plan).reason


def test_another_runtime_takes_the_place_of_the_session(model: Path) -> None:
    plan = planned(**parameters(precision="bf16"))
    selection = selected(model, plan)
    assert selection.model.runtime.startswith("OpenVINO")
    # Rows of several requests run together, and each request gets its own.
    runner = Runner(selection.model.session, {})
    signature = read_signature(open_planned_session(model, plan))
    (pixels,) = (tensor for tensor in signature.inputs if tensor.name == PIXELS)
    requests: list[dict[str, Any]] = [
        {PIXELS: np.zeros((rows, *pixels.shape[1:]), np.uint8), STATUS: np.zeros((rows, 1), np.int32)}
        for rows in (1, 2)
    ]
    outputs = runner.run(requests, [FINGERPRINT, EMBEDDING])
    assert [(name, len(array)) for name, array in outputs.items()] == [(FINGERPRINT, 3), (EMBEDDING, 3)]


@pytest.mark.parametrize(
    "config",
    [parameters(precision="fp32"), {**parameters(batch_buckets="1"), "max_batch_size": 4}],
    ids=["fp32 was asked for", "buckets are for ONNX Runtime"],
)
def test_onnx_runtime_stays(config: dict[str, Any], model: Path) -> None:
    plan = planned(**config)
    session = open_planned_session(model, plan)
    selection = select_model(session, model, plan)
    assert selection.model.session is session


def test_a_model_without_a_passport_runs_on_onnx_runtime(tmp_path: Path) -> None:
    affine = tiny_onnx.affine(tmp_path / "m" / "1" / "model.onnx")
    plan = planned()
    assert selected(affine, plan).model.runtime.startswith("ONNX Runtime")
    with pytest.raises(ModelLoadError, match="need an fp32 export"):
        selected(affine, planned(**parameters(precision="bf16")))
    assert selected(affine, planned(**openvino())).model.runtime.startswith("OpenVINO"), "any model may ask for it"


def test_the_environment_overrides_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    assert planned(**parameters(precision="bf16")).precision == "bf16"
    monkeypatch.setenv(PRECISION_VARIABLE, "fp32")
    assert planned(**parameters(precision="bf16")).precision == "fp32"
    monkeypatch.setenv(PRECISION_VARIABLE, "fp8")
    with pytest.raises(ModelLoadError, match="CLIP_PRECISION must be auto, fp32 or bf16, not 'fp8'"):
        planned()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (parameters(precision="FP32"), "precision must be auto, fp32 or bf16, not 'FP32'"),
        ({**openvino(precision="BF16"), **parameters(precision="fp32")}, "accelerator openvino, and also .* fp32"),
    ],
)
def test_a_precision_that_cannot_be_understood_fails_the_load(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelLoadError, match=says):
        planned(**config)
