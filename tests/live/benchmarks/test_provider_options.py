"""Every option of every provider, read back from an open session; a provider that cannot be used here is skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.experiments.serving import provider_options
from benchmarks.experiments.serving.provider_options import OPTIONS, Option
from benchmarks.fixtures.server_setting import ServerSetting
from preprocess_ensemble.testing.server import serving

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_arrives(option: Option, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with an NVIDIA card, install onnxruntime-gpu in place of onnxruntime and run this file."""
    if reason := option.unusable():
        pytest.skip(reason)
    monkeypatch.delenv("CLIP_PRECISION")
    found = option.check()
    assert found["read_back"] == found["expected"]
    assert found["effect"] in (None, True), "the option is listed, and changes nothing"


def test_the_log_of_a_server_on_a_card_names_what_cuda_was_told(tiny_repository: Path, tmp_path: Path) -> None:
    if reason := provider_options.unusable("cuda"):
        pytest.skip(reason)
    setting = ServerSetting(device="cuda", tf32=True, graphs=True)
    log = tmp_path / "log"
    with setting.applied_to(tiny_repository) as repository, serving(repository, "--log-file", str(log)):
        (line,) = (line for line in log.read_text().splitlines() if "CUDAExecutionProvider: " in line)
    assert {"device_id=0", "use_tf32=1", "enable_cuda_graph=1"} <= set(line.rpartition(": ")[2].split(", "))
