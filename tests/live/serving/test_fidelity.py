"""The fidelity contract: vectors from the whole Triton path, compared with open_clip's."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageOps

from benchmarks.fixtures.server import Server, serving
from clip_client import ClipClient
from tests.fixtures.models.exports import export_without_pytorch, load_model

pytestmark = pytest.mark.long

LEAST_COSINE = 0.999999


@pytest.fixture(scope="module")
def network() -> Any:
    return load_model("ViT-B-32", "random:0")


@pytest.fixture(scope="module")
def server(network: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of ViT-B-32, exported from its skeleton without PyTorch. An export with PyTorch writes the same file."""
    with serving(export_without_pytorch(network.state_dict(), tmp_path_factory.mktemp("full"))) as running:
        yield running


def reference(network: Any, paths: list[Path]) -> npt.NDArray[np.float64]:
    """EXIF orientation, open_clip's transform, PyTorch fp32: what every vector is measured against."""
    import torch
    from open_clip.transform import PreprocessCfg, image_transform_v2

    transform: Any = image_transform_v2(PreprocessCfg(**network.visual.preprocess_cfg), is_train=False)
    tensors = []
    for path in paths:
        with Image.open(path) as image:
            tensors.append(transform(ImageOps.exif_transpose(image)))
    with torch.inference_mode():
        vectors: npt.NDArray[np.float64] = network.encode_image(torch.stack(tensors), normalize=True).double().numpy()
    return vectors


async def test_vectors_are_those_of_open_clip(photos: Path, server: Server, network: Any) -> None:
    paths = [photos / name for name in sorted(os.listdir(photos))]
    assert len(paths) >= 20
    async with ClipClient(server.grpc_url, transfer="original") as clip:
        batch = await clip.embed(paths)
    batch.raise_for_errors()
    assert batch.model_id.startswith("ViT-B-32/file:weights.safetensors@")
    assert batch.vectors.shape == (len(paths), 512)
    assert (batch.vectors.astype(np.float64) * reference(network, paths)).sum(axis=1).min() >= LEAST_COSINE


async def test_the_fast_path_keeps_the_cosine_that_it_promises(
    photos: Path, server: Server, network: Any, tmp_path: Path
) -> None:
    """Fine grass, enlarged to a camera's size: decoded to an eighth, it would have a cosine of 0.99989."""
    path = tmp_path / "grass.jpg"
    with Image.open(photos / "grass.jpg") as grass:
        small = grass.convert("RGB").crop((0, 0, 512, 384))
    small.resize((4032, 3024), Image.Resampling.BICUBIC).save(path, quality=90)
    async with ClipClient(server.grpc_url, transfer="original") as clip:
        batch = await clip.embed([path])
    batch.raise_for_errors()
    cosine = (batch.vectors.astype(np.float64) * reference(network, [path])).sum()
    assert 0.9999 <= cosine < LEAST_COSINE
