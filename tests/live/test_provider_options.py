"""Every option of every provider, read back from an open session; a provider that cannot be used here is skipped."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from benchmarks.experiments.serving import provider_options
from benchmarks.experiments.serving.provider_options import OPTIONS, Option
from benchmarks.fixtures.server_setting import ServerSetting
from benchmarks.harness.environment import environment
from preprocess_ensemble.testing.server import serving
from tests.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

OPENVINO = ROOT / "build" / "openvino" / "bin" / "python"
"""Made by ``python -m benchmarks precision``: its build of ONNX Runtime and this environment's overwrite each other."""


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_arrives(option: Option) -> None:
    """On a machine with an NVIDIA card, install onnxruntime-gpu in place of onnxruntime and run this file."""
    if reason := provider_options.unusable(option.device):
        pytest.skip(reason)
    found = option.check()
    assert found["read_back"] == found["expected"]
    assert found["effect"] in (None, True), "the option is listed, and changes nothing"


def test_openvino_computes_in_the_precision_that_was_asked_for(tmp_path: Path) -> None:
    if not OPENVINO.is_file():
        pytest.skip("there is no environment with onnxruntime-openvino: python -m benchmarks precision makes one")
    if not {"avx512_bf16", "amx_bf16"} & set(environment()["cpu_flags"]):
        pytest.skip("this CPU has no bf16")
    options = ("--device", "openvino", "--results", str(tmp_path))
    command = [str(OPENVINO), "-m", "benchmarks", "provider_options", *options]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stderr
    assert {name: one["effect"] for name, one in json.loads(ran.stdout.splitlines()[0]).items()} == {
        "openvino: precision=FP32, num_threads=1": True,
        "openvino: precision=BF16": True,
    }


def test_the_log_of_a_server_on_a_card_names_what_cuda_was_told(tiny_repository: Path, tmp_path: Path) -> None:
    if reason := provider_options.unusable("cuda"):
        pytest.skip(reason)
    setting = ServerSetting(device="cuda", tf32=True, graphs=True)
    log = tmp_path / "log"
    with setting.applied_to(tiny_repository) as repository, serving(repository, "--log-file", str(log)):
        (line,) = (line for line in log.read_text().splitlines() if "CUDAExecutionProvider: " in line)
    assert {"device_id=0", "use_tf32=1", "enable_cuda_graph=1"} <= set(line.rpartition(": ")[2].split(", "))
