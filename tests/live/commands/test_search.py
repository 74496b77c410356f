"""``clip-client search`` with both towers in a real tritonserver."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.fixtures.server import QUIET, serving
from clip_client import SyncClipClient
from clip_client.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_words_and_photos_are_ranked_by_the_cosine_of_their_vectors(
    tiny_pair_repository: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths, rocket = [str(path) for path in sorted(photos.iterdir())], str(photos / "rocket.jpg")
    with serving(tiny_pair_repository, *QUIET) as server:
        with SyncClipClient(server.grpc_url, transfer="thumbnail") as clip:
            vectors = clip.embed(paths).vectors
            query = clip.embed_text(["a dog on the beach"]).vectors[0] - 2 * vectors[paths.index(rocket)]
        command = ["search", "a", "dog on", "the beach", "-", f"2:{rocket}", "--in", str(photos), "--json"]
        assert main([*command, "--url", server.grpc_url, "--store", str(tmp_path), "--top", "20"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = sorted(zip(vectors @ query / np.linalg.norm(query), paths, strict=True), reverse=True)
    assert [one["path"] for one in found["photos"]] == [path for _, path in expected]
    np.testing.assert_allclose([one["score"] for one in found["photos"]], [score for score, _ in expected], atol=2e-5)
    assert found["model"].startswith("tiny_clip/random:0@")
