"""``clip-client search`` with both towers in a real tritonserver."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks.fixtures.server import QUIET, Server, serving
from clip_client import SyncClipClient
from clip_client.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def pair_server(tiny_pair_repository: Path) -> Iterator[Server]:
    with serving(tiny_pair_repository, *QUIET) as running:
        yield running


def test_words_and_photos_are_ranked_by_the_cosine_of_their_vectors(
    pair_server: Server, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = pair_server.grpc_url
    paths = [str(path) for path in sorted(photos.iterdir())]
    with SyncClipClient(url, transfer="thumbnail") as clip:
        vectors = clip.embed(paths).vectors
        words, rocket = (
            clip.embed_text(["a dog on the beach"]).vectors[0],
            vectors[paths.index(str(photos / "rocket.jpg"))],
        )
    query = words - 2 * rocket
    cosines = vectors @ query / np.linalg.norm(query)
    command = ["search", "a", "dog on", "the beach", "-", f"2:{photos / 'rocket.jpg'}", "--in", str(photos)]
    options = ["--url", url, "--store", str(tmp_path), "--json", "--top", "20"]
    for place in ([], ["--since", "1900"]):
        assert main([*command, *place, *options]) == 0
        found = json.loads(capsys.readouterr().out)
        dated = [one for one in found["photos"] if one["taken"]]
        assert place == [] or found["photos"] == dated
        expected = sorted(zip(cosines, paths, strict=True), reverse=True)
        listed = {one["path"] for one in found["photos"]}
        assert [one["path"] for one in found["photos"]] == [path for _, path in expected if path in listed]
        np.testing.assert_allclose(
            [one["score"] for one in found["photos"]], [score for score, path in expected if path in listed], atol=2e-5
        )
    assert found["model"].startswith("tiny_clip/random:0@")
