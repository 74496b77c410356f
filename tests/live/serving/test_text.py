"""The text tower inside a real tritonserver: PyTorch's vectors, bad texts among good ones, and a server without one."""

from __future__ import annotations

import re
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as triton

from benchmarks.fixtures.server import QUIET, TINY_CLIP, Server, serving
from clip_client import ClipClient, ModelNotReady
from preprocess_ensemble.contract import ImageStatus, ModelNames
from preprocess_ensemble.export.exporter import export_model
from preprocess_ensemble.model_repository.config import installed_passport
from tests.fixtures.models.text_towers import KINDS, open_clips_vectors
from tests.live.raw import infer

pytestmark = pytest.mark.timeout(180)  # The first test waits for two exports and a server with twelve models.

NAMES = ModelNames()
GOOD = ("a dog on the beach", "ein Hund am Strand \U0001f436", "Cafe\u0301 &amp; <b>B\u00e4r</b>", "word " * 200)
OUTPUTS = ("embedding", "status", "error", "fingerprint", "truncated")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name -> configuration of a small model: CLIP's kind of text tower, and the others."""
    folders = {kind: tmp_path_factory.mktemp(kind, numbered=False) for kind in KINDS}
    return {NAMES.name: TINY_CLIP, **{kind: KINDS[kind](folder) for kind, folder in folders.items()}}


@pytest.fixture(scope="module")
def pair_server(
    tiny_pair_repository: Path, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """All of them in one repository."""
    repository = tmp_path_factory.mktemp("models") / "triton_models"
    shutil.copytree(tiny_pair_repository, repository)
    for kind in KINDS:
        export_model(model=str(models[kind]), pretrained="random:0", repository=repository, name=kind)
    with serving(repository, *QUIET, "--precision", "fp32") as running:
        yield running


def embed(server: Server, *texts: bytes) -> dict[str, npt.NDArray[Any]]:
    return infer(server.grpc_url, NAMES.text, texts, outputs=OUTPUTS, tensor="text")


@pytest.mark.parametrize("name", [NAMES.name, *KINDS])
async def test_vectors_are_those_of_pytorch(name: str, pair_server: Server, models: dict[str, Path]) -> None:
    async with ClipClient(pair_server.grpc_url, model=name) as clip:
        batch = await clip.embed_text(GOOD)
        report = await clip.health()
    assert (batch.vectors * open_clips_vectors(models[name], GOOD)).sum(axis=1).min() >= 0.999999
    assert batch.truncated == (3,)
    assert report.steps[-1].name == "text canary"
    assert report.ok


def test_bad_texts_have_a_status_and_change_no_neighbour(pair_server: Server) -> None:
    bad = {
        b"": ImageStatus.EMPTY,
        b" \n": ImageStatus.EMPTY,
        b"caf\xe9": ImageStatus.NOT_UTF8,
        b"x" * 65_537: ImageStatus.TOO_LARGE,
    }
    good = [text.encode() for text in GOOD]
    mixed = embed(pair_server, *(text for pair in zip(good, bad, strict=True) for text in pair))
    alone = embed(pair_server, *(text for text in good for _ in range(2)))
    assert mixed["embedding"][::2].tobytes() == alone["embedding"][::2].tobytes()
    assert np.isnan(mixed["embedding"][1::2]).all()
    assert mixed["status"].ravel().tolist() == [number for status in bad.values() for number in (0, status)]
    assert [bool(text) for text in mixed["error"].ravel()] == [False, True] * 4
    assert mixed["truncated"].ravel().tolist() == [False] * 6 + [True, False]
    passport = installed_passport(pair_server.repository)
    assert passport is not None
    assert passport.text is not None
    assert {tuple(row) for row in mixed["fingerprint"]} == {passport.text.fingerprint}
    assert passport.text.fingerprint != passport.fingerprint


def test_texts_are_counted(pair_server: Server) -> None:
    def counted() -> dict[str, float]:
        with urllib.request.urlopen(pair_server.metrics_url) as response:
            lines = re.findall(r"^(clip_tokenize_\S+) (\S+)$", response.read().decode(), re.MULTILINE)
        return {name: float(value) for name, value in lines}

    before = counted()
    embed(pair_server, b"a dog", b"", b"word " * 200)
    after = counted()
    assert {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name)} == {
        'clip_tokenize_texts_total{status="OK"}': 2,
        'clip_tokenize_texts_total{status="EMPTY"}': 1,
        "clip_tokenize_truncated_total": 1,
        'clip_tokenize_requests_total{rows="2-4"}': 1,
    }


def test_no_model_has_loaded_pytorch(pair_server: Server) -> None:
    for model in (NAMES.tokenize, NAMES.text_encoder, NAMES.preprocess, NAMES.encoder):
        assert "torch" not in Path(f"/proc/{pair_server.stub(model).pid}/maps").read_text(encoding="utf-8"), model


async def test_without_a_text_tower_there_are_the_three_models_of_images(server: Server) -> None:
    with triton.InferenceServerClient(server.grpc_url) as client:
        assert [client.is_model_ready(name) for name in (*NAMES.of_images, *NAMES.of_texts)] == [True] * 3 + [False] * 3
    async with ClipClient(server.grpc_url) as clip:
        with pytest.raises(ModelNotReady, match="has no text tower"):
            await clip.embed_text("a dog")
        assert (await clip.health()).ok
