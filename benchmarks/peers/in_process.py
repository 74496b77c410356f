"""The systems without a server: the model in the process that loads it. Those behind a port are in ``services``."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from benchmarks.fixtures.bare_encoder import bare_encoder, exact_pixels, preprocessing
from benchmarks.fixtures.repositories import exported_passport

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

    @property
    def texts(self) -> list[str]:
        """The files, if they are texts."""
        return [file.decode() for file in self.files]


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


def pytorch_loop(target: Target, *, precision: str) -> Embed:
    """open_clip as its documentation shows it, in batches: decode, its own transform, encode, normalise.

    Files are decoded on one thread for each core, as the servers and a DataLoader's workers do. The weights are held in
    ``precision``, as open_clip's ``pure_bf16`` does. (``torch.autocast`` converts all of them for every batch, which
    takes four fifths of its time on a CPU.) It runs on :func:`device`.
    """
    import torch
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from PIL import Image
    from torch.nn import functional

    from preprocess_ensemble.export.exporter import load_model

    # open_clip logs a warning about random weights; the result names the weights.
    logging.basicConfig(level=logging.ERROR)
    passport = exported_passport(target.repository)
    where = device()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    network = cast("Any", load_model(target.model or passport.model, passport.pretrained).to(where, dtype))
    transform = image_transform_v2(PreprocessCfg(**network.visual.preprocess_cfg), is_train=False)
    decoders = ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="decode")

    def prepared(number: int) -> torch.Tensor:
        tensor: torch.Tensor = transform(Image.open(io.BytesIO(target.files[number])))
        return tensor

    @torch.inference_mode()
    def embed(rows: list[int]) -> Vectors:
        images = torch.stack(list(decoders.map(prepared, rows))).to(where, dtype)
        # A norm computed in bf16 is wrong in the third digit.
        vectors: Vectors = functional.normalize(network.encode_image(images).float(), dim=-1).cpu().numpy()
        return vectors

    return embed


def pytorch_texts(target: Target) -> Embed:
    """open_clip's tokenizer and text tower as its documentation shows them, in fp32, on :func:`device`."""
    import open_clip
    import torch

    from preprocess_ensemble.export.exporter import load_model

    logging.basicConfig(level=logging.ERROR)
    passport = exported_passport(target.repository)
    where = device()
    network = cast("Any", load_model(target.model or passport.model, passport.pretrained).to(where))
    tokenize = cast("Any", open_clip.get_tokenizer(passport.model))
    texts = target.texts

    @torch.inference_mode()
    def embed(rows: list[int]) -> Vectors:
        tokens = tokenize([texts[row] for row in rows]).to(where)
        vectors: Vectors = network.encode_text(tokens, normalize=True).cpu().numpy()
        return vectors

    return embed
