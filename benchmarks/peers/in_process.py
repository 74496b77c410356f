"""The systems without a server, each as a worker process: ``python -m benchmarks systems SYSTEM ...``.

Each embeds the same JPEG files, in batches. A worker reads orders of seconds, one line each, and answers with images
counted, images per second and latencies (see ``harness.Worker``). The systems behind a port stand in ``load.py``.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import logging
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from benchmarks.harness.rounds import percentiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    Vectors = npt.NDArray[np.float32]


def bare_session(files: list[bytes], size: int, onnx: Path) -> Callable[[], Vectors]:
    """ONNX Runtime alone, fed pixels that were decoded beforehand: what the encoder can do at most on this machine."""
    import onnxruntime

    from preprocess_ensemble.imaging.decode import decode
    from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
    from preprocess_ensemble.model_repository.passport import Passport

    passport = Passport.from_json(onnx.with_name("model.json").read_text())
    config = PreprocessConfig.from_mapping(passport.preprocess)
    pixels = np.stack([preprocess(decode(file), config) for file in files])  # (N, H, W, 3)
    batches = itertools.cycle([np.take(pixels, rows, axis=0) for rows in _batches(len(files), size)])
    # Not whatever is available: that begins with TensorRT, which the repository as it comes does not use.
    providers = ["CUDAExecutionProvider"] if device() == "cuda" else []
    session = onnxruntime.InferenceSession(str(onnx), providers=[*providers, "CPUExecutionProvider"])
    status = np.zeros((size, 1), np.int32)

    def step() -> Vectors:
        vectors: Vectors = session.run(["embedding"], {"pixels": next(batches), "status": status})[0]
        return vectors

    return step


def device() -> str:
    """``cuda`` where both ONNX Runtime and PyTorch can use a GPU, else ``cpu``.

    The default install brings PyTorch with CUDA and ONNX Runtime without: on a machine with a GPU, one side of a
    comparison would run on it and the other beside it.
    """
    import onnxruntime
    import torch

    can = torch.cuda.is_available() and "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    return "cuda" if can else "cpu"


def pytorch_loop(files: list[bytes], size: int, onnx: Path, precision: str, model: str | None) -> Callable[[], Vectors]:
    """open_clip as its documentation shows it, in batches: decode, its own transform, encode, normalise.

    Files are decoded on a thread for each core, as the servers and a DataLoader's workers do: one after another would
    leave cores idle. The weights are held in ``precision``, as open_clip's ``pure_bf16`` and ``pure_fp16`` do.
    (``torch.autocast`` turns all of them over for every batch, which takes four fifths of its time on a CPU.) The
    device is the GPU where the servers have it, too (:func:`device`).
    """
    import torch
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from PIL import Image
    from torch.nn import functional

    from preprocess_ensemble.export.exporter import load_model
    from preprocess_ensemble.model_repository.passport import Passport

    passport = Passport.from_json(onnx.with_name("model.json").read_text())
    where = device()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    network = cast("Any", load_model(model or passport.model, passport.pretrained).to(where, dtype))
    transform = image_transform_v2(PreprocessCfg(**network.visual.preprocess_cfg), is_train=False)
    batches = itertools.cycle([[files[row] for row in rows] for rows in _batches(len(files), size)])
    decoders = ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="decode")

    def prepared(file: bytes) -> torch.Tensor:
        tensor: torch.Tensor = transform(Image.open(io.BytesIO(file)))
        return tensor

    @torch.inference_mode()
    def step() -> Vectors:
        images = torch.stack(list(decoders.map(prepared, next(batches)))).to(where, dtype)
        # A norm taken in bf16 is off in the third digit.
        vectors: Vectors = functional.normalize(network.encode_image(images).float(), dim=-1).cpu().numpy()
        return vectors

    return step


def _batches(count: int, size: int) -> Iterator[list[int]]:
    """As many batches of ``size`` row numbers as it takes to use each of ``count`` rows equally often."""
    rows = itertools.cycle(range(count))
    for _ in range(np.lcm(count, size) // size):
        yield list(itertools.islice(rows, size))


def serve_loop(step: Callable[[], Vectors], first: Vectors) -> None:
    """Answer each order with what ``step``, called again and again, achieved."""
    _say({"ready": True, "vectors": first.tolist()})
    for line in sys.stdin:
        seconds = float(json.loads(line)["seconds"])
        latencies_ms: list[float] = []
        images = 0
        start = now = time.perf_counter()
        while now - start < seconds:
            images += len(step())
            then, now = now, time.perf_counter()
            latencies_ms.append(1e3 * (now - then))
        _say({"images": images, "rate": images / (now - start), "latency_ms": percentiles(latencies_ms)})


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    """Run one system as a worker."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("system", choices=("session", "pytorch"))
    parser.add_argument("--photos", type=Path, required=True, help="folder of JPEG files")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32", help="of pytorch")
    parser.add_argument("--repository", type=Path, default=Path("triton_models"))
    parser.add_argument("--model", help="JSON file of a model that open_clip does not know by name")
    arguments = parser.parse_args()
    # open_clip warns of random weights through the root logger; which weights they are, the result says.
    logging.basicConfig(level=logging.ERROR)
    files = [path.read_bytes() for path in sorted(arguments.photos.iterdir())]
    onnx = arguments.repository / "clip_encoder" / "1" / "model.onnx"

    def build(size: int) -> Callable[[], Vectors]:
        if arguments.system == "session":
            return bare_session(files, size, onnx)
        return pytorch_loop(files, size, onnx, arguments.precision, arguments.model)

    first = build(len(files))()
    serve_loop(build(arguments.batch), first)


if __name__ == "__main__":
    main()
