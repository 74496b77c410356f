"""The fidelity contract: vectors from the whole Triton path, compared with open_clip's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from PIL import Image, ImageOps

from benchmarks.fixtures.server import TINY_CLIP, Server, serving
from clip_client import ClipClient
from preprocess_ensemble.export.exporter import load_model
from tests.fixtures.models.exports import export_without_pytorch
from tests.live.raw import infer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    import torch

LEAST_COSINE = 0.999999


class Reference:
    """EXIF orientation, open_clip's transform, PyTorch fp32: what every vector is measured against."""

    def __init__(self, model: str) -> None:
        import torch
        from open_clip.transform import PreprocessCfg, image_transform_v2

        self.network = cast("Any", load_model(model, "random:0"))
        config = PreprocessCfg(**self.network.visual.preprocess_cfg)
        self.mean = torch.tensor(config.mean).view(3, 1, 1)
        self.std = torch.tensor(config.std).view(3, 1, 1)
        self.transform = image_transform_v2(config, is_train=False)

    def tensor(self, path: Path) -> torch.Tensor:
        with Image.open(path) as image:
            tensor: torch.Tensor = self.transform(ImageOps.exif_transpose(image))  # (3, H, W), normalised
        return tensor

    def pixels(self, path: Path) -> npt.NDArray[np.uint8]:
        import torch

        unit = self.tensor(path) * self.std + self.mean  # (3, H, W) in [0, 1]
        return (unit * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()

    def vectors(self, paths: list[Path]) -> npt.NDArray[np.float64]:
        import torch

        with torch.inference_mode():
            images = torch.stack([self.tensor(path) for path in paths])
            vectors: npt.NDArray[np.float64] = self.network.encode_image(images, normalize=True).double().numpy()
        return vectors


@pytest.fixture(scope="module")
def tiny_reference() -> Reference:
    return Reference(str(TINY_CLIP))


@pytest.fixture(scope="module")
def full_reference() -> Reference:
    return Reference("ViT-B-32")


def paths_in(photos: Path) -> list[Path]:
    paths = sorted(photos.iterdir())
    assert len(paths) >= 20
    return paths


def test_pixels_are_those_of_open_clip(photos: Path, server: Server, tiny_reference: Reference) -> None:
    for path in paths_in(photos):
        answer = infer(server.grpc_url, "clip_preprocess", [path.read_bytes()], outputs=["pixels"])
        np.testing.assert_array_equal(answer["pixels"][0], tiny_reference.pixels(path), err_msg=path.name)


async def test_vectors_are_those_of_open_clip(photos: Path, server: Server, tiny_reference: Reference) -> None:
    paths = paths_in(photos)
    async with ClipClient(server.grpc_url, transfer="original") as clip:
        batch = await clip.embed(paths)
    batch.raise_for_errors()
    cosines = (batch.vectors.astype(np.float64) * tiny_reference.vectors(paths)).sum(axis=1)
    assert cosines.min() >= LEAST_COSINE


async def test_neighbours_do_not_change_a_vector(photos: Path, server: Server) -> None:
    good = [path.read_bytes() for path in paths_in(photos)[:4]]
    with_bad = [good[0], b"no image", good[1], b"", good[2], good[3][:500], good[3]]
    async with ClipClient(server.grpc_url, transfer="original") as clip:
        clean = await clip.embed(good)
        mixed = await clip.embed(with_bad)
    assert {index: error.code for index, error in mixed.errors.items()} == {
        1: "NOT_AN_IMAGE",
        3: "EMPTY",
        5: "TRUNCATED",
    }
    assert np.isnan(mixed.vectors[[1, 3, 5]]).all()
    np.testing.assert_allclose(mixed.vectors[[0, 2, 4, 6]], clean.vectors, atol=1e-6)


@pytest.fixture(scope="module")
def full_repository(full_reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ViT-B-32, exported from its skeleton, without PyTorch. What PyTorch exports is the same file."""
    folder = tmp_path_factory.mktemp("full")
    return export_without_pytorch(full_reference.network.state_dict(), folder)


@pytest.fixture(scope="module")
def full_server(full_repository: Path) -> Iterator[Server]:
    with serving(full_repository) as running:
        yield running


async def test_the_full_model_is_that_of_open_clip(
    photos: Path, full_server: Server, full_reference: Reference
) -> None:
    paths = paths_in(photos)
    async with ClipClient(full_server.grpc_url, transfer="original") as clip:
        batch = await clip.embed(paths)
    batch.raise_for_errors()
    assert batch.model_id.startswith("ViT-B-32/file:weights.safetensors@")
    assert batch.vectors.shape == (len(paths), 512)
    cosines = (batch.vectors.astype(np.float64) * full_reference.vectors(paths)).sum(axis=1)
    assert cosines.min() >= LEAST_COSINE


async def test_texts_of_the_full_model_are_those_of_open_clip(full_server: Server, full_reference: Reference) -> None:
    import open_clip
    import torch

    texts = ["a dog on the beach", "Fish &amp; chips", "caf\u00c3\u00a9, \U0001f415!", "one word after another " * 40]
    async with ClipClient(full_server.grpc_url) as clip:
        batch = await clip.embed_text(texts)
    batch.raise_for_errors()
    assert batch.truncated == (3,)
    with torch.inference_mode():
        tokens = open_clip.get_tokenizer("ViT-B-32")(texts)
        expected = full_reference.network.encode_text(tokens, normalize=True).double().numpy()
    assert (batch.vectors.astype(np.float64) * expected).sum(axis=1).min() >= LEAST_COSINE


async def test_the_fast_path_keeps_the_cosine_that_it_promises(
    photos: Path, full_server: Server, full_reference: Reference, tmp_path: Path
) -> None:
    """Fine grass, enlarged to a camera's size: decoded to an eighth, it would have a cosine of 0.99989."""
    path = tmp_path / "grass.jpg"
    with Image.open(photos / "grass.jpg") as grass:
        small = grass.convert("RGB").crop((0, 0, 512, 384))
    small.resize((4032, 3024), Image.Resampling.BICUBIC).save(path, quality=90)
    async with ClipClient(full_server.grpc_url, transfer="original") as clip:
        batch = await clip.embed([path])
    batch.raise_for_errors()
    cosine = (batch.vectors.astype(np.float64) * full_reference.vectors([path])).sum()
    assert 0.9999 <= cosine < LEAST_COSINE
