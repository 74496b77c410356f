"""Reduced precision of weights and providers: what it changes, and what the parity check says."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from preprocess_ensemble.backends.onnxruntime import session
from preprocess_ensemble.backends.onnxruntime.batch import Runner
from preprocess_ensemble.backends.onnxruntime.session import open_planned_session, select_model
from preprocess_ensemble.backends.onnxruntime.session_plan import ModelLoadError, SessionPlan, plan_session
from preprocess_ensemble.backends.onnxruntime.signature import read_signature
from preprocess_ensemble.contract import EMBEDDING, FINGERPRINT, PIXELS, STATUS
from preprocess_ensemble.export import parity
from preprocess_ensemble.export.model_source import ExportError
from preprocess_ensemble.runtimes import processor
from preprocess_ensemble.runtimes.model import PRECISION_VARIABLE
from preprocess_ensemble.runtimes.openvino_model import open_openvino
from preprocess_ensemble.runtimes.selection import Selection
from tests.fixtures.models import tiny_onnx
from tests.fixtures.models.exports import export, installed
from tests.fixtures.models.tiny_onnx import accelerators, parameters

# The two exports take half a minute of processor time, and more than a minute beside other tests.
pytestmark = pytest.mark.timeout(300)

MODEL_FILE = "clip_encoder/1/model.onnx"


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """The small CLIP in each precision, and what was said last while it was exported."""
    made = {}
    for weights_dtype in ("fp16", "int8"):
        repository, said = tmp_path_factory.mktemp(weights_dtype), list[str]()
        export(repository, weights_dtype=weights_dtype, text=weights_dtype == "fp16", report=said.append)
        made[weights_dtype] = (repository, said[-1])
    return made


@pytest.mark.long
@pytest.mark.parametrize(
    ("weights_dtype", "kind"), [("fp16", onnx.TensorProto.FLOAT16), ("int8", onnx.TensorProto.INT8)]
)
def test_the_weights_are_rounded_and_the_passport_says_so(
    weights_dtype: str, kind: int, exports: dict[str, tuple[Path, str]], tiny_repository: Path
) -> None:
    repository, said = exports[weights_dtype]
    passport = installed(repository)
    assert ("one version of ONNX Runtime" in said) == (weights_dtype == "int8")
    assert passport.id.endswith(f"+{weights_dtype}")
    assert passport.fingerprint != installed(tiny_repository).fingerprint
    graph = onnx.load(str(repository / MODEL_FILE)).graph
    output_sizes = [[size.dim_value for size in tensor.type.tensor_type.shape.dim] for tensor in graph.output]
    assert output_sizes == [[0, passport.dimension], [0, 2]], "as config.pbtxt states them; 0 is the batch"
    assert parity.REQUIRED_COSINE[weights_dtype] <= passport.parity.min_cosine < 1.00001
    rounded = sum(int(np.prod(tensor.dims)) for tensor in graph.initializer if tensor.data_type == kind)
    assert rounded > 0.5 * sum(int(np.prod(tensor.dims)) for tensor in graph.initializer)
    # On a CPU, full optimisation of an fp16 model crashes ONNX Runtime; other models keep the default.
    text = (repository / "clip_encoder" / "config.pbtxt").read_text()
    assert ("level: 1" in text) == (weights_dtype == "fp16")


@pytest.mark.long
def test_int8_has_the_same_vectors_on_every_processor(exports: dict[str, tuple[Path, str]]) -> None:
    """Two products are added in 16 bits without VNNI, so the largest activation times two weights must fit."""
    model = onnx.load(str(exports["int8"][0] / MODEL_FILE))
    multiplied = {name for node in model.graph.node if node.op_type == "MatMulInteger" for name in node.input}
    weights = [
        onnx.numpy_helper.to_array(tensor).astype(int)
        for tensor in model.graph.initializer
        if tensor.name in multiplied and tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 2
    ]
    assert len(weights) > 5
    assert 255 * 2 * max(np.abs(weight).max() for weight in weights) < 2**15


@pytest.mark.long
def test_int8_below_its_required_cosine_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "REQUIRED_COSINE", {"int8": 0.99999999})
    with pytest.raises(ExportError, match="is required"):
        export(tmp_path, weights_dtype="int8", text=False)
    assert not (tmp_path / MODEL_FILE).exists()


def planned(**config: Any) -> SessionPlan:
    return plan_session(config, kind="CPU", device_id=0)


@pytest.fixture(autouse=True)
def demands_nothing_and_has_bf16(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The processor's bf16 is OpenVINO in fp32, under that name."""
    monkeypatch.delenv(PRECISION_VARIABLE)
    cpu_info = tmp_path / "cpuinfo"
    cpu_info.write_text("vendor_id\t: AuthenticAMD\nflags\t\t: avx512_bf16\n")
    monkeypatch.setattr(processor, "_CPU_INFO", cpu_info)
    monkeypatch.setattr(session, "open_openvino", lambda file, precision, *, threads: open_openvino(file, "fp32"))


