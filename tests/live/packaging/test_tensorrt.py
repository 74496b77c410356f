"""TensorRT takes the graphs of every model with a shipped skeleton as a whole. No GPU is needed, but gigabytes are.

The skeletons hold fp32 graphs; fp16 graphs are exported with PyTorch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preprocess_ensemble.export import parity
from preprocess_ensemble.export.exportable import GraphOptions
from preprocess_ensemble.export.exporter import load_exportable
from preprocess_ensemble.export.model_source import SHIPPED, SKELETON_SUFFIX, shipped_models
from preprocess_ensemble.export.onnx_file import save
from preprocess_ensemble.export.skeleton import fill, find_skeleton
from preprocess_ensemble.export.state_dict import generated_weights
from preprocess_ensemble.runtimes.agreement import sample_tokens
from tests.fixtures.models.gpu_graphs import parse, tensorrt, without_cuda_kernel

if TYPE_CHECKING:
    from preprocess_ensemble.runtimes.agreement import Rows

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(tensorrt() is None, reason="TensorRT for RTX is missing"),
    # ViT-L-14 is written three times, 1.2 GB each.
    pytest.mark.timeout(1800),
]
ROWS = 32
"""max_batch_size of both encoders."""


def skeleton_graph(model: str, folder: Path, tower: str) -> Path:
    """Write a tower of a shipped skeleton, with generated weights."""
    skeleton = find_skeleton(str(SHIPPED / f"{model}{SKELETON_SUFFIX}"))
    config = skeleton.preprocess if tower == "image" else None
    graph = fill(getattr(skeleton, tower), generated_weights(skeleton.tensors, 0), (1, 2), config)
    return save(graph, folder / f"{tower}.onnx")[-1]


@pytest.mark.parametrize("model", shipped_models())
def test_the_image_tower_in_fp32_is_one_part_with_an_engine(model: str, tmp_path: Path) -> None:
    file = skeleton_graph(model, tmp_path, "image")
    parsed = parse(file, ROWS)
    assert (parsed.parts, parsed.problems) == ([True], [])
    assert parsed.inputs == {"pixels": "UINT8", "status": "INT32"}
    assert parsed.engine_bytes
    assert not without_cuda_kernel(file)


@pytest.mark.parametrize("model", shipped_models())
def test_both_towers_in_fp16_are_one_part_whose_norms_are_fp32(model: str, tmp_path: Path) -> None:
    exportable = load_exportable(model, "random:0")
    options = GraphOptions(fingerprint=(1, 2), weights_dtype="fp16", has_data_file=False, report=lambda line: None)
    towers: tuple[tuple[str, str, Rows], ...] = (
        ("pixels", "UINT8", parity.check_pixels(exportable.config)),
        ("tokens", "INT32", sample_tokens(*exportable.token_kinds)),
    )
    for name, kind, rows in towers:
        (folder := tmp_path / name).mkdir()
        file = exportable.build(rows, folder, options).files[-1]
        parsed = parse(file, ROWS)
        assert (parsed.parts, parsed.problems) == ([True], [])
        assert parsed.inputs == {name: kind, "status": "INT32"}
        assert parsed.engine_bytes
        assert parsed.layers["NORMALIZATION"] == parsed.layers["SOFTMAX"] == {"FLOAT"}
        assert parsed.layers["MATRIX_MULTIPLY"] == parsed.layers.get("CONVOLUTION", {"HALF"}) == {"HALF"}
        assert not without_cuda_kernel(file)


def test_the_text_tower_in_fp32_needs_what_tensorrt_for_rtx_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = skeleton_graph("ViT-B-32", tmp_path, "text")
    assert not without_cuda_kernel(file)
    parsed = parse(file, ROWS)
    with capsys.disabled():
        # It runs on CUDA, so there is no goal.
        sys.stdout.write(f"\npacked text tower: parts {parsed.parts}, {' '.join(parsed.problems) or 'no problem'}\n")
