"""What ``clip-serve --tensorrt`` stages, in a real tritonserver; with TensorRT itself only where a GPU has it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from benchmarks.fixtures.server import serving
from clip_client import ClipClient
from preprocess_ensemble.serving.tensorrt import TensorrtMissing, check_tensorrt, stage_repository

if TYPE_CHECKING:
    from pathlib import Path


async def _healthy(url: str) -> bool:
    async with ClipClient(url) as clip:
        return (await clip.health()).ok


def test_the_staged_repository_serves_clip_image(tiny_repository: Path, tmp_path: Path) -> None:
    """On the CPU, where an accelerator for GPUs is ignored; links, names and the passport are what is tried."""
    staged = tmp_path / "staged"
    stage_repository(tiny_repository, staged, cache=tmp_path / "cache", precision="fp16")
    config = staged / "clip_encoder" / "config.pbtxt"
    config.write_text(config.read_text().replace("KIND_GPU", "KIND_AUTO"))
    with serving(staged) as server:
        assert asyncio.run(_healthy(server.grpc_url)), "the canary has its vector"


def test_on_a_gpu_with_tensorrt_every_batch_has_one_engine(tiny_repository: Path, tmp_path: Path) -> None:
    try:
        check_tensorrt()
    except TensorrtMissing as missing:
        pytest.skip(str(missing))
    for _ in range(2):
        with serving(tiny_repository, "--tensorrt", f"--tensorrt-cache={tmp_path}") as server:
            assert asyncio.run(_healthy(server.grpc_url))
        engines = [path.name for path in tmp_path.rglob("*.engine")]
        assert engines, "the cache is used"
        assert len(engines) == len({name.split("_sm")[0] for name in engines})
