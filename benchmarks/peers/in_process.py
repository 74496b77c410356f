"""The systems without a server, each as a worker process: ``python -m benchmarks.peers.in_process SYSTEM ...``.

Each embeds the same JPEG files, in batches. Orders are ``{"seconds": s}`` (see ``harness.worker``). The systems behind
a port are in ``services`` and ``load.adapters``.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import itertools
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from benchmarks.fixtures.bare_encoder import bare_encoder, exact_pixels, preprocessing
from benchmarks.harness.experiment import MODEL, REPOSITORY, exported_passport
from benchmarks.harness.worker import serve_orders
from benchmarks.load.loops import repeat

if TYPE_CHECKING:
    import numpy.typing as npt

    from benchmarks.harness.experiment import Run
    from benchmarks.harness.worker import Worker

    Vectors = npt.NDArray[np.float32]
    Embed = Callable[[int, int], Vectors]
    """From the number of the first file and a count of files to vectors (N, D); after the last file comes the first."""


def device() -> str:
    """``cuda`` if both ONNX Runtime and PyTorch can use a GPU, else ``cpu``.

    All benchmarked systems must run on the same device. The default installation has PyTorch with CUDA and ONNX Runtime
    without it.
    """
    import onnxruntime
    import torch

    can = torch.cuda.is_available() and "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    return "cuda" if can else "cpu"


def bare_session(files: list[bytes], repository: Path, batch: int) -> Embed:
    """ONNX Runtime alone, on pixels that were decoded beforehand: the highest rate of the encoder on this machine."""
    pixels = exact_pixels(files, preprocessing(repository))  # (N, H, W, 3)
    # The first files follow the last, so that every batch is a slice, which costs no copy.
    pixels = np.concatenate([pixels, np.resize(pixels, (batch, *pixels.shape[1:]))])
    encode = bare_encoder(repository, device=device())
    return lambda first, count: encode(pixels[first : first + count])


def pytorch_loop(files: list[bytes], repository: Path, precision: str, model: str | None) -> Embed:
    """open_clip as its documentation shows it, in batches: decode, its own transform, encode, normalise.

    Files are decoded on one thread for each core, as the servers and a DataLoader's workers do. The weights are held in
    ``precision``, as open_clip's ``pure_bf16`` and ``pure_fp16`` do. (``torch.autocast`` converts all of them for every
    batch, which takes four fifths of its time on a CPU.) It runs on :func:`device`.
    """
    import torch
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from PIL import Image
    from torch.nn import functional

    from preprocess_ensemble.export.exporter import load_model

    passport = exported_passport(repository)
    where = device()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    network = cast("Any", load_model(model or passport.model, passport.pretrained).to(where, dtype))
    transform = image_transform_v2(PreprocessCfg(**network.visual.preprocess_cfg), is_train=False)
    decoders = ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="decode")

    def prepared(number: int) -> torch.Tensor:
        tensor: torch.Tensor = transform(Image.open(io.BytesIO(files[number % len(files)])))
        return tensor

    @torch.inference_mode()
    def embed(first: int, count: int) -> Vectors:
        images = torch.stack(list(decoders.map(prepared, range(first, first + count)))).to(where, dtype)
        # A norm computed in bf16 is wrong in the third digit.
        vectors: Vectors = functional.normalize(network.encode_image(images).float(), dim=-1).cpu().numpy()
        return vectors

    return embed


def start(run: Run, system: str, batch: int, *options: str, name: str) -> Worker:
    """Start a system as a worker of ``run``, with the same model."""
    model = ("--model", run.options.model) if run.options.model else ()
    arguments = (system, "--batch", str(batch), *options, *model, *run.common)
    return run.worker(name, "benchmarks.peers.in_process", *arguments)


def main() -> None:
    """Run one system as a worker."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("system", choices=("session", "pytorch"))
    parser.add_argument("--photos", type=Path, required=True, help="folder of JPEG files")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32", help="of pytorch")
    for shared in (REPOSITORY, MODEL):
        shared(parser)
    arguments = parser.parse_args()
    # open_clip logs a warning about random weights; the result names the weights.
    logging.basicConfig(level=logging.ERROR)
    files = [path.read_bytes() for path in sorted(arguments.photos.iterdir())]
    if arguments.system == "session":
        embed = bare_session(files, arguments.repository, arguments.batch)
    else:
        embed = pytorch_loop(files, arguments.repository, arguments.precision, arguments.model)
    starts = itertools.count(step=arguments.batch)

    async def carry_out(order: Mapping[str, Any]) -> dict[str, Any]:
        return repeat(lambda: len(embed(next(starts) % len(files), arguments.batch)), order["seconds"])

    asyncio.run(serve_orders({"vectors": embed(0, len(files)).tolist()}, carry_out))


if __name__ == "__main__":
    main()
