"""What ``clip-serve --tensorrt`` stages, in a real tritonserver; with TensorRT itself only where a GPU has it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clip_client import ClipClient
from preprocess_ensemble.serving.tensorrt import StagedRepository, TensorrtMissing, check_tensorrt
from preprocess_ensemble.testing.server import free_port, serving

if TYPE_CHECKING:
    from pathlib import Path


async def _healthy(url: str) -> bool:
    async with ClipClient(url) as clip:
        return (await clip.health()).ok


def test_the_staged_repository_serves_clip_image(tiny_repository: Path, tmp_path: Path) -> None:
    """On the CPU, where an accelerator for GPUs is ignored; links, names and the passport are what is tried."""
    staged = StagedRepository(tiny_repository, tmp_path / "staged", cache=tmp_path / "cache", precision="fp16")
    staged.refresh()
    config = staged.directory / "clip_encoder" / "config.pbtxt"
    config.write_text(config.read_text().replace("KIND_GPU", "KIND_AUTO"))
    with serving(staged.directory) as server:
        assert asyncio.run(_healthy(server.grpc_url)), "the canary has its vector"


def test_without_tensorrt_the_option_says_so(tiny_repository: Path) -> None:
    try:
        check_tensorrt()
    except TensorrtMissing as missing:
        sentence = str(missing)
    else:
        pytest.skip("TensorRT is here")
    ports = [f"--{name}-port={free_port()}" for name in ("grpc", "http", "metrics")]
    command = [sys.executable, "-m", "preprocess_ensemble.serving.command", "--tensorrt", *ports]
    done = subprocess.run(
        [*command, f"--repository={tiny_repository}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr == f"clip-serve: {sentence}\n"


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
