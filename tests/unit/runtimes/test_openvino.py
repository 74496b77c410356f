"""What may run the model in place of ONNX Runtime: OpenVINO, CoreML, the check that both pass, and the processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from preprocess_ensemble.contract import EMBEDDING, FINGERPRINT, PIXELS, STATUS
from preprocess_ensemble.model_repository.passport import Passport
from preprocess_ensemble.runtimes import onnx_session, openvino_model
from preprocess_ensemble.runtimes.agreement import AgreementCheck, sample_pixels
from preprocess_ensemble.runtimes.model import LoadFailed, RuntimeUnusable
from preprocess_ensemble.runtimes.openvino_model import open_openvino
from preprocess_ensemble.runtimes.processor import has_bf16, processor_id
from tests.fixtures.models.scripted_runtimes import Scripted
from tests.paths import ROOT


@pytest.fixture(scope="module")
def model(tiny_repository: Path) -> Path:
    """The small CLIP; its passport is beside it."""
    return tiny_repository / "clip_encoder" / "1" / "model.onnx"


def passport_of(model: Path) -> Passport:
    return Passport.from_json(model.with_name("model.json").read_bytes())


def test_fp32_has_the_vectors_of_onnx_runtime(model: Path) -> None:
    opened = open_openvino(model, precision="fp32", threads=1)
    assert opened.runtime.startswith("OpenVINO 20")
    reference = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert AgreementCheck(reference, passport_of(model)).lowest_cosine(opened.session) > 0.999999


def test_batches_of_all_sizes_have_nan_for_failed_rows_and_keep_their_results(model: Path) -> None:
    passport = passport_of(model)
    session = open_openvino(model, precision="fp32").session
    pictures = sample_pixels(*passport.preprocess["size"])
    kept = []
    for rows in (1, 3, 8, 3):
        status = np.zeros((rows, 1), np.int32)
        status[-1] = 5
        fingerprints, vectors = session.run([FINGERPRINT, EMBEDDING], {PIXELS: pictures[:rows], STATUS: status})
        assert (vectors.shape, vectors.dtype.name) == ((rows, passport.dimension), "float32")
        assert np.isnan(vectors).all(axis=1).tolist() == [False] * (rows - 1) + [True]
        np.testing.assert_array_equal(fingerprints, [passport.fingerprint] * rows)
        kept.append((vectors, vectors.copy()))
    for vectors, copied in kept:
        np.testing.assert_array_equal(vectors, copied, "a later run overwrites nothing")


def test_bf16_is_refused_or_agrees(model: Path) -> None:
    if not has_bf16():
        with pytest.raises(RuntimeUnusable, match="computes in f32 on this processor, not in bf16"):
            open_openvino(model, precision="bf16")
        return
    opened = open_openvino(model, precision="bf16")
    reference = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert 0.9999 <= AgreementCheck(reference, passport_of(model)).lowest_cosine(opened.session) < 0.9999999


def test_what_cannot_be_loaded_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LoadFailed, match="OpenVINO cannot load the model \\("):
        open_openvino(tmp_path / "missing.onnx", precision="fp32")
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(RuntimeUnusable, match="the package openvino cannot be imported"):
        open_openvino(tmp_path / "missing.onnx", precision="fp32")


def test_openvino_sends_nothing(model: Path, tmp_path: Path) -> None:
    """Without the adapter's guard, ``import openvino`` reports itself to Google Analytics from a thread."""
    script = f"""
import sys, threading
from pathlib import Path
def refuse(event, arguments):
    if event.startswith("socket.") or event == "subprocess.Popen":
        print(event, arguments)
        raise RuntimeError(event)
sys.addaudithook(refuse)
from preprocess_ensemble.runtimes.openvino_model import open_openvino
open_openvino(Path({str(model)!r}), precision="fp32")
assert "openvino" in sys.modules
print(sys.modules["openvino_telemetry"], threading.active_count())
"""
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, env=home
    )
    assert done.stdout.splitlines() == ["None 1"]
    assert list(tmp_path.iterdir()) == [], "its file of a client's id"


def test_a_processor_without_bf16_does_not_try_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_model, "has_bf16", lambda: False)
    bf16, fp32 = openvino_model.openvino_candidates(tmp_path / "model.onnx", threads=0)
    with pytest.raises(RuntimeUnusable, match="neither avx512_bf16 nor amx_bf16"):
        bf16.open()
    assert (bf16.name, fp32.name) == ("OpenVINO bf16", "OpenVINO fp32")
    assert bf16.version == fp32.version != ""


def test_coreml_is_opened_where_onnx_runtime_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(RuntimeUnusable, match="does not have it"):
        onnx_session.coreml(Path("model.onnx")).open()
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CoreMLExecutionProvider"])
    monkeypatch.setattr(onnx_session, "open_session", lambda *_, **__: Scripted())
    assert str(onnx_session.coreml(Path("model.onnx")).open()).endswith(" with CoreML")


@pytest.mark.parametrize(("given", "expected"), [({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0")])
def test_onnx_runtime_reports_nothing_unless_a_person_asks_for_it(given: dict[str, str], expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    command = [sys.executable, "-c", "import clip_client, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"]
    assert subprocess.check_output(command, env={**environment, **given}, text=True).strip() == expected


@pytest.mark.parametrize(
    ("text", "has_it"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512_bf16 sse\n", True),
        ("processor\t: 0\nflags\t\t: fpu amx_bf16\n", True),
        ("flags\t\t: fpu avx512f avx2\nbugs\t: amx_bf16\n", False),
        ("Features\t: bf16\n", False),
        ("", False),
    ],
)
def test_flags_say_whether_there_are_instructions_for_bf16(text: str, has_it: bool, tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert has_bf16(file) is has_it
    assert not has_bf16(tmp_path / "missing")


def test_processors_of_one_name_are_told_apart_by_their_flags(tmp_path: Path) -> None:
    files = []
    for number, flags in enumerate(("avx2 amx_bf16", "avx2", "avx2")):
        files.append(tmp_path / str(number))
        files[-1].write_text(f"processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    with_amx, first, second = map(processor_id, files)
    assert first == second != with_amx
    assert first.startswith("AMD EPYC ")
    assert processor_id(tmp_path / "missing")
