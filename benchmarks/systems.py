"""The systems under test, each as a worker process: ``python -m benchmarks.systems SYSTEM ...``.

Every system embeds the same JPEG files in a closed loop: ``concurrency`` requests of one image each are always under
way, or, for the systems without a server, batches of that size. A worker reads seconds, one line each, and answers with
images counted, images per second and latencies (see ``harness.Worker``).
"""

from __future__ import annotations

import argparse
import asyncio
import io
import itertools
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from benchmarks.harness import percentiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from clip_client import ClipClient

    Vectors = npt.NDArray[np.float32]


def bare_session(files: list[bytes], size: int, onnx: Path) -> Callable[[], Vectors]:
    """ONNX Runtime alone, fed pixels that were decoded beforehand: what the encoder can do at most on this machine."""
    import onnxruntime

    from preprocess_ensemble.decode import decode
    from preprocess_ensemble.passport import Passport
    from preprocess_ensemble.transform import PreprocessConfig, preprocess

    passport = Passport.from_json(onnx.with_name("model.json").read_text())
    config = PreprocessConfig.from_mapping(passport.preprocess)
    pixels = np.stack([preprocess(decode(file), config) for file in files])  # (N, H, W, 3)
    batches = itertools.cycle([np.take(pixels, rows, axis=0) for rows in _batches(len(files), size)])
    session = onnxruntime.InferenceSession(str(onnx), providers=["CPUExecutionProvider"])
    status = np.zeros((size, 1), np.int32)

    def step() -> Vectors:
        vectors: Vectors = session.run(["embedding"], {"pixels": next(batches), "status": status})[0]
        return vectors

    return step


def pytorch_loop(files: list[bytes], size: int, onnx: Path) -> Callable[[], Vectors]:
    """open_clip as its documentation shows it, in batches: decode, its own transform, encode, normalise."""
    import torch
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from PIL import Image

    from preprocess_ensemble.export import load_model
    from preprocess_ensemble.passport import Passport

    passport = Passport.from_json(onnx.with_name("model.json").read_text())
    network = cast("Any", load_model(passport.model, passport.pretrained))
    transform = image_transform_v2(PreprocessCfg(**network.visual.preprocess_cfg), is_train=False)
    batches = itertools.cycle([[files[row] for row in rows] for rows in _batches(len(files), size)])

    @torch.inference_mode()
    def step() -> Vectors:
        images = torch.stack([transform(Image.open(io.BytesIO(file))) for file in next(batches)])
        vectors: Vectors = network.encode_image(images, normalize=True).numpy()
        return vectors

    return step


def _batches(count: int, size: int) -> Iterator[list[int]]:
    """As many batches of ``size`` row numbers as it takes to use each of ``count`` rows equally often."""
    rows = itertools.cycle(range(count))
    for _ in range(np.lcm(count, size) // size):
        yield list(itertools.islice(rows, size))


def serve_loop(step: Callable[[], Vectors], first: Vectors) -> None:
    """Answer each line of seconds with what ``step``, called again and again, achieved."""
    _say({"ready": True, "vectors": first.tolist()})
    for line in sys.stdin:
        latencies_ms: list[float] = []
        images = 0
        start = now = time.perf_counter()
        while now - start < float(line):
            images += len(step())
            then, now = now, time.perf_counter()
            latencies_ms.append(1e3 * (now - then))
        _say({"images": images, "rate": images / (now - start), "latency_ms": percentiles(latencies_ms)})


async def serve_requests(files: list[bytes], concurrency: int, url: str) -> None:
    """Answer each line of seconds with what ``concurrency`` callers, one image a request, got from the server."""
    from clip_client import ClipClient

    async with ClipClient(url) as clip:
        first = await clip.embed(files)
        _say({"ready": True, "vectors": first.vectors.tolist()})
        for line in iter(sys.stdin.readline, ""):
            latencies_ms: list[float] = []
            start = time.perf_counter()
            callers = (_call(clip, files, latencies_ms, start + float(line)) for _ in range(concurrency))
            await asyncio.gather(*callers)
            rate = len(latencies_ms) / (time.perf_counter() - start)
            _say({"images": len(latencies_ms), "rate": rate, "latency_ms": percentiles(latencies_ms)})


async def _call(clip: ClipClient, files: list[bytes], latencies_ms: list[float], deadline: float) -> None:
    """Embed one image after another until the deadline, each in a request of its own call."""
    for file in itertools.cycle(files):
        then = time.perf_counter()
        if then >= deadline:
            return
        (await clip.embed([file])).raise_for_errors()
        latencies_ms.append(1e3 * (time.perf_counter() - then))


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    """Run one system as a worker."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("system", choices=("session", "pytorch", "ensemble"))
    parser.add_argument("--photos", type=Path, required=True, help="folder of JPEG files")
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--repository", type=Path, default=Path("triton_models"))
    parser.add_argument("--url", default="localhost:8001")
    arguments = parser.parse_args()
    files = [path.read_bytes() for path in sorted(arguments.photos.iterdir())]
    if arguments.system == "ensemble":
        asyncio.run(serve_requests(files, arguments.concurrency, arguments.url))
        return
    onnx = arguments.repository / "clip_encoder" / "1" / "model.onnx"
    build = bare_session if arguments.system == "session" else pytorch_loop
    first = build(files, len(files), onnx)()
    serve_loop(build(files, arguments.concurrency, onnx), first)


if __name__ == "__main__":
    main()
