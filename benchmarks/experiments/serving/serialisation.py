"""What does each form of a photo cost to send, and where should it be preprocessed?

The first table sends a photo in each form, ready in memory, to a model that only sums its bytes: serialising, sending
and parsing on loopback. The second embeds photos. The server preprocesses them (the ensemble, whole JPEG files or
thumbnails), or the caller does and sends uint8 pixels to the encoder, or everything runs in the caller's process: a
bare ONNX Runtime session behind the same decoder. Processor time counts the callers and the server.
"""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tritonclient.grpc.aio as grpc
from tritonclient.grpc import InferInput, InferRequestedOutput, model_config_pb2

from benchmarks.experiments.serving import comparison
from benchmarks.experiments.serving.comparison import System
from benchmarks.fixtures.repositories import Pixels, bare_encoder, device, exact_pixels, preprocessing, write_config
from benchmarks.harness.experiment import PHOTOS, REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.results import cosine_to_first, median_of, show
from benchmarks.load.adapters import Embed, EmbedHere, Target, Vectors, clip_client, in_process, posts, transport
from benchmarks.load.loops import closed_loop
from clip_client import ClientConfig, ModelInfo
from clip_client._pipeline.encoder import ImageEncoder
from preprocess_ensemble.contract import DEFAULT_NAMES
from preprocess_ensemble.imaging.preprocessor import Preprocessor

if TYPE_CHECKING:
    from benchmarks.fixtures.server import Server

_SINK: Final = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        def total(request):
            payload = pb_utils.get_input_tensor_by_name(request, "payload").as_numpy()
            one = np.frombuffer(payload.item(), np.uint8) if payload.dtype == object else payload
            return pb_utils.Tensor("sum", np.array([[one.sum(dtype=np.float64)]]))
        return [pb_utils.InferenceResponse([total(request)]) for request in requests]
"""
_SINKS: Final = {"FP32": [3, 224, 224], "UINT8": [224, 224, 3], "STRING": [1]}


def with_sinks(repository: Path, folder: Path) -> Path:
    """Copy ``repository`` to ``folder``, with a model beside it for each type of a payload."""
    shutil.copytree(repository, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for kind, dims in _SINKS.items():
        config = model_config_pb2.ModelConfig(name=f"sink_{kind}", backend="python", max_batch_size=1)
        config.input.add(name="payload", data_type=f"TYPE_{kind}", dims=dims)
        config.output.add(name="sum", data_type="TYPE_FP64", dims=[1])
        config.instance_group.add(kind="KIND_CPU", count=1)
        (write_config(folder, config) / "model.py").write_text(_SINK, encoding="utf-8")
    return folder


def forms_of(photo: bytes, run: Run) -> dict[str, tuple[str, Any]]:
    """Name of each form -> type, and the photo in it as an array of one row."""
    pixels = exact_pixels([photo], preprocessing(run.options.repository))
    floats = (pixels.transpose(0, 3, 1, 2) / np.float32(255)).astype(np.float32)
    model = ModelInfo.from_json(run.passport.to_json(), max_batch_size=32)
    encode = {way: ImageEncoder(ClientConfig(transfer=way)).encode for way in ("thumbnail", "thumbnail-small")}
    files = {"JPEG file": photo, **{way: one(photo.ljust(2**16), model) for way, one in encode.items()}}
    tensors = {
        "FP32, JSON over HTTP": ("FP32", floats),
        "FP32, gRPC": ("FP32", floats),
        "uint8, gRPC": ("UINT8", pixels),
    }
    return tensors | {f"{name}, gRPC": ("STRING", np.array([[file]], object)) for name, file in files.items()}


async def sent(server: Server, name: str, kind: str, array: Any, seconds: float) -> dict[str, Any]:
    expected = np.frombuffer(array.item(), np.uint8).sum() if kind == "STRING" else array.sum(dtype=np.float64)

    async def check(send: Callable[[], Awaitable[float]], size: int) -> dict[str, Any]:
        if not np.isclose(await send(), expected):
            raise RuntimeError(f"{name}: the payload changed on its way")
        answers = await closed_loop(lambda _: send(), callers=1, seconds=seconds)
        return {"bytes": size, "p50_ms": answers.summary()["latency_ms"]["p50"]}

    if "JSON" in name:
        body = {"name": "payload", "datatype": kind, "shape": array.shape}
        async with posts(f"{server.http_url}/v2/models/sink_{kind}/infer") as post:

            async def send_json() -> float:
                request = json.dumps({"inputs": [{**body, "data": array.ravel().tolist()}]})
                answer = await post(data=io.BytesIO(request.encode()))
                return float(answer["outputs"][0]["data"][0])

            return await check(send_json, len(json.dumps(array.ravel().tolist())))
    async with grpc.InferenceServerClient(server.grpc_url) as client:

        async def send_binary() -> float:
            payload = InferInput("payload", array.shape, "BYTES" if kind == "STRING" else kind)
            payload.set_data_from_numpy(array)
            answer = await client.infer(f"sink_{kind}", [payload])
            return float(answer.as_numpy("sum").item())

        return await check(send_binary, len(array.item()) + 4 if kind == "STRING" else array.nbytes)


@asynccontextmanager
async def pixels_to_encoder(target: Target) -> AsyncIterator[Embed]:
    """The caller decodes and resizes, with the server's code, and sends uint8 pixels."""
    preprocess, thread = decoder(target), ThreadPoolExecutor(1)
    async with grpc.InferenceServerClient(target.url) as client:

        async def embed(rows: list[int]) -> Vectors:
            pixels = await asyncio.get_running_loop().run_in_executor(thread, preprocess, rows)
            inputs = [InferInput("pixels", pixels.shape, "UINT8"), InferInput("status", [len(rows), 1], "INT32")]
            for one, array in zip(inputs, (pixels, np.zeros((len(rows), 1), np.int32)), strict=True):
                one.set_data_from_numpy(array)
            answer = await client.infer(DEFAULT_NAMES.encoder, inputs, outputs=[InferRequestedOutput("embedding")])
            vectors: Vectors = answer.as_numpy("embedding")
            return vectors

        yield embed


