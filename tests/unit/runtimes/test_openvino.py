"""OpenVINO, which may run the model in place of ONNX Runtime, and the check that it must pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from preprocess_ensemble.contract import DEFAULT_NAMES, EMBEDDING, FINGERPRINT, PIXELS, STATUS
from preprocess_ensemble.model_repository.config import version_directory
from preprocess_ensemble.model_repository.passport import Passport
from preprocess_ensemble.runtimes.agreement import lowest_cosine, sample_pixels
from preprocess_ensemble.runtimes.model import RuntimeUnusable
from preprocess_ensemble.runtimes.onnx_session import open_session
from preprocess_ensemble.runtimes.openvino_model import open_openvino
from preprocess_ensemble.runtimes.processor import Processor
from tests.fixtures.models.exports import installed
from tests.paths import ROOT


@pytest.fixture(scope="module")
def model(tiny_repository: Path) -> Path:
    return version_directory(tiny_repository) / "model.onnx"


@pytest.fixture
def passport(tiny_repository: Path) -> Passport:
    return installed(tiny_repository)


def test_fp32_has_the_vectors_of_onnx_runtime(model: Path, passport: Passport) -> None:
    opened = open_openvino(model, compute_precision="fp32", threads=1)
    assert opened.runtime.startswith("OpenVINO 20")
    assert lowest_cosine(opened.session, open_session(model), passport) > 0.999999


def test_batches_of_all_sizes_have_nan_for_failed_rows_and_keep_their_results(model: Path, passport: Passport) -> None:
    session = open_openvino(model, compute_precision="fp32").session
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


def test_bf16_is_refused_or_agrees(model: Path, passport: Passport) -> None:
    if not Processor.here().has_bf16:
        with pytest.raises(RuntimeUnusable, match="computes in f32 on this processor, not in bf16"):
            open_openvino(model, compute_precision="bf16")
        return
    opened = open_openvino(model, compute_precision="bf16")
    assert 0.9999 <= lowest_cosine(opened.session, open_session(model), passport) < 0.9999999


@pytest.mark.parametrize("compute_precision", ["fp32", "bf16"])
def test_texts_have_the_vectors_of_onnx_runtime(tiny_pair_repository: Path, compute_precision: str) -> None:
    if compute_precision == "bf16" and not Processor.here().has_bf16:
        pytest.skip("this processor has no bf16")
    file = version_directory(tiny_pair_repository, DEFAULT_NAMES.text_encoder) / "model.onnx"
    tokenizer = version_directory(tiny_pair_repository, DEFAULT_NAMES.tokenize)
    opened = open_openvino(file, compute_precision=compute_precision)
    assert lowest_cosine(opened.session, open_session(file), installed(tiny_pair_repository), tokenizer) >= 0.9999


def test_what_cannot_be_loaded_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeUnusable, match="OpenVINO cannot load the model \\("):
        open_openvino(tmp_path / "missing.onnx", compute_precision="fp32")
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(RuntimeUnusable, match="the package openvino cannot be imported"):
        open_openvino(tmp_path / "missing.onnx", compute_precision="fp32")


def test_openvino_sends_nothing(model: Path, tmp_path: Path) -> None:
    """The adapter's guard stops ``import openvino`` from reporting itself to Google Analytics from a thread."""
    script = f"""
import sys, threading
from pathlib import Path
from typing import TYPE_CHECKING
def refuse(event, arguments):
    if event.startswith("socket.") or event == "subprocess.Popen":
        print(event, arguments)
        raise RuntimeError(event)
sys.addaudithook(refuse)
from preprocess_ensemble.runtimes.openvino_model import open_openvino
open_openvino(Path({str(model)!r}), compute_precision="fp32")
assert "openvino" in sys.modules
print(sys.modules["openvino_telemetry"], threading.active_count())
"""
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, env=home
    )
    assert done.stdout.splitlines() == ["None 1"]
    assert list(tmp_path.iterdir()) == [], "its file of a client's id"


@pytest.mark.parametrize(("given", "expected"), [({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0")])
def test_onnx_runtime_reports_nothing_unless_a_person_asks_for_it(given: dict[str, str], expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    command = [sys.executable, "-c", "import clip_client, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"]
    assert subprocess.check_output(command, env={**environment, **given}, text=True).strip() == expected
