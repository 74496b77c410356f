"""Graphs run on a GPU as a whole: the CUDA provider has a kernel for each node. Without a GPU they still run."""

from __future__ import annotations

from pathlib import Path

import pytest

from clip_client import SyncClipClient
from preprocess_ensemble.contract import DEFAULT_NAMES
from preprocess_ensemble.model_repository.config import version_directory
from tests.fixtures.models.exports import export
from tests.fixtures.models.gpu_graphs import without_cuda_kernel


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository."""
    repository = tmp_path_factory.mktemp(request.param)
    export(repository, weights_dtype=request.param)
    return repository


def test_every_node_has_a_kernel_of_cuda(exported: Path) -> None:
    for name in (DEFAULT_NAMES.encoder, DEFAULT_NAMES.text_encoder):
        assert not without_cuda_kernel(version_directory(exported, name) / "model.onnx")


def test_both_towers_run_in_this_process_without_a_gpu(exported: Path) -> None:
    """ONNX Runtime would end the process at the first fp16 vector if it optimised fully."""
    with SyncClipClient(f"local:{exported}") as clip:
        report = clip.health()
    assert report.ok, report
