"""The systems without a server: the model in the process that loads it. Those behind a port are in ``services``."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from benchmarks.fixtures.repositories import bare_encoder, exact_pixels, exported_passport, preprocessing

if TYPE_CHECKING:
    from benchmarks.peers.baseline.network import Network

Vectors = npt.NDArray[np.float32]
Embed = Callable[[list[int]], Vectors]
"""From the numbers of N files to vectors (N, D)."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a load is for: a model, where it is served, and the files to embed."""

    url: str
    """Empty if the model runs in the process of the load."""
    files: list[bytes]
    repository: Path
    """Of the exported model."""
    model: str | None = None
    """JSON file of a model that open_clip does not know by name."""

    def images(self, rows: list[int]) -> list[bytes]:
        """The files with these numbers."""
        return [self.files[row] for row in rows]

    def texts(self, rows: list[int]) -> list[str]:
        """The files with these numbers, if they are texts."""
        return [self.files[row].decode() for row in rows]


def device() -> str:
    """``cuda`` if both ONNX Runtime and PyTorch can use a GPU, else ``cpu``.

    All benchmarked systems must run on the same device. The default installation has PyTorch with CUDA and ONNX Runtime
    without it; an offline bundle has no PyTorch.
    """
    import onnxruntime

    can = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    if can and find_spec("torch") is not None:
        import torch

        can = torch.cuda.is_available()
    return "cuda" if can else "cpu"


def ready_pixels(target: Target) -> Embed:
    """ONNX Runtime alone, on pixels that were decoded beforehand: the highest rate of the encoder on this machine."""
    pixels = exact_pixels(target.files, preprocessing(target.repository))  # (N, H, W, 3)
    encode = bare_encoder(target.repository, device=device())
    return lambda rows: encode(pixels[rows])


def pytorch(target: Target, *, precision: str) -> Embed:
    """open_clip's own loop in batches. Files are decoded on one thread for each core, as a DataLoader's workers do."""
    from PIL import Image

    network = _network(target, precision)
    decoders = ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="decode")

    def embed(rows: list[int]) -> Vectors:
        files = target.images(rows)
        return network.encode(list(decoders.map(lambda file: network.prepared(Image.open(io.BytesIO(file))), files)))

    return embed


def pytorch_texts(target: Target) -> Embed:
    """open_clip's tokenizer and text tower, in fp32."""
    network = _network(target, "fp32")
    return lambda rows: network.encode_texts(target.texts(rows))


def _network(target: Target, precision: str) -> Network:
    import torch

    from benchmarks.peers.baseline.network import Network

    passport = exported_passport(target.repository)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    return Network(target.model or passport.model, passport.pretrained, device=device(), dtype=dtype)
