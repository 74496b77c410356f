"""Thumbnails on their way to a real server: what they cost in likeness, and that they fail as files do."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from clip_client import ClientConfig, ClipClient
from clip_client._encoding import IMAGE_ENCODINGS
from clip_client._pipeline.encoder import ImageEncoder
from preprocess_ensemble.contract import PREPROCESSOR
from preprocess_ensemble.imaging.transform import PreprocessConfig
from tests.live.raw import infer

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.fixtures.server import Server
    from clip_client._encoding import TransferName

LEAST_COSINE = {"thumbnail": 0.999, "thumbnail-small": 0.997}


def files_in(photos: Path) -> list[Path]:
    return sorted(photos.iterdir())


@pytest.mark.parametrize("transfer", ["thumbnail", "thumbnail-small"])
async def test_thumbnails_are_small_and_near_the_originals(
    photos: Path, server: Server, transfer: TransferName
) -> None:
    paths = files_in(photos)
    async with (
        ClipClient(server.grpc_url, transfer="original") as whole,
        ClipClient(server.grpc_url, transfer=transfer) as clip,
    ):
        originals, thumbnails = await whole.embed(paths), await clip.embed(paths)
        sent = clip.stats().bytes_sent
        assert (await clip.health()).ok  # the canary travels as it is, so its vector is exact
    thumbnails.raise_for_errors()
    assert (originals.vectors * thumbnails.vectors).sum(axis=1).min() >= LEAST_COSINE[transfer]
    assert sent / len(paths) <= 1.1 * IMAGE_ENCODINGS[transfer].unchanged_up_to
    assert originals.vector_id.endswith("|original")
    assert thumbnails.vector_id.endswith(f"|{IMAGE_ENCODINGS[transfer].id}")


async def test_the_server_takes_a_thumbnails_pixels_as_they_are(photos: Path, server: Server) -> None:
    async with ClipClient(server.grpc_url) as clip:
        model, encoder = await clip.model(), ImageEncoder(ClientConfig())
    config = PreprocessConfig.from_mapping(model.preprocess)
    thumbnails = [encoder.encode(path, model) for path in files_in(photos) if path.stat().st_size > 100_000]
    answer = infer(server.grpc_url, PREPROCESSOR, thumbnails, outputs=["pixels"])
    for pixels, thumbnail in zip(answer["pixels"], thumbnails, strict=True):
        with Image.open(io.BytesIO(thumbnail)) as image:
            assert image.size == config.size[::-1]
            np.testing.assert_array_equal(pixels, np.asarray(image.convert("RGB")))


async def test_large_files_that_are_bad_fail_here_as_they_do_there(photos: Path, server: Server) -> None:
    jpeg = (photos / "rocket.jpg").read_bytes()
    strip = io.BytesIO()
    Image.effect_noise((20_000, 100), 50).save(strip, "PNG")
    bad = [jpeg[: len(jpeg) // 2], b"\x89PNG\r\n\x1a\n" + b"x" * 50_000, b"no image " * 5_000, strip.getvalue()]
    assert min(map(len, bad)) > IMAGE_ENCODINGS["thumbnail"].unchanged_up_to
    async with ClipClient(server.grpc_url) as clip, ClipClient(server.grpc_url, transfer="original") as whole:
        here, there = await clip.embed([*bad, jpeg]), await whole.embed([*bad, jpeg])
        assert clip.stats().images_embedded == 1
    assert {index: (error.code, error.message) for index, error in here.errors.items()} == {
        index: (error.code, error.message) for index, error in there.errors.items()
    }
    assert set(here.errors) == {0, 1, 2, 3}
    assert {error.code for error in here.errors.values()} >= {"TRUNCATED", "NOT_AN_IMAGE", "LIMIT"}
    assert np.isnan(here.vectors[:4]).all()