def decoder(target: Target) -> Callable[[list[int]], Pixels]:
    preprocessor = Preprocessor(preprocessing(target.repository))
    return lambda rows: preprocessor.run([target.images(rows)])[0]


def decoded_here(target: Target) -> EmbedHere:
    preprocess, encode = decoder(target), bare_encoder(target.repository, device=device())
    return lambda rows: encode(preprocess(rows))


SYSTEMS: Final = {
    "ensemble": System("ensemble, JPEG file: the server preprocesses", transport, "triton"),
    "thumbnail": System("ensemble, thumbnail: both do", partial(clip_client, transfer="thumbnail"), "triton", 0.999),
    "client-side": System("encoder, uint8 pixels: the caller preprocesses", pixels_to_encoder, "triton"),
    "session": System("bare session in the caller's process", partial(in_process, load=decoded_here)),
}


@experiment(
    REPOSITORY,
    PHOTOS,
    option("--concurrency", type=int, nargs="+", default=[1, 8, 32], help="callers, or images in a batch"),
    rounds(3),
    seconds(4.0, "per form or system, number of callers and round"),
)
def measure(run: Run) -> dict[str, Any]:
    options = run.options
    repository = with_sinks(options.repository, run.scratch / "models")
    http = run.serve(repository, "--precision", "fp32", http=True)
    forms = forms_of(run.files[0], run)

    def send(name: str) -> dict[str, Any]:
        return asyncio.run(sent(http, name, *forms[name], seconds=options.seconds / 4))

    found = run.in_rounds({name: partial(send, name) for name in forms})
    sizes = {name: {key: median_of(of, key) for key in ("bytes", "p50_ms")} for name, of in found.items()}
    show("One photo to a model that sums its bytes, on loopback", sizes)
    services = {"triton": comparison.address(http)}
    workers = comparison.start(run, SYSTEMS, services)
    cosines = cosine_to_first({name: worker.ready for name, worker in workers.items()})
    orders = {size: {"concurrency": size} for size in options.concurrency}
    embedded = comparison.measure(run, SYSTEMS, workers, orders, services)
    summary = comparison.summarise(SYSTEMS, options.concurrency, embedded, cosines)
    show("Medians of the rounds", comparison.rows_of(SYSTEMS, summary, "images"))
    return {"model": run.passport.id, "forms": sizes, "summary": summary}
