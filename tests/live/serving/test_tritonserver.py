"""The launcher, as documented: ``tritonserver --model-repository DIR``, with options passed on."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from preprocess_ensemble.serving.cleanup import SHARED_MEMORY, region_prefix
from preprocess_ensemble.testing.server import free_port
from tests.live.bare import launched, wait_until_live
from tests.live.raw import infer
from tests.paths import ROOT

TRACKED = ROOT / "triton_models"


@pytest.fixture
def repository(tmp_path: Path, tiny_repository: Path) -> Path:
    """The tracked configs, unedited, with the small model in them."""
    copy = tmp_path / "triton_models"
    shutil.copytree(TRACKED, copy, ignore=shutil.ignore_patterns("model.onnx", "model.json", "__pycache__"))
    for file in ("model.onnx", "model.json"):
        shutil.copyfile(tiny_repository / "clip_encoder" / "1" / file, copy / "clip_encoder" / "1" / file)
    return copy


def test_the_tracked_repository_loads_without_auto_completion(repository: Path, tmp_path: Path, photos: Path) -> None:
    grpc, http = free_port(), free_port()
    addresses = [f"--{protocol}-address=127.0.0.1" for protocol in ("grpc", "http")]
    command = [
        str(Path(sys.executable).with_name("tritonserver")),
        "--model-repository",
        str(repository),
        "--disable-auto-complete-config",
        *addresses,
    ]
    ports = ["--grpc-port", str(grpc), "--http-port", str(http), "--allow-metrics=false"]
    with launched([*command, *ports], tmp_path / "log") as server:
        wait_until_live(server, http, tmp_path / "log")
        image = next(photos.glob("astronaut.*")).read_bytes()
        outputs = ["embedding", "status", "error", "fingerprint"]
        regions = list(SHARED_MEMORY.glob(f"{region_prefix(server.pid)}*"))
        assert {region.stat().st_mode & 0o777 for region in regions} == {0o600}, "before the first request"
        answer = infer(f"127.0.0.1:{grpc}", "clip_image", [image, b"no image"], outputs=outputs)
    assert answer["status"].ravel().tolist() == [0, 2]
    assert np.linalg.norm(answer["embedding"][0]) == pytest.approx(1, abs=1e-6)
    assert np.isnan(answer["embedding"][1]).all()
    assert answer["error"].ravel()[0] == b""
    assert answer["fingerprint"].shape == (2, 2)
