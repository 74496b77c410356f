"""perf_analyzer as the README says: it reads the input file and the server's statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.experiments.serving.perf_analyzer import analyze, find_or_install, write_input
from benchmarks.harness.venvs import EnvironmentFailed
from preprocess_ensemble.testing.server import serving

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(360)  # the first time it is downloaded, which takes as long as the package index does
def test_it_measures_the_ensemble(tiny_repository: Path, photos: Path, tmp_path: Path) -> None:
    try:
        installed = find_or_install()
    except EnvironmentFailed as missing:
        pytest.skip(str(missing))
    data = tmp_path / "input.json"
    write_input(data, [path.read_bytes() for path in sorted(photos.glob("*.jpg"))])
    with serving(tiny_repository, "--open-statistics") as server:
        # Whether the windows agree is up to the machine; that they are made and read is what is tested.
        load = {"concurrency": 1, "rows": 1, "requests": 10, "stability_percent": 10_000}
        figures = analyze(installed, model="clip_image", url=server.grpc_url, data=data, **load)
    assert figures["images_per_second"] > 0
    assert figures["compute_ms"] > 0