@pytest.fixture(scope="module")
def model(tiny_repository: Path) -> Path:
    return tiny_repository / MODEL_FILE


def selected(model: Path, plan: SessionPlan) -> Selection:
    return select_model(open_planned_session(model, plan), model, plan)


def test_what_a_cpu_cannot_have_fails_the_load() -> None:
    with pytest.raises(ModelLoadError, match="precision must be auto or fp32, not 'FP32'"):
        planned(**parameters(precision="FP32"))
    with pytest.raises(ModelLoadError, match="no CPU execution accelerator 'openvino': remove it"):
        planned(**accelerators("cpu", "openvino"))


def test_the_environment_overrides_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    assert planned(**parameters(precision="auto")).compute_precision == "auto"
    monkeypatch.setenv(PRECISION_VARIABLE, "fp32")
    assert planned(**parameters(precision="auto")).compute_precision == "fp32"
    monkeypatch.setenv(PRECISION_VARIABLE, "fp8")
    with pytest.raises(ModelLoadError, match="CLIP_PRECISION must be auto or fp32, not 'fp8'"):
        planned()


@pytest.mark.parametrize(
    ("config", "runtime", "reason"),
    [(parameters(precision="fp32"), "ONNX Runtime", "fp32 was asked for"),
     ({}, "OpenVINO", "the fastest on AMD with avx512_bf16")],
)  # fmt: skip
def test_the_configuration_selects_the_runtime(config: dict[str, Any], runtime: str, reason: str, model: Path) -> None:
    plan = planned(**config)
    reference = open_planned_session(model, plan)
    selection = select_model(reference, model, plan)
    assert selection.model.runtime.startswith(runtime)
    assert reason in selection.reason
    assert (selection.model.session is reference) == selection.model.runtime.startswith("ONNX Runtime")


def test_another_runtime_gives_each_request_its_own_rows(model: Path) -> None:
    plan = planned()
    runner = Runner(selected(model, plan).model.session, {})
    signature = read_signature(open_planned_session(model, plan))
    (pixels,) = (tensor for tensor in signature.inputs if tensor.name == PIXELS)
    requests: list[dict[str, Any]] = [
        {PIXELS: np.zeros((rows, *pixels.shape[1:]), np.uint8), STATUS: np.zeros((rows, 1), np.int32)}
        for rows in (1, 2)
    ]
    outputs = runner.run(requests, [FINGERPRINT, EMBEDDING])
    assert [(name, len(array)) for name, array in outputs.items()] == [(FINGERPRINT, 3), (EMBEDDING, 3)]


def test_a_model_without_a_passport_runs_on_onnx_runtime(tmp_path: Path) -> None:
    affine = tiny_onnx.affine(tmp_path / "m" / "1" / "model.onnx")
    assert selected(affine, planned()).model.runtime.startswith("ONNX Runtime")
